"""A model that runs elsewhere: how the setting `model` names it, `openai:URL#NAME`, and where its key is.

The key is read from the environment only, so that it is in no file, on no page and in no log, and it is for one place.
Not covered: asking the server (`cache.remote`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from app.domain.errors import DeskError

SCHEME = "openai:"
KEY_VARIABLE = "WARMDESK_OPENAI_API_KEY"
KEY_VARIABLES = (KEY_VARIABLE, "OPENAI_API_KEY")
"""Where the key is looked for; the first wins."""
URL_VARIABLE = "WARMDESK_OPENAI_URL"
"""Names the only server that the key is sent to; its path does not count."""
NO_SETTINGS = frozenset({KEY_VARIABLE, URL_VARIABLE})
"""What is of the environment only, and begins as the variables of settings do."""


@dataclass(frozen=True, slots=True)
class ModelServer:
    """url: what OpenAI's routes stand below. name: of the model there."""

    url: str
    name: str


def model_server(model: str | None) -> ModelServer | None:
    """The server that a model's name means; None for a model that runs here. A URL without a path gets /v1. Raises
    ValueError for one that is not usable: without name, with a password or a query, or neither http nor https.
    """
    if model is None or not model.startswith(SCHEME):
        return None
    address, _, name = model.removeprefix(SCHEME).partition("#")
    url = urlsplit(address)  # raises ValueError for a bad port or bracket
    is_usable = url.scheme in ("http", "https") and url.hostname and url.port != 0 and not url.query
    if not is_usable or url.username or url.password or not name.strip() or not model.isprintable() or " " in address:
        raise ValueError
    return ModelServer(f"{url.scheme}://{url.netloc}{url.path.rstrip('/') or '/v1'}", name.strip())


def key_for(server: ModelServer, environ: Mapping[str, str], *, is_of_file: bool) -> str | None:
    """The key for the server, if there is one. It goes to the server that URL_VARIABLE names or, without that, to one
    that whoever starts the desk named. is_of_file: the settings file names it, which may come from a backup. Raises
    DeskError for a key that cannot be sent, or not to this server.
    """
    for variable in KEY_VARIABLES:
        if key := environ.get(variable, "").strip():
            if not key.isascii() or not key.isprintable() or " " in key:
                raise DeskError(f"{variable} has characters that no key has: set it again", code="settings")
            named = environ.get(URL_VARIABLE, "").strip()
            if is_of_file if not named else _origin(named) != _origin(server.url):
                where = f"only to {URL_VARIABLE}={named[:80]}" if named else "where only the settings file says"
                raise DeskError(
                    f"{variable} is sent {where}: if {server.url} is meant to get it, set {URL_VARIABLE}={server.url}; "
                    "if it needs no key, start the desk without this variable",
                    code="settings",
                )
            return key
    return None


def _origin(url: str) -> tuple[str, str | None, int | None] | None:
    """Scheme, host and port of an address; None of what is none."""
    try:
        parts = urlsplit(url)
        return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return None
