"""The desk as one object: command line, pages and HTTP call it.

Its parts are opened when they are first needed, so that listing documents loads no model; `prepare` opens all of them
before the first question. Close it to finish writing modules and to release the database.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Unpack, cast, get_args

from app.answering.answering import AnswerInProgress
from app.answering.explain import ExampleQuestions, Explainer
from app.answering.plain import PlainStream, complete
from app.answering.prefetching import Prefetching
from app.answering.prepare import valid_question
from app.answering.savings_meter import SavingsMeter
from app.desk.batch import BatchQuestion, BatchResult, run_batch
from app.desk.documents import DeskDocuments
from app.desk.overview import (
    ANSWERS,
    plan_memory,
    prefix_rows,
    summarise,
    summarise_savings,
)
from app.desk.parts import Loading, part
from app.desk.repeating import Housekeeping, Readiness
from app.domain.answers import Answer, Embedded, ModelNames, Overview, PlainOptions, PrefixRow, Said, Turn
from app.domain.callers import LONGEST_LINE, LONGEST_TEXT, OPERATOR, check_length
from app.domain.errors import DeskError
from app.domain.progress import Progress, no_progress
from app.domain.setting_types import policy_named
from app.domain.settings import Settings
from app.domain.statistics import Load, MemoryPlan, Savings, Served, UsageSpan, Verified
from app.knowledge.warm import ReadingAhead
from app.privacy.redaction import redact
from app.replies.replies import contact_links
from app.storage.archive import Backup, BackupOptions, back_up_folder
from app.storage.conversation_care import ConversationCare, Erased, Transcripts
from app.storage.statistics import SavingsSamples, Statistics
from app.support.faq import Grouping, Quality
from app.support.handoff import HandingOff
from cache.analysis.memory_plan import TracedModule
from cache.engine.request import Reuse
from cache.errors import CacheError
from cache.memory.store import TierContents

ENDING_S = 1.0
"""Time that answers get to end when the desk is closed."""
CHECKED = "checked"
"""Name of a stored fact: the last time the database was written as a test."""
log = logging.getLogger(__name__)


class Service(DeskDocuments):
    """An open desk. Safe to use from any thread; only one process at a time may open a data folder for writing (see
    `app.storage.lock`). Raises DeskError, CacheError or RetrievalError with one clear line. owner: whose
    conversations (`app.domain.callers`); other conversations do not exist for it. tests/fake_desk.py is a fake of it.
    """

    def __init__(self, settings: Settings, **loading: Unpack[Loading]) -> None:
        """Opens the database; everything else is opened when it is first needed. loading: see `Parts`."""
        super().__init__(settings, **loading)
        history = self.history
        # Methods that these parts have already.
        self.documents, self.conversations = self.library.documents, history.conversations
        self.collections = self.library.collection_sizes
        self.conversation = history.conversation
        self.care = care = ConversationCare(self.database)
        self.last_question = care.last_question
        self.delete_conversation, self.restore_conversation = care.delete_conversation, care.restore_conversation
        self.housekeeping = Housekeeping(care, self.drop_prefixes, settings.keep_days)
        self._handing_off = people = HandingOff(self.database, history, settings)
        self.handoff, self.handoffs = people.handoff, people.handoffs
        self.hand_off, self.to_person = people.hand_off, people.to_person
        self.hand_off_by_rule, self.end_handoff = people.hand_off_by_rule, people.end_handoff
        self._readiness = Readiness(
            {"model": self.is_ready, "engine": self._is_engine_running, "database": self._is_database_writable}
        )
        self._listeners: list[Callable[[Served], None]] = []
        history.listen(lambda answer, details: self._report(served_of(answer, details.queue_ms)))

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Finish writing and release everything."""
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
        """Stop all answers, and record their text so far."""
        if self.is_open("_answering"):
            self._answering.open.end(ENDING_S)

    @part
    def _examples(self) -> ExampleQuestions:
        return ExampleQuestions(self.library.headings, self._answering.questions.answered_from)

    @part
    def _prefetching(self) -> Prefetching:
        check = self._handing_off.check_with_machine
        return Prefetching(self._answering, self.history, self._in_flight, check)

    @part
    def quality(self) -> Quality:
        """Bad answers and the FAQ, for agents."""
        explainer = Explainer(self._answering.questions, self.finder, self.curated)
        grouping = Grouping(self.search.embedder)
        return Quality(Transcripts(self.database), self._faq, self._faq_editor, grouping, explainer.explain)

    def prepare(self) -> None:
        """Open everything a question needs, finish what was begun, and load what parts load at their first use."""
        self.finish_begun()
        self._ingestion.forget_unused()
        self._answering.rehearse()

    def measure_savings(self) -> None:
        """Recompute some answers without reuse when idle, from now on. Call it once. Does nothing for a remote model:
        its server cannot be told to reuse nothing.
        """
        if not self.is_elsewhere:
            self._answering.meter.start()

    def back_up(self, file: Path, progress: Progress = no_progress, **options: Unpack[BackupOptions]) -> Backup:
        return back_up_folder(self.settings, file, progress, **options)

    def warm_module(self, key: str) -> None:
        """Load a module into memory, from disk or by encoding it. key: `ModuleRow.id`."""
        self.module_care.warm(key)

    def evict_module(self, key: str) -> None:
        """Remove a module from memory; a copy on disk stays."""
        self.module_care.evict(key)

    def keep_module(self, key: str, *, is_kept: bool) -> None:
        """Pin a module (it is evicted only as a last resort), or unpin it."""
        self.module_care.keep(key, is_kept=is_kept)

    def verify_module(self, key: str) -> Verified:
        """Recompute a module and compare it with the stored one."""
        return self.module_care.verify(key)

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
    ) -> AnswerInProgress:
        """Start an answer. Without a conversation a new one begins; its id is in the finished answer. policy: see
        `setting_types`; unset: the desk's. collections: search only their documents; none: all. earlier: messages of a
        conversation that the caller stores; used, not stored. replaces: a `last_question`, which is not in the prompt.
        It is deleted with its answer in the transaction that stores the new one; without a new answer it stays and the
        new question is deleted. Raises DeskError while an agent answers, and for an invalid question, before any model
        is loaded.
        """
        if reuse not in get_args(Reuse):
            raise DeskError(f"reuse is {reuse!r}: it must be on, prefix or off", code="bad-reuse")
        named = None if policy is None else policy_named(policy)
        question = valid_question(question, self.settings)
        self._handing_off.check_with_machine(conversation_id, owner)
        if conversation_id is not None and not self.history.is_there(conversation_id, owner):
            raise DeskError(f"there is no conversation {conversation_id!r}", code="conversation-unknown")
        if unknown := set(collections) - set(self.library.collections() if collections else ()):
            raise DeskError(
                f"there is no collection {sorted(unknown)[0]!r}: `warmdesk documents` lists all",
                code="collection-unknown",
            )
        stream = self._answering.ask(
            question,
            conversation_id,
            cast("Reuse", reuse),
            named,
            collections,
            owner=owner,
            earlier=earlier,
            replaces=replaces,
        )
        if self.database.is_shared:
            self.housekeeping.asked(stream.conversation_id, owner)
        self._prefetching.cancel(owner)  # the question loads what it needs itself
        return stream

    def prefetch(self, text: str, *, owner: str = OPERATOR, conversation_id: str | None = None) -> None:
        """Load what the question being typed would need. Each text replaces the one before; a text that is too short
        only drops that. Nothing is stored and no failure is raised; see `app.answering.prefetching`.
        """
        if self.settings.foresees and self.is_ready():
            self._prefetching.typed(text, conversation_id, owner)

    def batch(
        self,
        questions: Sequence[BatchQuestion],
        report: Callable[[int, int], None],
        keep: Callable[[BatchQuestion, Answer], None] = lambda question, answer: None,
    ) -> BatchResult:
        """Answer many questions; see `app.desk.batch`."""
        return run_batch(self._answering, questions, report, keep)

    def feedback(self, message_id: str, value: str | None, reason: str = "", *, owner: str = OPERATOR) -> None:
        """Set, replace or (None) delete the reader's rating of an answer. Raises DeskError."""
        check_length(reason, LONGEST_LINE, "reason")
        self.history.feedback(message_id, value, self._kept(reason), owner=owner)

    def rename_conversation(self, conversation_id: str, title: str, owner: str = OPERATOR) -> None:
        """Give a conversation another title. Raises DeskError."""
        check_length(title, LONGEST_LINE, "title")
        self.care.rename_conversation(conversation_id, self._kept(title), owner)

    def _kept(self, text: str) -> str:
        """A customer's text as it is stored or given to a model."""
        return redact(text) if self.settings.redact else text

    def erase(self, owner: str) -> Erased:
        """Delete everything of an owner: conversations with all that belongs to them, and what was computed for them.
        Raises DeskError.
        """
        erased = self.care.erase(owner)
        self.housekeeping.drop({owner})
        if self.is_ready():
            self._answering.meter.clear()
            self._prefetching.cancel(owner)
        return erased

    def drop_prefixes(self, owner: str) -> bool:
        """Delete what was computed for an owner's questions; return whether all of it is gone, or some is in use."""
        return not self.is_open("engine") or self.engine.drop_prefixes(owner)

    # --- models alone --------------------------------------------------------------------------------------

    def complete(self, messages: Sequence[Said], options: PlainOptions, *, owner: str) -> PlainStream:
        """Start an answer of the language model alone; see `app.answering.plain`."""
        for one in messages:
            check_length(one.text, LONGEST_TEXT, "message")
        messages = [replace(one, text=self._kept(one.text)) if one.role == "user" else one for one in messages]
        if options.temperature is None:
            options = replace(options, temperature=self.settings.temperature)
        stream = complete(self.engine, messages, options, owner, self._report)
        self._answering.open.add(stream)
        return stream

    def embed(self, texts: Sequence[str], *, as_questions: bool = False) -> Embedded:
        """Texts as the vectors that search compares."""
        for text in texts:
            check_length(text, LONGEST_TEXT, "text")
        embedder = self.search.embedder
        vectors = embedder.embed_queries(texts) if as_questions else embedder.embed_documents(texts)
        return Embedded(vectors=vectors, tokens=embedder.count_tokens(texts))

    def models(self) -> ModelNames:
        """The names of the models, without their folders."""
        embedder = self.search.embedder
        return ModelNames(
            language=public_name(self.engine.info.name),
            embedder=public_name(embedder.name),
            dimension=embedder.dimension,
        )

    def turns(self, conversation_id: str, owner: str = OPERATOR, last: int | None = None) -> list[Turn]:
        """The messages of a conversation, as its customer may see them, each answer after its question; none if it does
        not exist. last: only that many, the latest.
        """
        turns = self.history.turns(conversation_id, owner, last)
        return turns if self.settings.show_agent_names else [replace(turn, author="") for turn in turns]

    # --- state ---------------------------------------------------------------------------------------------

    def overview(self) -> Overview:
        """The dashboard's numbers; without a running engine the device tier is empty."""
        settings, server, is_running = self.settings, self.settings.model_server, self.is_open("engine")
        prefixes: tuple[PrefixRow, ...] = ()
        if self._is_engine_running():
            with suppress(CacheError):  # it is too busy to answer
                prefixes = prefix_rows(self.engine)
        return replace(
            summarise(self.library, Statistics(self.database), self._tiers(), prefixes),
            model=self.engine.info.name if is_running else self._model_name,
            device=settings.device if server is None else server.url,
            is_elsewhere=self.is_elsewhere,
            policy=self.policy,
            answer_mode=self.answer_mode,
            calibration="" if self.calibration is None else self.calibration.line(),
            reading=self.passages_read(),
        )

    @property
    def _model_name(self) -> str:
        """The name before the model is loaded."""
        server = self.settings.model_server
        return server.name if server is not None else self.settings.model or "bundled"

    def usage_over_time(self, since: datetime, until: datetime, step: timedelta) -> Sequence[UsageSpan]:
        """What happened in each `step` between two times."""
        return Statistics(self.database).over_time(since, until, step)

    def savings(self, since: datetime, until: datetime) -> Savings:
        """What reuse saved between two times, as far as it was measured."""
        return summarise_savings(SavingsSamples(self.database).between(since, until))

    def memory_plan(self) -> MemoryPlan:
        """Simulate other sizes of memory for the latest answers; computes for some seconds."""
        if self.is_elsewhere:
            return MemoryPlan()
        used = Statistics(self.database).used_modules(ANSWERS)
        prompts = [[TracedModule(*module) for module in modules] for modules in used]
        device = self.engine.contents(with_modules=False).capacity["device"]
        return plan_memory(prompts, device, self.engine.info.kv.bytes_per_token)

    def source_file(self, message_id: str, rank: int, owner: str) -> Path | None:
        """The file of a document that an answer cites, if both still exist."""
        document = self.history.cited_document(message_id, rank, owner)
        if document is None or document == self.settings.faq_document:  # it also contains other customers' questions
            return None
        return Path(document) if self.library.find(document) is not None and Path(document).is_file() else None

    def examples(self) -> Sequence[str]:
        """The examples of the settings, else headings of the current documents. The first call starts the search for
        them and does not wait.
        """
        if self.settings.example_questions or not self.is_ready():
            return self.settings.example_questions
        return self._examples.for_snapshot(self.search.retriever)

    def load(self) -> Load:
        """What the desk holds and does now; cheap enough for a call every few seconds."""
        counts = self.library.counts()
        if not self.is_open("engine"):
            return Load(model=public_name(self._model_name), **asdict(counts))
        # Not from the disk if the engine does not run: the disk may be the reason.
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
        """Call `listener` with every answer from now on; it must be quick and may be called from any thread."""
        self._listeners.append(listener)

    def _report(self, served: Served) -> None:
        for listener in self._listeners:
            listener(served)

    def contacts(self) -> Mapping[str, str]:
        """Links to agents and contact pages, by their text in answers."""
        return contact_links(self.settings)

    def missing(self) -> tuple[str, ...]:
        """The missing parts that a question needs: "model", "engine", "database". Waits for none of them long."""
        return self._readiness.missing()

    def _is_database_writable(self) -> bool:
        try:
            self.library.set_fact(CHECKED, f"{datetime.now(UTC):%Y-%m-%d %H:%M}")  # written at most once a minute
        except DeskError:
            return False
        return True


def served_of(answer: Answer, queue_ms: float) -> Served:
    """The numbers of an answer that are counted."""
    return Served(outcome=answer.outcome, usage=answer.usage, timings=answer.timings, queue_ms=queue_ms)


def public_name(name: str) -> str:
    """A model's name without folders of this machine: a hub name stays, a path becomes its last part."""
    path = Path(name)
    is_path = path.is_absolute() or name.startswith((".", "~")) or path.suffix == ".gguf" or len(path.parts) > 2
    return (path.stem if path.suffix == ".gguf" else path.name) if is_path else name
