"""What pages of other sites may have of the desk: the widget, if they are in the setting `widget_origins`.

Everything else stays as closed as the guard leaves it.
"""

from collections.abc import Mapping, Sequence

SCRIPT, PAGE = "/widget.js", "/widget"


class WidgetFrame:
    """The paths of the widget and their headers. origins: of the sites that may show it; none: there is no widget."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = tuple(origins)

    def is_missing(self, path: str) -> bool:
        """Whether a path is of the widget, and the widget is off."""
        return not self._origins and (path in (SCRIPT, PAGE) or path.startswith(f"{PAGE}/"))

    def loosened(self, path: str, headers: Mapping[str, str]) -> dict[str, str]:
        """The guard's headers, as they are for this path."""
        changed = dict(headers)
        if self._origins and path == SCRIPT:
            changed["cross-origin-resource-policy"] = "cross-origin"
        if self._origins and path == PAGE:
            del changed["x-frame-options"]  # it knows no list of origins, and would forbid what the policy allows
            changed["content-security-policy"] = (
                "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self'; "
                f"connect-src 'self'; form-action 'none'; base-uri 'self'; frame-ancestors {' '.join(self._origins)}"
            )
        return changed
