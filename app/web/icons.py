"""The few line icons of the pages, as inline SVG: no icon font and no request. Decorative: labels stand
beside them.
"""

from __future__ import annotations

_PATHS = {
    "up": "M7 10v11H3V10zl4.2-7.6a1.9 1.9 0 0 1 3.5 1.3L14 9h5.2a2 2 0 0 1 2 2.4l-1.5 7.9a2 2 0 0 1-2 1.7H7",
    "down": "M17 14V3h4v11zl-4.2 7.6a1.9 1.9 0 0 1-3.5-1.3L10 15H5a2 2 0 0 1-2-2.4l1.4-8a2 2 0 0 1 2-1.6H17",
    "copy": "M9 9h10a2 2 0 0 1 2 2v8a2 2 0 0 1-2 2h-8a2 2 0 0 1-2-2zM5 15a2 2 0 0 1-2-2V3h12v2",
    "plus": "M12 5v14M5 12h14",
    "trash": "M4 7h16M10 11v6M14 11v6M6 7l1 13h10l1-13M9 7V4h6v3",
    "menu": "M4 7h16M4 12h16M4 17h16",
    "chevron": "m9 6 6 6-6 6",
    "alert": "M12 8v5M12 16.5v.01M12 3l9.5 17h-19z",
    "info": "M12 11v6M12 7.5v.01M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18z",
    "arrow": "M5 12h14M13 6l6 6-6 6",
    "bolt": "M13 2 4 14h7l-1 8 9-12h-7z",
    "file": "M14 3H6a2 2 0 0 0-2 2v14a2 2 0 0 0 2 2h12a2 2 0 0 0 2-2V9zM14 3v6h6",
}


def icon(name: str) -> str:
    """An icon of the size of the text beside it."""
    return (
        '<svg class="wd-icon" viewBox="0 0 24 24" aria-hidden="true" focusable="false" fill="none" '
        'stroke="currentColor"'
        f' stroke-width="1.75" stroke-linecap="round" stroke-linejoin="round"><path d="{_PATHS[name]}"/>'
        "</svg>"
    )
