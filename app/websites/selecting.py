"""Selects a website's pages that help customers: not a login, a list of links or "not found" with status 200. Turns
them into documents: each text once, without the blocks that most pages of the site share.

If several pages have the same text, a page that names its own address as canonical is chosen, else the page with the
shortest address. A page that cannot be read now keeps its text. A page that two complete runs did not find is removed.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from datetime import date
from hashlib import blake2b
from pathlib import Path

from rapidfuzz.fuzz import ratio

from app.domain.documents import READ
from app.websites.mirror import MOST_ABSENT, Mirror, PageRecord
from app.websites.urls import Scope
from retrieval.documents import Block, WebPage, content_hash

_LIKE = 90.0  # percent of equal text
_COMPARED = 2000  # characters
_SHORT_LOGIN = 400
_MOSTLY_LINKS = 0.7
_NOT_FOUND = re.compile(
    r"\b404\b|not found|no longer (here|available)|does not exist|introuvable|nicht gefunden|找不到|不存在", re.I
)
LOGIN = re.compile(r"[/._-](log[-_]?in|sign[-_]?in|sso|oauth2?|saml2?)\b", re.IGNORECASE)
"""Matches addresses of login pages, to which other pages redirect."""


def block_key(block: Block) -> int:
    """Return a hash of a block's text, without case and white space."""
    text = " ".join(block.text.casefold().split())
    return int.from_bytes(blake2b(text.encode("utf-8", "backslashreplace"), digest_size=8).digest(), "big")


@dataclass(frozen=True, slots=True)
class NotFoundPage:
    """The page that a site sends with status 200 for an address that cannot exist. path: the path of that address."""

    path: str
    blocks: tuple[Block, ...]
    keys: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", frozenset(map(block_key, self.blocks)))

    def is_like(self, page: WebPage, path: str) -> bool:
        """Return whether a page is this "not found" page: apart from equal blocks and the paths, it is similar."""
        others = frozenset(map(block_key, page.blocks))
        own = _text([block for block in page.blocks if block_key(block) not in self.keys], path)
        ours = _text([block for block in self.blocks if block_key(block) not in others], self.path)
        return own == ours or ratio(own, ours) >= _LIKE


def _text(blocks: list[Block], path: str) -> str:
    joined = "\n".join(block.text for block in blocks)[:_COMPARED]
    return joined.replace(path, "").replace(path.rpartition("/")[2] or path, "")


def judge(page: WebPage, path: str, missing: NotFoundPage | None, *, is_start: bool) -> str:
    """Return a key of `PAGE_REASONS`; `READ`: it may become a document. missing: the page for unknown addresses."""
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


_FEW_PAGES = 10
_COMMON = 0.6  # share of the pages that have a common block
_ENDS_AT_ONCE = frozenset((READ, "redirect", "noindex", "links", "empty"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The chosen documents. files: each with its address. known: this website's documents before this run. gone:
    documents to delete. aliases: addresses with the same text as a document. empty: pages without text of their own.
    """

    files: dict[Path, str]
    known: list[str]
    gone: list[str]
    aliases: list[str]
    empty: list[str]


def select(mirror: Mirror, scope: Scope, known: Collection[str], today: date) -> Selection:
    """Write the documents of a website, and return them. known: documents of its host."""
    light = (replace(one, blocks=(), links=()) for one in mirror.all())  # all are in memory together
    records = {one.url: one for one in light if not scope.refusal(one.url, today)}
    owners = _owners(records.values())
    common = _common_blocks(mirror, owners)
    files, empty = dict[Path, str](), list[str]()
    for url in owners:
        record = mirror.find(url)
        assert record is not None
        blocks = tuple(block for block in record.blocks if block_key(block) not in common)
        if any(block.kind != "heading" for block in blocks):
            files[mirror.keep_document(url, record.title, blocks)] = url
        else:
            empty.append(url)
    ours = [url for url in sorted(known) if mirror.find(url) is not None or not scope.refusal(url, today)]
    missing = set(ours) - set(files.values())
    gone = [url for url in sorted(missing) if _is_gone(records.get(url), scope.refusal(url, today))]
    aliases = [url for url, one in records.items() if one.has_text and url not in owners]
    return Selection(files=files, known=ours, gone=gone, aliases=sorted(aliases), empty=empty)


def _owners(records: Iterable[PageRecord]) -> list[str]:
    by_text = defaultdict[str, list[PageRecord]](list)
    for one in records:
        if one.has_text:
            by_text[one.text_hash].append(one)
    return sorted(
        min(equal, key=lambda one: (one.outcome != READ, one.canonical != one.url, len(one.url), one.url)).url
        for equal in by_text.values()
    )


def _common_blocks(mirror: Mirror, owners: Collection[str]) -> frozenset[int]:
    if len(owners) < _FEW_PAGES:
        return frozenset()
    wanted, counts = set(owners), Counter[int]()
    for record in mirror.all():
        if record.url in wanted:
            counts.update(set(map(block_key, record.blocks)))
    return frozenset(key for key, number in counts.items() if number >= _COMMON * len(owners))


def _is_gone(one: PageRecord | None, refusal: str) -> bool:
    """Return whether a document must be deleted. one: its page, None if it was not requested. refusal: the reason why
    it no longer belongs to the website, "" if it does.
    """
    if refusal or one is None:
        return bool(refusal)
    return one.absent >= MOST_ABSENT or one.outcome in _ENDS_AT_ONCE


def text_hash(blocks: Iterable[Block]) -> str:
    """Return a hash of a page's text that does not depend on white space and case."""
    return content_hash(b"".join(block_key(block).to_bytes(8, "big") for block in blocks))
