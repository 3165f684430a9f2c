"""What a page is: help for customers, or something that must not be quoted, such as a login or "not found" with 200."""

import re
from dataclasses import dataclass, field
from hashlib import blake2b

from rapidfuzz.fuzz import ratio

from app.domain.websites import READ
from retrieval.documents import Block, WebPage

_LIKE = 90.0  # percent of equal text
_COMPARED = 2000  # characters
_SHORT_LOGIN = 400
_MOSTLY_LINKS = 0.7
_NOT_FOUND = re.compile(
    r"\b404\b|not found|no longer (here|available)|does not exist|introuvable|nicht gefunden|找不到|不存在", re.I
)
LOGIN = re.compile(r"[/._-](log[-_]?in|sign[-_]?in|sso|oauth2?|saml2?)\b", re.IGNORECASE)
"""Of addresses to which a page redirects people who have to log in."""


def block_key(block: Block) -> int:
    """Return a number that equal texts share."""
    text = " ".join(block.text.casefold().split())
    return int.from_bytes(blake2b(text.encode("utf-8", "backslashreplace"), digest_size=8).digest(), "big")


@dataclass(frozen=True, slots=True)
class NotFoundPage:
    """The page that a site sends with status 200 for an address that cannot exist. path: of this address."""

    path: str
    blocks: tuple[Block, ...]
    keys: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", frozenset(map(block_key, self.blocks)))

    def is_like(self, page: WebPage, path: str) -> bool:
        """Return whether a page is this one: all that differs is the same but for the address in it."""
        others = frozenset(map(block_key, page.blocks))
        own = _text([block for block in page.blocks if block_key(block) not in self.keys], path)
        ours = _text([block for block in self.blocks if block_key(block) not in others], self.path)
        return own == ours or ratio(own, ours) >= _LIKE


def _text(blocks: list[Block], path: str) -> str:
    joined = "\n".join(block.text for block in blocks)[:_COMPARED]
    return joined.replace(path, "").replace(path.rpartition("/")[2] or path, "")


def judge(page: WebPage, path: str, missing: NotFoundPage | None, *, is_start: bool) -> str:
    """Return a key of `app.domain.websites.REASONS`. missing: the site's answer for an address that cannot exist."""
    length = sum(len(block.text) for block in page.blocks)
    if not page.may_index:
        return "noindex"
    if page.is_scripted:
        return "browser"
    if missing is not None and missing.is_like(page, path):
        said = " ".join([page.title, *(block.text for block in page.blocks)])[:_COMPARED]
        if not is_start or _NOT_FOUND.search(said):  # some servers send their first page for every address
            return "soft-404"
    if page.has_password and length < _SHORT_LOGIN:
        return "login"
    if not any(block.kind != "heading" for block in page.blocks):
        return "empty"
    return "links" if page.link_share > _MOSTLY_LINKS else READ
