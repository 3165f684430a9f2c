"""The desk as one object: what command line, pages and HTTP call.

Its parts are opened when they are first needed, so that listing documents loads no model; `prepare` opens all of them
before the first question. Close it to finish writing modules and to release the database.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from app.desk.overview import (
    ANSWERS,
    passage_states,
    plan_memory,
    prefix_rows,
    summarise,
    summarise_savings,
    tiers_on_disk,
)
from app.desk.parts import Loading, Parts, part
from app.desk.repeating import Following, Housekeeping, Readiness
from app.domain.answers import Answer, Embedded, ModelNames, Overview, PlainOptions, PrefixRow, Said, Turn
from app.domain.callers import OPERATOR
from app.domain.documents import PassageState
from app.domain.errors import DeskError
from app.domain.lengths import LONGEST_LINE, LONGEST_TEXT, check_length
from app.domain.policies import policy_named
from app.domain.progress import Bars, PassagesRead, Progress, ReadingCost, no_bars, no_progress
from app.domain.quality import FAQ
from app.domain.settings import Settings
from app.domain.statistics import Load, MemoryPlan, Savings, Served, UsageSpan, Verified
from app.knowledge.forget import CollectionForgotten, Forgetting, Forgotten, find_document
from app.knowledge.ingest import IngestOptions, IngestReport
from app.knowledge.uploads import Synchronising
from app.knowledge.warm import ReadingAhead, kept_modules
from app.privacy.redaction import redact
from app.replies.replies import contact_links
from app.storage.archive import Backup, BackupOptions, back_up_folder
from app.storage.begun import Kind
from app.storage.conversation_care import ConversationCare, Erased, Transcripts
from app.storage.desks import Desks
from app.storage.faq import SyncedFolderTable
from app.storage.people import Audit
from app.storage.statistics import SavingsSamples, Statistics
from app.support.faq import FaqEditor, Grouping, Publisher, Quality, write_document
from app.support.handoff import HandingOff
from cache.analysis.memory_plan import TracedModule
from cache.engine.request import Reuse
from cache.errors import CacheError
from cache.memory.store import TierContents
from retrieval.errors import RetrievalError

ENDING_S = 1.0
"""How long answers may take to end when the desk is closed."""
CHECKED = "checked"
"""Fact: when it was last tried whether the database can be written."""
log = logging.getLogger(__name__)


class Service(Parts):
    """An open desk (`app.desk.interface.Desk`). Safe to use from any thread; only one process at a time may open a data
    folder for writing (see `app.storage.lock`). Raises DeskError, CacheError or RetrievalError with one clear line.
    """

    def __init__(self, settings: Settings, **loading: Unpack[Loading]) -> None:
        """Opens the database; everything else is opened when it is first needed. loading: see `Parts`."""
        super().__init__(settings, **loading)
        history = self.history
        # Methods of `Desk` that these have already.
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
        folders = SyncedFolderTable(self.database)
        self.synced = Synchronising(folders, Audit(self.database).record, self._ingest_synced, settings.data_dir)
        self.following = self._shared() if self.database.is_shared else None
        self._followed: dict[str, datetime] = {}  # forgotten documents of which nothing is left here
        self._ahead: ReadingAhead | None = None
        self._readiness = Readiness(
            {"model": self.is_ready, "engine": self._is_engine_running, "database": self._is_database_writable}
        )
        self._listeners: list[Callable[[Served], None]] = []
        history.listen(lambda answer, details: self._report(served_of(answer, details.queue_ms)))

    def _shared(self) -> Following:
        return Following(self.library, Desks(self.database), self._follow, lambda: self.search.save())

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Finish what is being written and release everything."""
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
            with suppress(DeskError):  # without the database nobody waits for this desk for long
                self.following.leave()
        self.database.close()

    def end_answers(self) -> None:
        """Stop all answers, and record what was said so far."""
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
    def _faq_editor(self) -> FaqEditor:
        publisher = Publisher(
            take_in=lambda file, progress: self.ingest([file], progress, collection=FAQ),
            forget=self._forget_faq,
            reload=self.curated.reload,
            vectors_of=self.curated.vectors_of,
            try_out=self._answering.try_out,
        )
        return FaqEditor(self._faq, self.settings.faq_file, publisher, self.begun)

    @part
    def quality(self) -> Quality:
        """What agents do for the quality of answers."""
        explainer = Explainer(self._answering.questions, self.finder, self.curated)
        grouping = Grouping(self.search.embedder)
        return Quality(Transcripts(self.database), self._faq, self._faq_editor, grouping, explainer.explain)

    def prepare(self) -> None:
        """Open everything a question needs, finish what was begun, and load what parts load at their first use."""
        self.finish_begun()
        self._ingestion.forget_unused()
        self._answering.rehearse()

    def finish_begun(self) -> None:
        """Finish what was begun in the data folder and was killed, or failed; see `app.storage.begun`. Only for the one
        process that holds the folder. Of what fails again, the log says why; then it is for the next start.
        """
        finishing: dict[Kind, Callable[[], None]] = {
            "forget": lambda: self._forgetting.finish(),
            "upload": lambda: self._uploads.finish(),
            "faq": lambda: self._faq_editor.finish(),
        }
        for kind, finish in finishing.items():
            if self.begun.left(kind):
                try:
                    finish()
                except (DeskError, CacheError, RetrievalError, OSError) as error:
                    log.warning("what was begun before (%s) is not finished, and is tried again: %s", kind, error)

    def read_ahead(self, bars: Bars = no_bars, when_read: Callable[[], None] = lambda: None) -> None:
        """From now on let the model read in the background what it has not read; once. bars: show how far it is.
        when_read: called when everything has been read for the first time.
        """
        assert self._ahead is None
        if self.is_elsewhere:
            when_read()
            return
        self._ahead = ReadingAhead(self._warming, bars, when_read).start()

    def measure_savings(self) -> None:
        """From now on compute some answers a second time without reuse, while nobody waits; once. Not where the model
        runs elsewhere: its server reuses what it has, and that cannot be told to it.
        """
        if not self.is_elsewhere:
            self._answering.meter.start()

    def back_up(self, file: Path, progress: Progress = no_progress, **options: Unpack[BackupOptions]) -> Backup:
        """Save the data folder in one archive."""
        return back_up_folder(self.settings, file, progress, **options)

    # --- documents -----------------------------------------------------------------------------------------

    def ingest(
        self, paths: Iterable[Path], progress: Progress = no_progress, **options: Unpack[IngestOptions]
    ) -> IngestReport:
        """Ingest files and folders; see `app.knowledge.ingest`."""
        try:
            return self._ingestion.run(paths, progress, **options)
        finally:
            self._documents_changed()

    def forget(self, name: str) -> Forgotten:
        """Remove a document from database, search, citations and every module tier; see `app.knowledge.forget`.

        name: its path or an unambiguous end of it. Raises DeskError.
        """
        path = find_document(self.library, name, self.begun.left("forget"))
        forgotten = self._forgetting.forget(path)
        self._forgotten()
        return forgotten

    def forget_collection(self, name: str) -> CollectionForgotten:
        """Remove all documents of a collection as `forget` does one. Raises DeskError."""
        if name == FAQ:
            raise DeskError("the FAQ is removed question by question, on its page", code="collection-faq")
        if folders := self.synced.folders_of(name):
            message = f"the folder {folders[0]!r} is synchronised into this collection: remove that folder first"
            raise DeskError(message, code="collection-synced")
        paths = [one.path for one in self.documents() if one.collection == name]
        if not paths:
            raise DeskError(f"there is no document in a collection {name!r}", code="collection-unknown")
        forgotten = self._forgetting.forget_collection(name, paths)
        self._forgotten()
        return forgotten

    def _let_go(self, paths: Sequence[str]) -> None:
        """Delete what else there is of documents: copies of their files, and text of answers that are measured."""
        if self.is_ready():
            self._answering.meter.clear()
        for path in paths:
            self._uploads.delete(Path(path))
        if self.settings.faq_document in paths:  # else its text would come back with the next pair
            self._faq.delete()
            self.settings.faq_file.unlink(missing_ok=True)
            self.curated.reload()

    def _forgotten(self) -> None:
        self._documents_changed()
        if self.following is not None:
            self.following.wait_for_others()

    def _follow(self) -> None:
        """Take in what another desk of the database changed; see `app.desk.repeating`."""
        forgotten = self.history.forgotten()
        new = forgotten.items() - self._followed.items()
        is_removed = self.search.follow()
        self.curated.reload()
        self._forgetting.follow(is_forgotten=bool(new))
        if is_removed:
            self.search.save()
        for path, moment in new:
            if self.library.find(path) is None:
                self._uploads.delete(Path(path), moment)
        if self.settings.faq_file.exists():
            write_document(self.settings.faq_file, self._faq.pairs())
        self.engine.keep(kept_modules(self.library))
        self._answering.meter.clear()
        self._documents_changed()
        self._followed = forgotten

    @property
    def _forgetting(self) -> Forgetting:
        return Forgetting(self._ingestion, self.history, self._in_flight, self.begun, self._let_go)

    def _ingest_synced(self, folder: Path, collection: str, progress: Progress) -> IngestReport:
        return self.ingest([folder], progress, collection=collection, sync=True, warm=False)

    def passages(self, path: str, first: int, most: int) -> list[PassageState]:
        """Some passages of a document, in its order."""
        passages = self.library.passages_of(path, first, most)
        states = passage_states(passages, Statistics(self.database), self._tiers())
        return [replace(state, tier="elsewhere") for state in states] if self.is_elsewhere else states

    def _forget_faq(self) -> None:
        if self.library.find(self.settings.faq_document) is not None:
            self.forget(self.settings.faq_document)

    def _documents_changed(self) -> None:
        if self._ahead is not None:
            self._ahead.look_again()

    def upload(self, name: str, data: bytes, progress: Progress = no_progress, *, collection: str = "") -> IngestReport:
        """Keep an uploaded file and ingest it; see `app.knowledge.uploads`. The model reads it behind."""
        try:
            return self._uploads.take(name, data, progress, collection)
        finally:
            self._documents_changed()

    def reading_cost(self, neighbours: int) -> ReadingCost:
        """What it takes to encode all passages again."""
        if self.is_elsewhere:
            return ReadingCost(modules=0, seconds=0.0)
        encoded = [one.num_tokens for one in self.library.module_sizes() if one.module_key is not None]
        seconds = sum(encoded) * (1 + neighbours) * self.engine.seconds_per_token
        return ReadingCost(modules=len(encoded), seconds=seconds)

    def warm_module(self, key: str) -> None:
        """Have a module ready in memory."""
        self.module_care.warm(key)

    def evict_module(self, key: str) -> None:
        """Take a module out of memory."""
        self.module_care.evict(key)

    def keep_module(self, key: str, *, is_kept: bool) -> None:
        """Let a module be evicted last, or not any more."""
        self.module_care.keep(key, is_kept=is_kept)

    def verify_module(self, key: str) -> Verified:
        """Compare a module with what the model computes."""
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
        """Start an answer. owner: see `app.domain.callers`. policy: see `app.domain.policies`; unset: the desk's.
        collections: only documents of these are searched; none: all. earlier: the past of a new conversation, which is
        used and not stored. replaces: see `app.desk.interface`. Raises DeskError while a person answers, and for what
        cannot be asked, before any model is loaded.
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
                f"there is no collection {sorted(unknown)[0]!r}: `warmdesk documents` names those there are",
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
        self._prefetching.cancel(owner)  # the question has what it needs brought by itself
        return stream

    def prefetch(self, text: str, *, owner: str = OPERATOR, conversation_id: str | None = None) -> None:
        """Have ready what a question would need that is being typed; see `app.answering.prefetching`."""
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
        """What a customer writes, as it is stored or given to a model."""
        return redact(text) if self.settings.redact else text

    def erase(self, owner: str) -> Erased:
        """Remove everything of an owner: conversations with all that belongs to them, and what was computed for them.
        Raises DeskError.
        """
        erased = self.care.erase(owner)
        self.housekeeping.drop({owner})
        if self.is_ready():
            self._answering.meter.clear()
            self._prefetching.cancel(owner)
        return erased

    def drop_prefixes(self, owner: str) -> bool:
        """Remove what was computed for an owner's questions; gives whether all of it is gone, or some is in use."""
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
        """The names of the models that are used, without the folders in which they lie."""
        embedder = self.search.embedder
        return ModelNames(
            language=public_name(self.engine.info.name),
            embedder=public_name(embedder.name),
            dimension=embedder.dimension,
        )

    def turns(self, conversation_id: str, owner: str = OPERATOR, last: int | None = None) -> list[Turn]:
        """The messages of a conversation, as its customer may see them."""
        turns = self.history.turns(conversation_id, owner, last)
        return turns if self.settings.show_agent_names else [replace(turn, author="") for turn in turns]

    # --- state ---------------------------------------------------------------------------------------------

    def overview(self) -> Overview:
        """The dashboard's numbers; without a running engine the device tier is empty."""
        settings, server, is_running = self.settings, self.settings.model_server, self.is_open("engine")
        prefixes: tuple[PrefixRow, ...] = ()
        if self._is_engine_running():
            with suppress(CacheError):  # it is too busy to say
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
        """Before it is loaded."""
        server = self.settings.model_server
        return server.name if server is not None else self.settings.model or "bundled"

    def _tiers(self, *, with_modules: bool = True) -> TierContents:
        if self.is_elsewhere:
            return TierContents()
        if self._is_engine_running():
            return self._held(with_modules=with_modules)
        settings = self.settings
        return tiers_on_disk(settings.modules_folder, settings.disk, settings.disk_floor_bytes)

    def _held(self, *, with_modules: bool) -> TierContents:
        """What the engine holds; nothing where it is too busy to say."""
        try:
            return self.engine.contents(with_modules)
        except CacheError as error:
            log.warning("what the engine holds is not known: %s", error)
            return TierContents()

    def usage_over_time(self, since: datetime, until: datetime, step: timedelta) -> Sequence[UsageSpan]:
        """What happened in each `step` between two times."""
        return Statistics(self.database).over_time(since, until, step)

    def savings(self, since: datetime, until: datetime) -> Savings:
        """What reuse saved between two times, as far as it was measured."""
        return summarise_savings(SavingsSamples(self.database).between(since, until))

    def memory_plan(self) -> MemoryPlan:
        """What other sizes of memory would have done for the latest answers."""
        if self.is_elsewhere:
            return MemoryPlan()
        used = Statistics(self.database).used_modules(ANSWERS)
        prompts = [[TracedModule(*module) for module in modules] for modules in used]
        device = self.engine.contents(with_modules=False).capacity["device"]
        return plan_memory(prompts, device, self.engine.info.kv.bytes_per_token)

    def source_file(self, message_id: str, rank: int, owner: str) -> Path | None:
        """The file of a document that an answer cites, if the desk still has both."""
        document = self.history.cited_document(message_id, rank, owner)
        if document is None or document == self.settings.faq_document:  # it has other customers' questions in it, too
            return None
        return Path(document) if self.library.find(document) is not None and Path(document).is_file() else None

    def examples(self) -> Sequence[str]:
        """Those of the settings, else those found in the documents as they are now. The first call looks for them and
        does not wait.
        """
        if self.settings.example_questions or not self.is_ready():
            return self.settings.example_questions
        return self._examples.for_snapshot(self.search.retriever)

    def passages_read(self) -> PassagesRead | None:
        """How far the model has read; None if it does not read ahead."""
        return None if self._ahead is None else self._ahead.state

    def load(self) -> Load:
        """What the desk holds and does now; cheap enough to be asked every few seconds."""
        counts = self.library.counts()
        if not self.is_open("engine"):
            return Load(model=public_name(self._model_name), **asdict(counts))
        # Not from the disk where the engine does not run: it may be why.
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
        """How customers reach people, as links."""
        return contact_links(self.settings)

    def is_ready(self) -> bool:
        """Whether a question would be answered now."""
        return self.is_open("_answering")

    def missing(self) -> tuple[str, ...]:
        """What is not there that a question needs: "model", "engine", "database". Waits for none of them long."""
        return self._readiness.missing()

    def _is_database_writable(self) -> bool:
        try:
            self.library.set_fact(CHECKED, f"{datetime.now(UTC):%Y-%m-%d %H:%M}")  # written once a minute at most
        except DeskError:
            return False
        return True

    def _is_engine_running(self) -> bool:
        return self.is_open("engine") and self.engine.is_running


def served_of(answer: Answer, queue_ms: float) -> Served:
    """What is counted of an answer of the desk."""
    return Served(outcome=answer.outcome, usage=answer.usage, timings=answer.timings, queue_ms=queue_ms)


def public_name(name: str) -> str:
    """A model's name without the folders of this machine: a hub name stays, of a path its last part."""
    path = Path(name)
    is_path = path.is_absolute() or name.startswith((".", "~")) or path.suffix == ".gguf" or len(path.parts) > 2
    return (path.stem if path.suffix == ".gguf" else path.name) if is_path else name
