"""The desk as one object: what command line, pages and HTTP call.

Its parts are opened when they are first needed, so that listing documents loads no model; `prepare` opens all of them
before the first question. Close it to finish writing modules and to release the database.
"""

import shutil
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import RLock
from typing import Any, Generic, TypeVar, Unpack, cast, get_args

import torch

from app.answering.answering import Answering
from app.answering.curated import CuratedAnswers
from app.answering.examples import example_questions
from app.answering.explain import Explainer
from app.answering.plain import PlainStream, complete
from app.answering.savings_meter import SavingsMeter
from app.answering.stream import AnswerInProgress
from app.desk.batch import BatchResult, run_batch
from app.desk.batch_files import BatchQuestion
from app.desk.calibration import Calibration, find_calibration
from app.desk.housekeeping import Housekeeping
from app.desk.memory_plan import ANSWERS, plan_memory
from app.desk.overview import Tiers, passage_states, summarise, tiers_of, tiers_on_disk
from app.desk.savings import summarise_savings
from app.desk.search_calibration import find_classifier, find_ranker
from app.domain.answers import Answer, Overview, Turn
from app.domain.callers import OPERATOR
from app.domain.documents import PassageState
from app.domain.errors import DeskError
from app.domain.memory_plan import MemoryPlan
from app.domain.plain import Embedded, ModelNames, PlainOptions, Said
from app.domain.policies import AnswerMode, Policy, policy_named
from app.domain.progress import Bars, PassagesRead, Progress, ReadingCost, no_bars, no_progress
from app.domain.quality import FAQ
from app.domain.savings import Savings
from app.domain.served import Load, Served
from app.domain.settings import Settings
from app.domain.trends import UsageSpan
from app.domain.verified import Verified
from app.knowledge.finder import Finder
from app.knowledge.forget import CollectionForgotten, Forgetting, Forgotten, find_document
from app.knowledge.in_flight import InFlight
from app.knowledge.ingest import Ingestion, IngestOptions, IngestReport
from app.knowledge.module_care import ModuleCare, kept_modules
from app.knowledge.prompts import PromptBuilder
from app.knowledge.reading_ahead import ReadingAhead
from app.knowledge.search import Search
from app.knowledge.statements import StatementStore
from app.knowledge.synchronising import Synchronising
from app.knowledge.uploads import Uploads, remove_partial_uploads
from app.knowledge.warm import Warming
from app.privacy.redaction import redact
from app.replies.contacts import contact_links
from app.storage.audit import Audit
from app.storage.conversation_care import ConversationCare, Erased
from app.storage.database import open_database
from app.storage.faq import FaqStore
from app.storage.history import History
from app.storage.library import Library
from app.storage.savings import SavingsSamples
from app.storage.statistics import Statistics
from app.storage.synced_folders import SyncedFolderTable
from app.storage.transcripts import Transcripts
from app.support.faq import FaqEditor, Publisher
from app.support.groups import Grouping
from app.support.handing_off import HandingOff
from app.support.quality import Quality
from cache.analysis.memory_plan import TracedModule
from cache.engine.engine import Engine
from cache.engine.request import Reuse
from cache.memory.disk import DiskTier
from cache.model.language_model import LanguageModel
from cache.model.loading import load_model, load_tokenizer
from cache.prompt.model_tokenizer import ModelTokenizer
from cache.prompt.parts import Text
from retrieval.ranking.encoder import StatementEncoder, StatementRanker
from retrieval.search.embedding import Embedder
from retrieval.search.last_questions import LastQuestionsEmbedder
from retrieval.search.reranker import CrossEncoderReranker
from retrieval.search.retriever import Retriever
from retrieval.search.sentence_embedder import SentenceEmbedder

T = TypeVar("T")

ENDING_S = 1.0
"""How long answers may take to end when the desk is closed."""
CHECKED = "checked"
"""Fact: when it was last tried whether the database can be written."""


def load_model_of(settings: Settings) -> LanguageModel:
    """The language model that the settings name. Raises CacheError."""
    return load_model(
        settings.model, device=settings.device, converted=settings.models_folder, adapter=settings.adapter_folder
    )


class _Part(Generic[T]):
    """A part of the service that is opened when it is first needed, once, also if several threads need it at a time."""

    def __init__(self, opening: Callable[[Any], T]) -> None:
        self._open, self._name, self.__doc__ = opening, opening.__name__, opening.__doc__

    def __get__(self, service: Any, owner: type) -> T:
        if service is None:
            return cast("T", self)
        with service.opening:
            if self._name not in service.__dict__:  # where Python looks first from then on
                service.__dict__[self._name] = self._open(service)
        return cast("T", service.__dict__[self._name])


class Service:
    """An open desk (`app.desk.interface.Desk`). Safe to use from any thread; only one process at a time may open a data
    folder for writing (see `app.storage.lock`). Raises DeskError, CacheError or RetrievalError with one clear line.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        model: Callable[[Settings], LanguageModel] | None = None,
        embedder: Callable[[Settings], Embedder] = lambda settings: SentenceEmbedder(settings.embedder),
        ranker: Callable[[Settings], StatementRanker] = lambda settings: StatementEncoder(find_ranker(settings)),
        upgrade: bool = True,
    ) -> None:
        """model, embedder, ranker: load them otherwise than the settings say. Called when they are first needed.
        upgrade: of the database, see `open_database`.
        """
        self.settings = settings
        self.opening = RLock()  # parts need other parts
        self._load_model, self._load_embedder = model or load_model_of, embedder
        self._load_ranker = ranker
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        self.database = open_database(settings.database_url, upgrade=upgrade)
        self.library = Library(self.database, settings.page_urls)
        self.history = history = History(self.database)
        # Methods of `Desk` that these have already.
        self.documents, self.conversations = self.library.documents, history.conversations
        self.collections = self.library.collection_sizes
        self.conversation = history.conversation
        self.care = care = ConversationCare(self.database)
        self.remove_last_turn = care.remove_last_turn
        self.delete_conversation, self.restore_conversation = care.delete_conversation, care.restore_conversation
        self.housekeeping = Housekeeping(care, self.drop_prefixes, settings.keep_days)
        self._handing_off = people = HandingOff(self.database, history, settings)
        self.handoff, self.handoffs = people.handoff, people.handoffs
        self.hand_off, self.to_person = people.hand_off, people.to_person
        self.hand_off_by_rule, self.end_handoff = people.hand_off_by_rule, people.end_handoff
        folders = SyncedFolderTable(self.database)
        self.synced = Synchronising(folders, Audit(self.database).record, self._ingest_synced, settings.data_dir)
        self._faq = FaqStore(self.database)
        self._in_flight = InFlight()
        self._examples_of: Retriever | None = None
        self._examples: list[str] = []
        self._ahead: ReadingAhead | None = None
        self._listeners: list[Callable[[Served], None]] = []
        history.listen(lambda answer, details: self._report(served_of(answer, details.queue_ms)))

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
        if "engine" in self.__dict__:
            self.engine.close()
        for thread in behind:
            thread.join()
        self.database.close()

    def end_answers(self) -> None:
        """Stop all answers, and record what was said so far."""
        if "_answering" in self.__dict__:
            self._answering.open.end(ENDING_S)

    @_Part
    def engine(self) -> Engine:
        """The running engine, with the model loaded."""
        settings = self.settings
        model = self._load_model(settings)
        disk = DiskTier(settings.modules_folder, settings.disk) if settings.disk else None
        if disk is not None:
            disk.clean_up()
        engine = Engine(
            model, memory=settings.memory, disk=disk, placement=settings.placement, slot=settings.slot_tokens
        )
        engine.store.keep(kept_modules(self.library))
        return engine.start()

    @_Part
    def search(self) -> Search:
        """The vector index with its embedder."""
        embedder = LastQuestionsEmbedder(self._load_embedder(self.settings))
        return Search(self.library, embedder, self.settings.index_path)

    @_Part
    def statements(self) -> StatementStore:
        """The statements of all passages, with the encoder that ranks them."""
        return StatementStore(self.library, self._load_ranker(self.settings))

    @_Part
    def prompts(self) -> PromptBuilder:
        """Builds prompts for the loaded model."""
        return PromptBuilder(self.engine.model.tokenizer.template, self.settings.system_text)

    @_Part
    def _answering(self) -> Answering:
        return Answering(
            self.settings,
            self.library,
            self.history,
            self.finder,
            self.engine,
            self.prompts,
            self._in_flight,
            self.policy,
            self.answer_mode,
            0.0 if self.calibration is None else self.calibration.bias_of(self.settings),
            SavingsMeter(self.engine, self.settings.savings_sample, SavingsSamples(self.database).record),
            self.curated,
        )

    @_Part
    def curated(self) -> CuratedAnswers:
        """The FAQ as questions see it."""
        return CuratedAnswers(self.settings, self._faq, self.library, self.search)

    @_Part
    def quality(self) -> Quality:
        """What agents do for the quality of answers."""
        publisher = Publisher(
            take_in=lambda file, progress: self.ingest([file], progress, collection=FAQ),
            forget=self._forget_faq,
            reload=self.curated.reload,
            vectors_of=self.curated.vectors_of,
            try_out=self._answering.try_out,
        )
        editor = FaqEditor(self._faq, self.settings.faq_file, publisher)
        explainer = Explainer(self._answering.questions, self.finder, self.curated)
        grouping = Grouping(self.search.embedder)
        return Quality(Transcripts(self.database), self._faq, editor, grouping, explainer.explain)

    @_Part
    def finder(self) -> Finder:
        """Search, and what judges its results, as fitted for this embedder and ranker."""
        name = self.settings.reranker
        reranker = None if name is None else CrossEncoderReranker(name)
        classifier = find_classifier(self.settings, self.search.embedder.name, self.statements.encoder.name)
        return Finder(self.library, self.search, self.statements, classifier, reranker)

    @_Part
    def calibration(self) -> Calibration | None:
        """The result of `warmdesk calibrate` for this model, if there is one. Raises DeskError."""
        return find_calibration(self.settings)

    @property
    def policy(self) -> Policy:
        """How passages are linked unless a question asks otherwise: the setting, else as calibrated, else fast."""
        if self.settings.policy != "auto":
            return self.settings.policy
        return "fast" if self.calibration is None else self.calibration.policy

    @property
    def answer_mode(self) -> AnswerMode:
        """How answers are made: the setting, else as calibrated, else checked."""
        if self.settings.answer_mode != "auto":
            return self.settings.answer_mode
        return "checked" if self.calibration is None else self.calibration.answer_mode

    @_Part
    def _tokenizer(self) -> ModelTokenizer:
        """The model's tokenizer; without `warm`, ingesting loads nothing else of the model."""
        if "engine" in self.__dict__ or self._load_model is not load_model_of:
            return self.engine.model.tokenizer
        return load_tokenizer(self.settings.model, converted=self.settings.models_folder)[0]

    @_Part
    def _warming(self) -> Warming:
        return Warming(self.library, self.engine, self.prompts, self._in_flight)

    @_Part
    def module_care(self) -> ModuleCare:
        """What an admin can do with one encoded passage."""
        return ModuleCare(self._warming, self._in_flight)

    @_Part
    def _ingestion(self) -> Ingestion:
        return Ingestion(
            self.library,
            self.search,
            self.statements,
            lambda: self._warming,
            lambda text: len(self._tokenizer.encode([Text(text=text)])),
            passage_tokens=self.settings.passage_tokens,
            neighbours=self.settings.neighbours,
        )

    @_Part
    def _uploads(self) -> Uploads:
        return Uploads(self.settings.uploads_folder, self._ingestion)

    def prepare(self) -> None:
        """Open everything a question needs, and load what its parts load at their first use."""
        self._answering.rehearse()
        remove_partial_uploads(self.settings.uploads_folder)

    def read_ahead(self, bars: Bars = no_bars, when_read: Callable[[], None] = lambda: None) -> None:
        """From now on let the model read in the background what it has not read; once. bars: show how far it is.
        when_read: called when everything has been read for the first time.
        """
        assert self._ahead is None
        self._ahead = ReadingAhead(self._warming, bars, when_read).start()

    def measure_savings(self) -> None:
        """From now on compute some answers a second time without reuse, while nobody waits; once."""
        self._answering.meter.start()

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
        path = find_document(self.library, name)
        forgotten = self._forgetting.forget(path)
        self._forgotten([path])
        if Path(path) == self.settings.faq_file.resolve():  # else its text would come back with the next pair
            self._faq.delete()
            Path(path).unlink(missing_ok=True)
            self.curated.reload()
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
        self._forgotten(paths)
        return forgotten

    def _forgotten(self, paths: Sequence[str]) -> None:
        """Let go of what else there is of documents: copies of their files, and text of answers that are measured."""
        if self.is_ready():
            self._answering.meter.clear()
        for path in paths:
            self._uploads.delete(Path(path))
        self._documents_changed()

    @property
    def _forgetting(self) -> Forgetting:
        return Forgetting(self._ingestion, self.history, self._in_flight)

    def _ingest_synced(self, folder: Path, collection: str, progress: Progress) -> IngestReport:
        return self.ingest([folder], progress, collection=collection, sync=True, warm=False)

    def passages(self, path: str, first: int, most: int) -> list[PassageState]:
        """Some passages of a document, in its order."""
        passages = self.library.passages_of(path, first, most)
        return passage_states(passages, Statistics(self.database), self._tiers())

    def _forget_faq(self, file: Path) -> None:
        if self.library.find(path := str(file.resolve())) is not None:
            self.forget(path)

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
        encoded = [one.num_tokens for one in self.library.module_sizes() if one.module_key is not None]
        seconds = sum(encoded) * (1 + neighbours) * self.engine.store.compute_cost.mean
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
    ) -> AnswerInProgress:
        """Start an answer. owner: see `app.domain.callers`. policy: see `app.domain.policies`; unset: the desk's.
        collections: only documents of these are searched; none: all. earlier: the past of a new conversation, which is
        used and not stored. Raises DeskError while a person answers.
        """
        if reuse not in get_args(Reuse):
            raise DeskError(f"reuse is {reuse!r}: it must be on, prefix or off", code="bad-reuse")
        self._handing_off.check_with_machine(conversation_id, owner)
        named = None if policy is None else policy_named(policy)
        return self._answering.ask(
            question, conversation_id, cast("Reuse", reuse), named, collections, owner=owner, earlier=earlier
        )

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
        self.history.feedback(message_id, value, self._kept(reason), owner=owner)

    def rename_conversation(self, conversation_id: str, title: str, owner: str = OPERATOR) -> None:
        """Give a conversation another title. Raises DeskError."""
        self.care.rename_conversation(conversation_id, self._kept(title), owner)

    def _kept(self, text: str) -> str:
        """What a customer writes, as it is stored."""
        return redact(text) if self.settings.redact else text

    def erase(self, owner: str) -> Erased:
        """Remove everything of an owner: conversations with all that belongs to them, and what was computed for them.
        Raises DeskError.
        """
        erased = self.care.erase(owner)
        self.housekeeping.drop({owner})
        if self.is_ready():
            self._answering.meter.clear()
        return erased

    def drop_prefixes(self, owner: str) -> bool:
        """Remove what was computed for an owner's questions; gives whether all of it is gone, or some is in use."""
        return "engine" not in self.__dict__ or self.engine.drop_prefixes(owner)

    # --- models alone --------------------------------------------------------------------------------------

    def complete(self, messages: Sequence[Said], options: PlainOptions, *, owner: str) -> PlainStream:
        """Start an answer of the language model alone; see `app.answering.plain`."""
        if options.temperature is None:
            options = replace(options, temperature=self.settings.temperature)
        stream = complete(self.engine, messages, options, owner, self._report)
        self._answering.open.add(stream)
        return stream

    def embed(self, texts: Sequence[str], *, as_questions: bool = False) -> Embedded:
        """Texts as the vectors that search compares."""
        embedder = self.search.embedder
        vectors = embedder.embed_queries(texts) if as_questions else embedder.embed_documents(texts)
        return Embedded(vectors=vectors, tokens=embedder.count_tokens(texts))

    def models(self) -> ModelNames:
        """The names of the models that are used, without the folders in which they lie."""
        embedder = self.search.embedder
        return ModelNames(
            language=public_name(self.engine.model.info.name),
            embedder=public_name(embedder.name),
            dimension=embedder.dimension,
        )

    def turns(self, conversation_id: str, owner: str = OPERATOR) -> list[Turn]:
        """All messages of a conversation, as its customer may see them."""
        turns = self.history.turns(conversation_id, owner)
        return turns if self.settings.show_agent_names else [replace(turn, author="") for turn in turns]

    # --- state ---------------------------------------------------------------------------------------------

    def overview(self) -> Overview:
        """The dashboard's numbers; without a running engine the device tier is empty."""
        settings, is_running = self.settings, "engine" in self.__dict__
        return replace(
            summarise(self.library, Statistics(self.database), self._tiers()),
            model=self.engine.model.info.name if is_running else settings.model or "bundled",
            device=settings.device,
            policy=self.policy,
            answer_mode=self.answer_mode,
            calibration="" if self.calibration is None else self.calibration.line(),
            reading=self.passages_read(),
        )

    def _tiers(self) -> Tiers:
        if "engine" in self.__dict__:
            return tiers_of(self.engine)
        return tiers_on_disk(self.settings.modules_folder, self.settings.disk)

    def usage_over_time(self, since: datetime, until: datetime, step: timedelta) -> Sequence[UsageSpan]:
        """What happened in each `step` between two times."""
        return Statistics(self.database).over_time(since, until, step)

    def savings(self, since: datetime, until: datetime) -> Savings:
        """What reuse saved between two times, as far as it was measured."""
        return summarise_savings(SavingsSamples(self.database).between(since, until))

    def memory_plan(self) -> MemoryPlan:
        """What other sizes of memory would have done for the latest answers."""
        used = Statistics(self.database).used_modules(ANSWERS)
        prompts = [[TracedModule(*module) for module in modules] for modules in used]
        return plan_memory(prompts, self.settings.memory, self.engine.model.info.kv.bytes_per_token)

    def source_file(self, message_id: str, rank: int, owner: str) -> Path | None:
        """The file of a document that an answer cites, if the desk still has both."""
        document = self.history.cited_document(message_id, rank, owner)
        if document is None or self.library.find(document) is None or not Path(document).is_file():
            return None
        if Path(document) == self.settings.faq_file.resolve():  # it has other customers' questions in it, too
            return None
        return Path(document)

    def examples(self) -> Sequence[str]:
        """Those of the settings, else those found in the documents as they are now. The first call looks for them and
        does not wait.
        """
        if self.settings.example_questions or not self.is_ready():
            return self.settings.example_questions
        snapshot = self.search.retriever
        with self.opening:
            if self._examples_of is not snapshot:
                self._examples_of, self._examples = snapshot, []
                threading.Thread(target=self._find_examples, name="examples", daemon=True).start()
            return self._examples

    def _find_examples(self) -> None:
        with suppress(DeskError):  # the desk was closed meanwhile
            self._examples = example_questions(self.library.headings(), self._answering.questions.answered_from)

    def passages_read(self) -> PassagesRead | None:
        """How far the model has read; None if it does not read ahead."""
        return None if self._ahead is None else self._ahead.state

    def load(self) -> Load:
        """What the desk holds and does now; cheap enough to be asked every few seconds."""
        counts = self.library.counts()
        if "engine" not in self.__dict__:
            return Load(model=public_name(self.settings.model or "bundled"), **asdict(counts))
        tiers, (running, waiting) = tiers_of(self.engine), self.engine.load()
        return Load(
            model=public_name(self.engine.model.info.name),
            running=running,
            waiting=waiting,
            **asdict(counts),
            num_bytes=tiers.num_bytes,
            capacity=tiers.capacity,
            evictions=tiers.evictions,
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
        return "_answering" in self.__dict__

    def missing(self) -> tuple[str, ...]:
        """What is not there that a question needs: "model", "engine", "database"."""
        is_running = "engine" in self.__dict__ and self.engine.is_running
        try:
            self.library.set_fact(CHECKED, f"{datetime.now(UTC):%Y-%m-%d %H:%M}")  # written once a minute at most
            is_writable = True
        except DeskError:
            is_writable = False
        parts = {"model": self.is_ready(), "engine": is_running, "database": is_writable}
        return tuple(name for name, is_there in parts.items() if not is_there)


def free_bytes(folder: Path) -> int:
    """Free space where a folder is or will be."""
    return shutil.disk_usage(next(place for place in (folder, *folder.parents) if place.exists())).free


def served_of(answer: Answer, queue_ms: float) -> Served:
    """What is counted of an answer of the desk."""
    return Served(outcome=answer.outcome, usage=answer.usage, timings=answer.timings, queue_ms=queue_ms)


def public_name(name: str) -> str:
    """A model's name without the folders of this machine: a hub name stays, of a path its last part."""
    path = Path(name)
    is_path = path.is_absolute() or name.startswith((".", "~")) or path.suffix == ".gguf" or len(path.parts) > 2
    return (path.stem if path.suffix == ".gguf" else path.name) if is_path else name
