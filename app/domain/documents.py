"""Documents, passages, and the folders and websites that are read regularly, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

from app.domain.words import translatable

if TYPE_CHECKING:  # most commands need no numpy, and importing it takes a tenth of a second
    import numpy as np
    import numpy.typing as npt

Vectors: TypeAlias = "npt.NDArray[np.float32]"
Ids: TypeAlias = "npt.NDArray[np.int64]"


def passage_label(heading_path: Sequence[str], ordinal: int) -> str:
    """Return a passage's heading path and number for people: "Returns > Labels (2)"."""
    return f"{' > '.join(heading_path)} ({ordinal + 1})".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDocument:
    """A document to be stored. path: its absolute path or name. url: its public address. remarks: contents that
    were skipped; None: unknown, because an older version stored it.
    """

    path: str
    title: str
    content_hash: str
    collection: str = ""
    url: str = ""
    remarks: Sequence[str] | None = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NewPassage:
    """A passage to be stored, in the document's order. embedding: its vectors, one per row; None if its document
    already has a passage of this content (see `Library.known_hashes`).
    """

    heading_path: tuple[str, ...]
    text: str
    content_hash: str
    num_tokens: int
    embedding: Vectors | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDocument(NewDocument):
    """A stored document, with its id, the time of its loading and its number of passages."""

    id: int
    loaded_at: datetime
    num_passages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPassage:
    """A stored passage, with its document's path, title, collection and url. id: its number in the vector index.
    neighbours: passages before it while it is encoded, the closest first, without their own neighbours.
    """

    id: int
    document: str
    title: str
    ordinal: int
    heading_path: tuple[str, ...]
    text: str
    content_hash: str
    num_tokens: int
    module_key: str | None
    collection: str = ""
    url: str = ""
    neighbours: tuple[StoredPassage, ...] = ()

    @property
    def label(self) -> str:
        return passage_label(self.heading_path, self.ordinal)

    @property
    def name(self) -> str:
        """The name of its module: unique, and the same after its document changed."""
        return f"{self.document}#{self.ordinal}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleLabel:
    """The passage that a module encodes. passage: heading path and number, for people."""

    document: str
    passage: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleSize:
    """A passage's number and length, and the module that encodes it, if any."""

    id: int
    num_tokens: int
    module_key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """The result of changing a document, as passage numbers. ids: all current passages of the document, in its order.
    removed_module_keys: modules that no passage uses any more, including those of passages that lost a neighbour.
    """

    ids: tuple[int, ...]
    kept: tuple[int, ...]
    new: tuple[int, ...]
    removed: tuple[int, ...]
    removed_module_keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassageState:
    """A passage and its encoding. tier: device, host, disk, or none. last_used: time of its last use by an answer."""

    passage: StoredPassage
    tier: str
    last_used: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionSize:
    """The size of a collection. name: "" for documents without a collection."""

    name: str
    documents: int
    passages: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The numbers of stored documents and passages."""

    documents: int
    passages: int


MOST_PAGES = 5000
KEPT_EXAMPLES = 5

READ = "read"
PAGE_REASONS: Mapping[str, str] = {
    READ: translatable("Read"),
    "alias": translatable("Another address of a page that is read"),
    "redirect": translatable("Redirects to another page"),
    "outside": translatable("Outside the first page's folder"),
    "excluded": translatable("Excluded by a pattern"),
    "robots": translatable("Forbidden by robots.txt"),
    "noindex": translatable("The page asks not to be indexed"),
    "gone": translatable("Not found"),
    "soft-404": translatable("Says that the page does not exist"),
    "login": translatable("Needs a login"),
    "browser": translatable("Written by scripts: needs a browser"),
    "links": translatable("A list of links only; the links were followed"),
    "empty": translatable("No text of its own"),
    "file": translatable("Not a page: picture, archive or other file"),
    "action": translatable("Would change something, such as a logout"),
    "trap": translatable("Endless pages, such as a calendar"),
    "deep": translatable("Too many links away from the first page"),
    "private": translatable("Refused: in a private network"),
    "refused": translatable("Refused by the server"),
    "failed": translatable("Server error"),
    "unreachable": translatable("No reply"),
    "too-large": translatable("Too large"),
    "unreadable": translatable("Cannot be read"),
    "left": translatable("Left for the next run: the limit was reached"),
}
"""Outcomes of addresses, in words for people, in the order of a report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteOptions:
    """The part of a website to read. pages: maximum pages in one run. include, exclude: globs of a page's path, for
    example "/blog/*": further pages of the host, and pages to skip.
    """

    pages: int = 500
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


WHOLE_SITE = SiteOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonCount:
    """Number of addresses with a reason (see `PAGE_REASONS`). examples: the first ones; each may end with a detail."""

    reason: str
    number: int
    examples: tuple[str, ...] = ()


def is_website(source: str) -> bool:
    return source.lower().startswith(("http://", "https://"))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadFile:
    """A file that was skipped or is incomplete, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    """The result of one run over a folder or website, as numbers of documents. files: the first skipped or incomplete
    files; num_files: the number of all such files. reasons: outcomes of the addresses of a website. problem: why the
    run failed, "" if it did not; code: the code of its DeskError.
    """

    added: int = 0
    changed: int = 0
    removed: int = 0
    unchanged: int = 0
    files: tuple[UnreadFile, ...] = ()
    num_files: int = 0
    reasons: tuple[ReasonCount, ...] = ()
    code: str = ""
    problem: str = ""

    @property
    def is_ok(self) -> bool:
        return not self.problem


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncedFolder:
    """A folder or website that is read regularly into a collection. folder: its absolute path, or the address of its
    first page. site: the part of a website to read.
    """

    folder: str
    collection: str
    every_minutes: int
    next_run: datetime
    site: SiteOptions = WHOLE_SITE
    last_run: datetime | None = None
    last_result: SyncResult | None = None
