"""What `library` takes and gives: documents and passages as they are stored, as plain values.

Not covered: documents as files are read and passages as they are cut (`retrieval.documents.document`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


def passage_label(heading_path: Sequence[str], ordinal: int) -> str:
    """Heading path and number of a passage, for people: "Returns > Labels (2)"."""
    return f"{' > '.join(heading_path)} ({ordinal + 1})".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDocument:
    """A document to be stored. path: the absolute path or name it is known by. url: where everybody can read it."""

    path: str
    title: str
    content_hash: str
    collection: str = ""
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NewPassage:
    """A passage to be stored, in the document's order. embedding: its vectors, one a row; None if its document already
    has a passage of this content (see `Library.known_hashes`).
    """

    heading_path: tuple[str, ...]
    text: str
    content_hash: str
    num_tokens: int
    embedding: Vectors | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDocument:
    """A document as stored."""

    id: int
    path: str
    title: str
    content_hash: str
    loaded_at: datetime
    num_passages: int
    collection: str
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPassage:
    """A passage as stored, with its document's path, title, collection and url. id: its number in the vector index.
    neighbours: passages read before it while it is encoded, the closest first, without their own.
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
    neighbours: "tuple[StoredPassage, ...]" = ()

    @property
    def label(self) -> str:
        """Heading path and number, for people."""
        return passage_label(self.heading_path, self.ordinal)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleLabel:
    """Which passage a module encodes. passage: heading path and number, for people."""

    document: str
    passage: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleSize:
    """A passage by its number, how long it is, and the module that encodes it, if one was ever begun."""

    id: int
    num_tokens: int
    module_key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """What a change did, by passage number. ids: all passages of the document now, in its order.

    removed_module_keys: modules that no passage has any more, those of passages that lost a neighbour included.
    """

    ids: tuple[int, ...]
    kept: tuple[int, ...]
    new: tuple[int, ...]
    removed: tuple[int, ...]
    removed_module_keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassageState:
    """A passage, and how the model has it. tier: where it is encoded, "device", "host" or "disk"; "none" if it
    is not. last_used: by an answer.
    """

    passage: StoredPassage
    tier: str
    last_used: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionSize:
    """How much is in a collection. name: "" for the documents that are in none."""

    name: str
    documents: int
    passages: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How much there is."""

    documents: int
    passages: int
