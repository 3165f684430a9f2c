"""The seam between the product and what shows it: pages, HTTP and command line call a `Desk` and nothing
below it.

Not covered: settings and evaluation, which have no page yet. tests/fake_desk.py is the fake of this seam.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, Protocol

from app.domain.answers import Answer, ConversationSummary, Overview, Turn
from app.domain.documents import StoredDocument
from app.domain.progress import Progress, unseen
from app.knowledge.forgetting import Forgotten
from app.knowledge.ingestion import IngestReport

Feedback = Literal["up", "down"]


class AnswerStream(Protocol):
    """One answer on its way. Iterating gives the text in pieces and may raise DeskError; it does not give
    citations or numbers: those are in `answer`, which may be read only after the iteration has ended without
    an error.

    `cancel` may come from another thread and more than once, also after the end. It does not wait: the
    iteration ends soon afterwards, and `answer` is then what had been generated, stored like any other
    answer, with a notice. Cancelling before the first piece may leave nothing to store: then `answer` raises
    DeskError.
    """

    def __iter__(self) -> Iterator[str]: ...

    @property
    def answer(self) -> Answer: ...

    def cancel(self) -> None: ...


class Desk(Protocol):
    """Everything a page needs. All methods may be called from several threads at once and may raise
    DeskError.
    """

    def ask(self, question: str, *, conversation_id: str | None = None, reuse: str = "on") -> AnswerStream:
        """Starts an answer. Without a conversation a new one begins; its id is in the finished answer."""
        ...

    def conversations(self, limit: int = 50) -> list[ConversationSummary]:
        """The latest conversations, most recently used first."""
        ...

    def turns(self, conversation_id: str) -> list[Turn]:
        """All stored messages of a conversation, oldest first; empty when there is no such conversation."""
        ...

    def feedback(self, message_id: str, value: Feedback | None, reason: str = "") -> None:
        """Sets, replaces or (None) takes back the reader's verdict on an answer."""
        ...

    def delete_conversation(self, conversation_id: str) -> None:
        """Deletes a conversation with all its messages; one that is not there is no error."""
        ...

    def documents(self) -> list[StoredDocument]:
        """All documents, by path."""
        ...

    def ingest(
        self,
        paths: Iterable[Path],
        progress: Progress = unseen,
        *,
        collection: str = "",
        sync: bool = False,
        warm: bool = True,
    ) -> IngestReport:
        """Brings files and folders in, while questions are answered."""
        ...

    def forget(self, name: str) -> Forgotten:
        """Removes a document and everything that was made of it."""
        ...

    def keep_upload(self, name: str, data: bytes) -> Path:
        """Keeps an uploaded file, to be ingested."""
        ...

    def overview(self) -> Overview:
        """The dashboard's numbers. Does not wait for running answers."""
        ...

    def is_ready(self) -> bool:
        """Whether a question would be answered now. Does not load anything."""
        ...
