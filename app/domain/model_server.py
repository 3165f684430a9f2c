"""A model that runs elsewhere: how the setting `model` names it, `openai:URL#NAME`, and where its key is.

The key is read from the environment only, so that it is in no file, on no page and in no log. Not covered: asking the
server (`cache.remote`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from app.domain.errors import DeskError

SCHEME = "openai:"
KEY_VARIABLE = "WARMDESK_OPENAI_API_KEY"
KEY_VARIABLES = (KEY_VARIABLE, "OPENAI_API_KEY")
"""Where the key is looked for; the first wins."""


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


def key_in(environ: Mapping[str, str]) -> str | None:
    """The key for the server, if there is one. Raises DeskError for one that cannot be sent."""
    for variable in KEY_VARIABLES:
        if key := environ.get(variable, "").strip():
            if not key.isascii() or not key.isprintable() or " " in key:
                raise DeskError(f"{variable} has characters that no key has: set it again", code="settings")
            return key
    return None
