"""All functions of a desk in one object, for the command line, pages and HTTP.

Its parts are opened when they are first needed, so that listing documents loads no model; `prepare` opens all of them
before the first question. `close` finishes writing modules and releases the database.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Unpack, cast, get_args

from app.answering.answering import AnswerStream as AnswerStream
from app.answering.explain import ExampleQuestions, explain
from app.answering.plain import PlainStream, complete
from app.answering.prefetching import Prefetching
from app.answering.prepare import checked_question, valid_question
from app.answering.savings_meter import SavingsMeter
from app.desk.batch import BatchQuestion, BatchResult, run_batch
from app.desk.documents import DeskDocuments
from app.desk.overview import ANSWERS, describe, model_name, plan_memory, prefix_rows, summarise, summarise_savings
from app.desk.parts import Loading, part
from app.desk.repeating import Housekeeping, Readiness
from app.domain.answers import (
    Answer,
    Embedded,
    Handoff,
    HandoffReason,
    ModelNames,
    Overview,
    PlainOptions,
    PrefixRow,
    Said,
    Turn,
)
from app.domain.callers import LONGEST_LINE, LONGEST_TEXT, OPERATOR, Record, check_length
from app.domain.errors import DeskError
from app.domain.progress import Progress, in_own_thread, no_progress
from app.domain.quality import FaqDraft, FaqSaved
from app.domain.setting_types import policy_named
from app.domain.settings import Settings
from app.domain.statistics import Load, MemoryPlan, Savings, Served
from app.knowledge.forget import CollectionForgotten, Forgotten
from app.knowledge.ingest import IngestOptions, IngestReport
from app.knowledge.warm import ReadingAhead
from app.lookups.lookups import Asking, LookUps
from app.privacy import redact
from app.replies.replies import contact_links
from app.storage.archive import Backup, BackupOptions, back_up_folder
from app.storage.conversation_care import ConversationCare, Erased, Transcripts
from app.storage.lookups import LookUpStore
from app.storage.statistics import Statistics
from app.support.faq import Grouping, Quality
from app.support.handoff import HandingOff
from cache.engine.request import Reuse
from cache.errors import CacheError
from cache.memory.disk import TierContents, return_freed_memory

ENDING_S = 1.0
CHECKED = "checked"  # name of a stored fact: the last time the database was written as a test
log = logging.getLogger(__name__)


class Service(DeskDocuments):
    """An open desk. Safe to use from any thread; only one process at a time may open a data folder for writing (see
    `app.storage.data_folder`). Methods may raise DeskError, CacheError or RetrievalError. owner: an owner of
    conversations (`app.domain.callers`); other owners' conversations are not found. tests/fake_desk.py is a fake.
    """

    def __init__(self, settings: Settings, **loading: Unpack[Loading]) -> None:
        super().__init__(settings, **loading)
        history = self.history
        # Methods of these parts, unchanged.
        self.documents, self.conversations = self.library.documents, history.conversations
        self.collections = self.library.collection_sizes
        self.conversation = history.conversation
        self.care = care = ConversationCare(self.database)
        self._lookup_store = LookUpStore(self.database)
        self.last_question = care.last_question
        self.delete_conversation, self.restore_conversation = care.delete_conversation, care.restore_conversation
        self.housekeeping = Housekeeping(care, self.drop_prefixes, settings.keep_days, self._lookup_store.tidy)
        self._handing_off = people = HandingOff(self.database, history, settings)
        self.handoff, self.handoffs = people.handoff, people.handoffs
        self.hand_off_by_rule, self.end_handoff = people.hand_off_by_rule, people.end_handoff
        statistics = Statistics(self.database)
        self.usage_over_time, self.usage_within = statistics.over_time, statistics.within
        self.missing = Readiness(
            {"model": self.is_ready, "engine": self._is_engine_running, "database": self._is_database_writable}
        ).missing
        self._listeners: list[Callable[[Served], None]] = []
        self.offered: Mapping[str, str] = {}  # example questions, each with the end of its document's path
        history.listen(lambda one, more: self._report(Served(one.outcome, one.usage, one.timings, more.queue_ms)))

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        behind: list[ReadingAhead | SavingsMeter] = [] if self._ahead is None else [self._ahead]
        behind += [self._answering.meter] if self.is_ready() else []
        for thread in behind:
            thread.stop()
        self.end_answers()
        if self.is_open("engine"):
            self.engine.close()
        for thread in behind:
            thread.join()
        if self.following is not None:
            with suppress(DeskError):  # without the database no other server waits long
                self.following.leave()
        self.database.close()

    def end_answers(self) -> None:
        if self.is_open("_answering"):
            self._answering.open.end(ENDING_S)

    @part
    def lookups(self) -> LookUps:
        decider = self._answering.questions.decider
        return LookUps(
            self.settings,
            self._lookup_store,
            self.history,
            embed=self.search.embedder.embed_queries,
            is_answered=lambda message: decider.decide(message, []).outcome == "answered",
        )

    @part
    def _examples(self) -> ExampleQuestions:
        return ExampleQuestions(self.library.headings, self._answering.questions.answered_from, lambda: self.offered)

    @part
    def _prefetching(self) -> Prefetching:
        check = self._handing_off.check_with_machine
        return Prefetching(self._answering, self.history, self._in_flight, check)

    @part
    def quality(self) -> Quality:
        explained = partial(explain, self._answering.questions, self.finder, self.curated)
        grouping = Grouping(self.search.embedder)
        return Quality(Transcripts(self.database), self._faq, self._faq_editor, grouping, explained)

    def prepare(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Open every part that a question needs, finish interrupted work, and load lazy libraries. meanwhile: called
        while the engine loads its model, which takes longest.
        """
        engine = in_own_thread(lambda: self.engine)
        self.finish_begun()
        _ = self.finder
        meanwhile()
        engine.result()
        self.lookups.prepare()
        self._warming.forget_unused()
        self._answering.rehearse()
        return_freed_memory()

    def measure_savings(self) -> None:
        """Start to recompute a sample of answers without reuse while idle. Does nothing for a remote model."""
        if not self.is_elsewhere:
            self._answering.meter.start()

    def back_up(self, file: Path, progress: Progress = no_progress, **options: Unpack[BackupOptions]) -> Backup:
        return back_up_folder(self.settings, file, progress, **options)

    # --- questions -----------------------------------------------------------------------------------------

    def ask(
        self,
        question: str,
        *,
        owner: str = OPERATOR,
        conversation_id: str | None = None,
        reuse: str = "on",
        policy: str | None = None,
        collections: Sequence[str] = (),
        earlier: Sequence[Said] = (),
        replaces: str = "",
        user: str = "",
        address: str = "",
    ) -> AnswerStream[Answer]:
        """Start an answer. conversation_id: None starts a new conversation. collections: search only these; none: all.
        earlier: messages of a conversation that the caller stores; used, not stored. replaces: id of a `last_question`,
        which is not in the prompt. It is deleted with its answer when the new answer is stored, in one transaction.
        Without a new answer it stays, and the new question is deleted. user: the customer's id on the company's site.
        address: the visitor's IP address. Both are for look-ups (`app.lookups`). Raises DeskError, before any model is
        loaded.
        """
        if reuse not in get_args(Reuse):
            raise DeskError(f"reuse is {reuse!r}: it must be on, prefix or off", code="bad-reuse")
        named = None if policy is None else policy_named(policy)
        asked = checked_question(question, self.settings)
        self._handing_off.check_with_machine(conversation_id, owner)
        if conversation_id is not None and not self.history.is_there(conversation_id, owner):
            raise DeskError(f"there is no conversation {conversation_id!r}", code="conversation-unknown")
        if unknown := set(collections) - set(self.library.collections() if collections else ()):
            raise DeskError(
                f"there is no collection {sorted(unknown)[0]!r}: `warmdesk documents` lists all",
                code="collection-unknown",
            )
        asking = Asking(owner=owner, conversation_id=conversation_id, earlier=earlier, user=user, address=address)
        heard = self.lookups.hear(asked, asking)
        if heard is not None and not heard.step.is_beside:
            return self.lookups.say(heard)
        stream = self._answering.ask(
            valid_question(asked if heard is None else heard.kept, self.settings),
            conversation_id,
            cast("Reuse", reuse),
            named,
            collections,
            owner=owner,
            earlier=self.lookups.trusted(earlier, owner),
            replaces=replaces,
            lookup=None if heard is None else heard.turn,
        )
        if self.database.is_shared:
            self.housekeeping.asked(stream.conversation_id, owner)
        self._prefetching.cancel(owner)  # the question loads what it needs itself
        if heard is not None:
            self.lookups.save(stream.conversation_id, heard)
        return stream

    def hand_off(self, reason: HandoffReason, *, conversation_id: str | None = None, **asked: Any) -> Handoff:
        """Ask for an agent (`HandingOff.hand_off`). The agent also gets the values of an open look-up."""
        handed = self._handing_off.hand_off(reason, conversation_id=conversation_id, **asked)
        self._hand_over(conversation_id)
        return handed

    def to_person(self, text: str, conversation_id: str | None, owner: str) -> Handoff | None:
        """Store a message if it is for an agent (`HandingOff.to_person`), with the values of an open look-up."""
        handed = self._handing_off.to_person(text, conversation_id, owner)
        if handed is not None:
            self._hand_over(conversation_id)
        return handed

    def _hand_over(self, conversation_id: str | None) -> None:
        if conversation_id is not None and self._lookup_store.open(conversation_id) is not None:
            self.lookups.hand_over(conversation_id)

    def prefetch(self, text: str, *, owner: str = OPERATOR, conversation_id: str | None = None) -> None:
        """Load the passages for a question that is being typed; see `app.answering.prefetching`."""
        is_looking_up = conversation_id is not None and self._lookup_store.open(conversation_id) is not None
        if self.settings.foresees and self.is_ready() and not is_looking_up:
            self._prefetching.typed(text, conversation_id, owner)

    def batch(
        self,
        questions: Sequence[BatchQuestion],
        report: Callable[[int, int], None],
        keep: Callable[[BatchQuestion, Answer], None] = lambda question, answer: None,
    ) -> BatchResult:
        return run_batch(self._answering, questions, report, keep)

    def feedback(self, message_id: str, value: str | None, reason: str = "", *, owner: str = OPERATOR) -> None:
        check_length(reason, LONGEST_LINE, "reason")
        self.history.feedback(message_id, value, self._kept(reason), owner=owner)

    def rename_conversation(self, conversation_id: str, title: str, owner: str = OPERATOR) -> None:
        check_length(title, LONGEST_LINE, "title")
        self.care.rename_conversation(conversation_id, self._kept(title), owner)

    def _kept(self, text: str) -> str:
        return redact(text) if self.settings.redact else text

    def erase(self, owner: str) -> Erased:
        """Delete an owner's data and everything computed from it. Raises DeskError."""
        erased = self.care.erase(owner)
        self.housekeeping.drop({owner})
        if self.is_ready():
            self._answering.meter.clear()
            self._prefetching.cancel(owner)
        return erased

    def drop_prefixes(self, owner: str) -> bool:
        """Delete everything computed for an owner's questions. Return False if some of it is still in use."""
        return not self.is_open("engine") or self.engine.drop_prefixes(owner)

    # --- models alone --------------------------------------------------------------------------------------

    def complete(self, messages: Sequence[Said], options: PlainOptions, *, owner: str) -> PlainStream:
        for one in messages:
            check_length(one.text, LONGEST_TEXT, "message")
        messages = [replace(one, text=self._kept(one.text)) if one.role == "user" else one for one in messages]
        if options.temperature is None:
            options = replace(options, temperature=self.settings.temperature)
        stream = complete(self.engine, messages, options, owner, self._report)
        self._answering.open.add(stream)
        return stream

    def embed(self, texts: Sequence[str], *, as_questions: bool = False) -> Embedded:
        for text in texts:
            check_length(text, LONGEST_TEXT, "text")
        embedder = self.search.embedder
        vectors = embedder.embed_queries(texts) if as_questions else embedder.embed_documents(texts)
        return Embedded(vectors=vectors, tokens=embedder.count_tokens(texts))

    def models(self) -> ModelNames:
        embedder = self.search.embedder
        return ModelNames(
            language=public_name(self.engine.info.name),
            embedder=public_name(embedder.name),
            dimension=embedder.dimension,
        )

    def turns(self, conversation_id: str, owner: str = OPERATOR, last: int | None = None) -> list[Turn]:
        """Return the turns that the customer may see, oldest first. last: only the latest N."""
        turns = self.history.turns(conversation_id, owner, last)
        return turns if self.settings.show_agent_names else [replace(turn, author="") for turn in turns]

    # --- state ---------------------------------------------------------------------------------------------

    def overview(self) -> Overview:
        """Return the dashboard's numbers. Without a running engine, the device tier is empty."""
        prefixes: tuple[PrefixRow, ...] = ()
        if self._is_engine_running():
            with suppress(CacheError):  # it is too busy to answer
                prefixes = prefix_rows(self.engine)
        summary = summarise(self.library, Statistics(self.database), self._tiers(), prefixes)
        return replace(
            describe(summary, self.settings, self.calibration),
            model=self.engine.info.name if self.is_open("engine") else model_name(self.settings),
            reading=self.passages_read(),
            documents_read=self.documents_read(),
        )

    def savings(self, since: datetime, until: datetime) -> Savings:
        return summarise_savings(Statistics(self.database).samples(since, until))

    def memory_plan(self) -> MemoryPlan:
        """Simulate other memory sizes for the latest answers. This takes some seconds."""
        if self.is_elsewhere:
            return MemoryPlan()
        used = Statistics(self.database).used_modules(ANSWERS)
        device = self.engine.contents(with_modules=False).capacity["device"]
        return plan_memory(used, device, self.engine.info.kv.bytes_per_token)

    def source_file(self, message_id: str, rank: int, owner: str) -> Path | None:
        """Return the file of a document that an answer cites; None if the document or the file does not exist."""
        document = self.history.cited_document(message_id, rank, owner)
        if document is None or document == self.settings.faq_document:  # it also contains other customers' questions
            return None
        return Path(document) if self.library.find(document) is not None and Path(document).is_file() else None

    def examples(self) -> Sequence[str]:
        """Return the example questions found so far. The first call starts the search."""
        if self.settings.example_questions or not self.is_ready():
            return self.settings.example_questions
        return self._examples.for_snapshot(self.search.snapshot)

    def load(self) -> Load:
        counts = self.library.counts()
        if not self.is_open("engine"):
            return Load(model=public_name(model_name(self.settings)), **asdict(counts))
        # Without a running engine, do not read the disk: it may be why the engine does not run.
        asks = not self.is_elsewhere and self._is_engine_running()
        tiers = self._held(with_modules=False) if asks else TierContents()
        running, waiting = self.engine.load()
        return Load(
            model=public_name(self.engine.info.name),
            running=running,
            waiting=waiting,
            **asdict(counts),
            num_bytes=tiers.num_bytes,
            capacity=tiers.capacity,
            evictions=tiers.evictions,
            disk_free=None if tiers.space is None else tiers.space.free,
            disk_floor=None if tiers.space is None else tiers.space.floor,
            failed_writes=tiers.failed_writes,
            skipped_writes=tiers.skipped_writes,
            restarts=self.engine.num_restarts,
            shortages=self.engine.num_shortages,
        )

    def listen(self, listener: Callable[[Served], None]) -> None:
        """Call `listener` with every answer from now on. It must return quickly, and may be called from any thread."""
        self._listeners.append(listener)

    def _report(self, served: Served) -> None:
        for listener in self._listeners:
            listener(served)

    def contacts(self) -> Mapping[str, str]:
        return contact_links(self.settings)

    def _is_database_writable(self) -> bool:
        try:
            self.library.set_fact(CHECKED, f"{datetime.now(UTC):%Y-%m-%d %H:%M}")  # written at most once a minute
        except DeskError:
            return False
        return True


def public_name(name: str) -> str:
    """Return a model's name without folders of this machine. A hub name stays, a path becomes its last part."""
    path = Path(name)
    is_path = path.is_absolute() or name.startswith((".", "~")) or path.suffix == ".gguf" or len(path.parts) > 2
    return (path.stem if path.suffix == ".gguf" else path.name) if is_path else name


NAMED = 3


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes documents and FAQ, makes backups, and writes each action with its author to the audit log (`who`: see
    `app.storage.people`). Routes and commands use it instead of the service, so that the log is complete. Out of scope:
    accounts and keys (`app.access.identity`), and changes that the server makes itself.
    """

    desk: Service
    record: Record
    who: str

    def ingest(
        self, paths: Iterable[Path], progress: Progress = no_progress, **options: Unpack[IngestOptions]
    ) -> IngestReport:
        named = list(paths)
        report = self.desk.ingest(named, progress, **options)
        more = f" +{len(named) - NAMED}" if len(named) > NAMED else ""
        self.record(self.who, "document-ingest", ", ".join(str(path.absolute()) for path in named[:NAMED]) + more)
        return report

    def upload(self, name: str, data: bytes, progress: Progress = no_progress, *, collection: str = "") -> IngestReport:
        report = self.desk.upload(name, data, progress, collection=collection)
        self.record(self.who, "document-add", f"{collection}/{name}" if collection else name)
        return report

    def forget(self, name: str) -> Forgotten:
        forgotten = self.desk.forget(name)
        self.record(self.who, "document-forget", forgotten.document)
        return forgotten

    def forget_collection(self, name: str) -> CollectionForgotten:
        forgotten = self.desk.forget_collection(name)
        self.record(self.who, "collection-forget", f"{name or '-'} ({forgotten.documents})")
        return forgotten

    def erase(self, owner: str) -> Erased:
        """Delete an owner's data. The log does not name the owner, because the name would remain as personal data."""
        erased = self.desk.erase(owner)
        self.record(self.who, "visitor-erase", "")
        return erased

    def back_up(self, file: Path, progress: Progress = no_progress, **options: Unpack[BackupOptions]) -> Backup:
        """Write a backup. It contains customers' texts."""
        backup = self.desk.back_up(file, progress, **options)
        self.record(self.who, "backup", str(backup.file))
        return backup

    def save_faq(self, draft: FaqDraft, id_: int | None = None, progress: Progress = no_progress) -> FaqSaved:
        """Store a pair of the FAQ. The log has only its number, because the question may be a customer's text."""
        saved = self.desk.quality.save_faq(draft, self.who, id_, progress)
        self.record(self.who, "faq-add" if id_ is None else "faq-change", str(saved.id))
        return saved

    def delete_faq(self, id_: int, progress: Progress = no_progress) -> None:
        self.desk.quality.delete_faq(id_, progress)
        self.record(self.who, "faq-delete", str(id_))
