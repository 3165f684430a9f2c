"""Which pages become documents: each text once, without what most pages of the site have in common.

Of pages with the same text, the one that names itself as their address is chosen, else the one with the shortest
address. A page that cannot be read now keeps its text. One that was not found in two complete runs has none any more.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from app.domain.websites import READ
from app.websites.judging import block_key
from app.websites.mirror import Mirror, PageRecord
from app.websites.urls import Scope
from retrieval.documents import Block, content_hash

_FEW_PAGES = 10
_COMMON = 0.6  # of the pages
MOST_ABSENT = 2
_ENDS_AT_ONCE = frozenset((READ, "redirect", "noindex", "links", "empty"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """files: of the documents, with their addresses. known: this website's documents until now. gone: those that are to
    be deleted. aliases: addresses whose text another page has. empty: pages without text of their own.
    """

    files: dict[Path, str]
    known: list[str]
    gone: list[str]
    aliases: list[str]
    empty: list[str]


@dataclass(frozen=True, slots=True)
class _Light:
    """What is kept of a record while all are compared."""

    url: str
    outcome: str
    text_hash: str
    absent: int
    is_canonical: bool

    @property
    def has_text(self) -> bool:
        return bool(self.text_hash) and self.absent < MOST_ABSENT


def select(mirror: Mirror, scope: Scope, known: Collection[str], today: date) -> Selection:
    """Write the documents of a website, and return them. known: documents of its host."""
    records = {one.url: one for one in map(_light, mirror.all()) if not scope.refusal(one.url, today)}
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


def _light(record: PageRecord) -> _Light:
    is_canonical = record.canonical == record.url
    return _Light(record.url, record.outcome, record.text_hash, record.absent, is_canonical)


def _owners(records: Iterable[_Light]) -> list[str]:
    by_text = defaultdict[str, list[_Light]](list)
    for one in records:
        if one.has_text:
            by_text[one.text_hash].append(one)
    return sorted(
        min(equal, key=lambda one: (one.outcome != READ, not one.is_canonical, len(one.url), one.url)).url
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


def _is_gone(one: _Light | None, refusal: str) -> bool:
    """Return whether a document must go. one: its page, None if it was not asked for. refusal: why it no longer belongs
    to the website, "" if it does.
    """
    if refusal or one is None:
        return bool(refusal)
    return one.absent >= MOST_ABSENT or one.outcome in _ENDS_AT_ONCE


def text_hash(blocks: Iterable[Block]) -> str:
    """Return a hash that pages of equal text share, whatever their white space."""
    return content_hash(b"".join(block_key(block).to_bytes(8, "big") for block in blocks))
