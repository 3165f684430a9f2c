"""The interface between the product and what shows it: pages and HTTP call a `Desk` and nothing below it.

Not covered: settings, accounts and keys, which pages change beside it. tests/fake_desk.py is a fake of this interface.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal, Protocol, Unpack

from app.domain.answers import (
    Answer,
    ConversationSummary,
    Embedded,
    Handoff,
    HandoffReason,
    ModelNames,
    Overview,
    PlainAnswer,
    PlainOptions,
    Said,
    Turn,
)
from app.domain.documents import CollectionSize, PassageState, StoredDocument, SyncedFolder, SyncResult
from app.domain.progress import PassagesRead, Progress, ReadingCost, no_progress
from app.domain.quality import Cause, FaqDraft, FaqPair, FaqSaved, QualityReport, SearchExplanation
from app.domain.statistics import Load, MemoryPlan, Savings, Served, UsageSpan, Verified
from app.knowledge.forget import CollectionForgotten, Forgotten
from app.knowledge.ingest import IngestOptions, IngestReport
from app.storage.archive import Backup, BackupOptions
from app.storage.conversation_care import Erased

Feedback = Literal["up", "down"]


class AnswerStream(Protocol):
    """An answer that is being generated. Iterating gives its text in pieces and may raise DeskError. Citations and
    numbers are in `answer`, which may be read only after the iteration has ended without an error.

    `cancel` may be called from another thread, more than once, and after the end. It does not wait: the iteration ends
    soon afterwards, and `answer` is what was generated until then, stored like any other answer, with a notice. If
    nothing was generated yet, both raise DeskError (no-answer), and nothing is stored.
    """

    def __iter__(self) -> Iterator[str]: ...

    @property
    def answer(self) -> Answer: ...

    def cancel(self) -> None: ...


class PlainAnswerStream(Protocol):
    """As `AnswerStream`, for the language model alone."""

    def __iter__(self) -> Iterator[str]: ...

    @property
    def answer(self) -> PlainAnswer: ...

    def cancel(self) -> None: ...


class QualityDesk(Protocol):
    """What agents see of bad answers, and the FAQ that they write. All methods may be called from several threads at
    once and may raise DeskError.
    """

    def report(self, days: int, cause: Cause | None = None) -> QualityReport:
        """The bad answers of the last days, grouped by question; of one cause, or of all."""

    def faq(self) -> list[FaqPair]:
        """Every pair of the FAQ, the latest first."""

    def save_faq(
        self, draft: FaqDraft, author: str, id_: int | None = None, progress: Progress = no_progress
    ) -> FaqSaved:
        """Stores a pair (changes that of a number), indexes and encodes it, and asks its question again."""

    def delete_faq(self, id_: int, progress: Progress = no_progress) -> None:
        """Deletes a pair; an unknown number is no error."""

    def explain(self, question: str) -> SearchExplanation:
        """What search finds for a question and how it would end; nothing is stored."""


class SyncDesk(Protocol):
    """Folders that the desk reads again and again. All methods may be called from several threads at once and may raise
    DeskError. who: for the audit log.
    """

    def all(self) -> list[SyncedFolder]:
        """Every folder, by path."""

    def save(self, folder: str, collection: str, every_minutes: int, *, who: str) -> SyncedFolder:
        """Adds a folder, or changes how it is read; it is then due. folder: an absolute path."""

    def remove(self, folder: str, *, who: str) -> None:
        """Reads a folder no more; its documents stay."""

    def run(self, folder: str, progress: Progress = no_progress, *, who: str) -> SyncResult:
        """Reads a folder now. A failure is a result, too; DeskError only while other documents are taken in."""


class Desk(Protocol):
    """Everything a page needs. All methods may be called from several threads at once and may raise DeskError. owner:
    whose conversations (`app.domain.callers`); those of others do not exist.
    """

    @property
    def quality(self) -> QualityDesk:
        """For agents only."""

    @property
    def synced(self) -> SyncDesk:
        """For admins only."""

    def ask(
        self,
        question: str,
        *,
        owner: str,
        conversation_id: str | None = None,
        reuse: str = "on",
        earlier: Sequence[Said] = (),
        replaces: str = "",
    ) -> AnswerStream:
        """Starts an answer. Without a conversation a new one begins; its id is in the finished answer. earlier: what
        was said before in a conversation that the caller keeps; it is not stored. replaces: a `last_question`, which is
        not in the prompt; it goes, with its answer, in the moment in which the new answer is stored. Without a new
        answer it stays, and the new question goes.
        """

    def prefetch(self, text: str, *, owner: str, conversation_id: str | None = None) -> None:
        """Has ready what a question would need that is being typed. Each text replaces the one before; one that says
        too little, such as "", only drops that. Nothing of it is stored, and no failure is raised.
        """

    def conversations(self, owner: str, limit: int = 50, query: str = "") -> list[ConversationSummary]:
        """The latest conversations, most recently used first. query: only those in which each of its words stands, in
        the title or a message; case does not matter.
        """

    def turns(self, conversation_id: str, owner: str, last: int | None = None) -> list[Turn]:
        """The stored messages of a conversation, each answer behind its question; empty when there is none. last: only
        so many, the latest.
        """

    def feedback(self, message_id: str, value: Feedback | None, reason: str = "", *, owner: str) -> None:
        """Sets, replaces or (None) deletes the reader's rating of an answer."""

    def delete_conversation(self, conversation_id: str, owner: str) -> None:
        """Hides a conversation with all its messages, for good after `app.storage.conversation_care.UNDO_S` seconds; an
        unknown id is no error.
        """

    def conversation(self, conversation_id: str, owner: str) -> ConversationSummary | None:
        """One conversation, as it is listed; None when there is no such conversation."""

    def restore_conversation(self, conversation_id: str, owner: str) -> None:
        """Brings a deleted conversation back; DeskError if that was too long ago."""

    def rename_conversation(self, conversation_id: str, title: str, owner: str) -> None:
        """Gives a conversation another title, which is shortened; DeskError for an empty one."""

    def last_question(self, conversation_id: str, owner: str) -> str:
        """The message id of a conversation's last question. DeskError if there is none, or it went to a person."""

    def erase(self, owner: str) -> Erased:
        """Removes everything of an owner, at once and for good; counts over all customers stay."""

    def back_up(self, file: Path, progress: Progress = no_progress, **options: Unpack[BackupOptions]) -> Backup:
        """Save the data folder in one archive; see `app.storage.archive`. Raises DeskError."""

    def handoff(self, conversation_id: str, owner: str) -> Handoff | None:
        """The last hand-off of a conversation to a person; None if there never was one."""

    def handoffs(self, owner: str) -> list[Handoff]:
        """All hand-offs of an owner's conversations, the oldest first, also those that are closed."""

    def hand_off(
        self, reason: HandoffReason, *, owner: str, conversation_id: str | None = None, text: str = "", email: str = ""
    ) -> Handoff:
        """Asks for a person; see `app.support.handoff`."""

    def to_person(self, text: str, conversation_id: str | None, owner: str) -> Handoff | None:
        """Stores a message for a person, if the conversation is with one or the message asks for one; None if it is for
        the machine.
        """

    def hand_off_by_rule(self, conversation_id: str, owner: str) -> Handoff | None:
        """Hands the conversation off if its last answers call for it; None if not."""

    def end_handoff(self, conversation_id: str, owner: str) -> None:
        """Gives the conversation back to the machine."""

    def documents(self) -> list[StoredDocument]:
        """All documents, by path."""

    def passages(self, path: str, first: int, most: int) -> list[PassageState]:
        """Some passages of a document, in its order, beginning with number `first` (from 0)."""

    def collections(self) -> list[CollectionSize]:
        """How much is in each collection, by name."""

    def ingest(
        self, paths: Iterable[Path], progress: Progress = no_progress, **options: Unpack[IngestOptions]
    ) -> IngestReport:
        """Ingests files and folders, while questions are answered."""

    def forget(self, name: str) -> Forgotten:
        """Removes a document and everything derived from it."""

    def forget_collection(self, name: str) -> CollectionForgotten:
        """The same with all documents of a collection, at once. Refused for the FAQ, and while a folder is synchronised
        into it.
        """

    def upload(self, name: str, data: bytes, progress: Progress = no_progress, *, collection: str = "") -> IngestReport:
        """Keeps a file and ingests it, in place of one of the same name and collection. If that fails, as it does while
        other documents are taken in, nothing is kept.
        """

    def overview(self) -> Overview:
        """The dashboard's numbers. Does not wait for running answers."""

    def usage_over_time(self, since: datetime, until: datetime, step: timedelta) -> Sequence[UsageSpan]:
        """What happened in each `step` between two times; see `app.storage.statistics.Statistics.over_time`."""

    def savings(self, since: datetime, until: datetime) -> Savings:
        """What reuse saved between two times, as far as it was measured."""

    def memory_plan(self) -> MemoryPlan:
        """What other sizes of memory would have done for the latest answers; computes for some seconds."""

    def reading_cost(self, neighbours: int) -> ReadingCost:
        """What it takes to encode all passages again, each behind so many neighbours."""

    def warm_module(self, key: str) -> None:
        """Has an encoded passage ready in memory: from disk, or encoded now. key: `ModuleRow.id`."""

    def evict_module(self, key: str) -> None:
        """Takes an encoded passage out of memory; a copy on disk stays."""

    def keep_module(self, key: str, *, is_kept: bool) -> None:
        """Lets an encoded passage be evicted only when nothing else may be; or not any more."""

    def verify_module(self, key: str) -> Verified:
        """Computes an encoded passage anew and compares it with what is stored."""

    def source_file(self, message_id: str, rank: int, owner: str) -> Path | None:
        """The file of the document that is citation `rank` of an answer, if there is one."""

    def examples(self) -> Sequence[str]:
        """Questions that an empty conversation offers; none while they are still looked for."""

    def contacts(self) -> Mapping[str, str]:
        """Addresses of links (http, https, mailto, tel), by the text that stands for them in answers."""

    def passages_read(self) -> PassagesRead | None:
        """How far the model has read the documents; None if it reads nothing ahead of questions."""

    def missing(self) -> tuple[str, ...]:
        """What is not there that a question needs: "model", "engine", "database". Does not load anything, and does not
        wait long for what hangs, which is missing then.
        """

    def is_ready(self) -> bool:
        """Whether a question would be answered now. Does not load anything."""

    # --- for programs (`app.api`) --------------------------------------------------------------------------

    def complete(self, messages: Sequence[Said], options: PlainOptions, *, owner: str) -> PlainAnswerStream:
        """Starts an answer of the language model alone, without documents. Nothing of it is stored."""

    def embed(self, texts: Sequence[str], *, as_questions: bool = False) -> Embedded:
        """Texts as vectors."""

    def models(self) -> ModelNames:
        """The names of the models that are used."""

    def load(self) -> Load:
        """What the desk holds and does now. Does not wait for running answers."""

    def listen(self, listener: Callable[[Served], None]) -> None:
        """Calls `listener` with every answer from now on, from any thread."""
