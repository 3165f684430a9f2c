"""The parts of an open desk: database, models, index, and the objects that use them.

Each part is opened when it is first needed, so that listing documents loads no model.
"""

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Unpack, cast

from msgspec.structs import replace
from threadpoolctl import ThreadpoolController

from app.answering.answering import Answering
from app.answering.curated import CuratedAnswers
from app.answering.savings_meter import SavingsMeter
from app.desk.calibration import Calibration, answer_mode_of, find_calibration, find_classifier, find_ranker, policy_of
from app.domain.errors import DeskError
from app.domain.progress import in_own_thread
from app.domain.setting_types import AnswerMode, ModelServer, Policy, key_for
from app.domain.settings import Settings
from app.knowledge.finder import Finder, StatementStore
from app.knowledge.ingest import Ingestion
from app.knowledge.prompts import PromptBuilder
from app.knowledge.search import Search
from app.knowledge.uploads import Uploads
from app.knowledge.warm import InFlight, ModuleCare, Warming, kept_modules
from app.storage.data_folder import BegunWork
from app.storage.database import open_database
from app.storage.faq import FaqStore
from app.storage.files import SettingsFile
from app.storage.history import History
from app.storage.library import Library
from app.storage.statistics import Statistics
from cache.engine.request import Limits
from cache.memory.disk import DiskTier
from cache.model.source import bundled_gguf, load_tokenizer, placement_problem
from cache.prompt.parts import Text
from cache.prompt.tokenizer import ChatTokenizer
from cache.remote.remote_engine import ELSEWHERE, RemoteEngine
from cache.remote.reply import ServerSpec
from cache.remote.text_tokens import TextTokenizer
from cache.serving.child_process import ChildProcess, usable_processors
from cache.serving.engine_process import EngineProcess
from cache.serving.interface import EngineInterface
from cache.serving.messages import EngineSpec
from retrieval.ranking.encoder import StatementEncoder
from retrieval.search.embedding import Embedder, OneQuestionEmbedder, SentenceEmbedder
from retrieval.search.minilm import Compiled
from retrieval.search.retriever import CrossEncoderReranker

if TYPE_CHECKING:
    from cache.model.language_model import Model

T = TypeVar("T")
THREADS_BESIDE = 1
"""Threads for search in the server's process, if the engine has its own process. More would slow down decoding. Not
used with a reranker, which needs more threads.
"""


def load_model_of(settings: Settings) -> "Model":
    from cache.model.loading import load_model  # PyTorch takes seconds and 150 MB

    return load_model(
        settings.model,
        device=settings.device,
        converted=settings.models_folder,
        adapter=settings.adapter_folder,
        weights=settings.weights,
    )


def load_embedder_of(settings: Settings) -> Embedder:
    return SentenceEmbedder(settings.embedder, compiled_for(settings))


def load_ranker_of(settings: Settings) -> StatementEncoder:
    return StatementEncoder(find_ranker(settings), compiled_for(settings))


def compiled_for(settings: Settings) -> Compiled:
    return Compiled(settings.models_folder, settings.threads or usable_processors())


def limits_of(settings: Settings) -> Limits:
    return Limits(
        running=settings.questions_at_once, waiting=settings.questions_waiting, seconds=settings.answer_seconds
    )


def engine_spec(settings: Settings) -> EngineSpec:
    return EngineSpec(
        model=settings.model,
        converted=settings.models_folder,
        adapter=settings.adapter_folder,
        weights=settings.weights,
        device=settings.device,
        memory=settings.device_memory,
        host_memory=settings.host_memory,
        disk=settings.disk,
        disk_floor=settings.disk_floor_bytes,
        shared=settings.shared_modules,
        kv_storage=settings.kv_storage,
        modules=settings.modules_folder,
        placement=settings.placement,
        limits=limits_of(settings),
        threads=settings.threads,
        log_format=settings.log_format,
        log_level=settings.log_level,
    )


def remote_engine(settings: Settings, server: ModelServer) -> RemoteEngine:
    folder = settings.modules_folder
    left_over = DiskTier(folder, settings.disk) if folder.is_dir() else None
    in_file = SettingsFile(settings.settings_file).settings().model
    spec = ServerSpec(
        url=server.url,
        name=server.name,
        key=key_for(server, os.environ, is_of_file=in_file == settings.model),
        context_tokens=settings.context_tokens,
        first_token_s=settings.first_token_seconds,
        session_headers=settings.session_headers,
        cache_salt=settings.send_cache_salt,
        cache_key=settings.send_prompt_cache_key,
    )
    return RemoteEngine(spec, limits_of(settings), left_over)


def start_cluster(settings: Settings, spec: EngineSpec, tell: Callable[[str], None]) -> EngineInterface:
    """Start the engines. tell: called with each step. Raises CacheError, and DeskError if Ray is missing."""
    try:
        from cache.cluster.deployment import LOCAL, ClusterOptions, start_cluster_engine
    except ImportError as error:
        how = "run pip install '.[cluster]' in Warmdesk's source folder"
        raise DeskError(f"a cluster of engines needs Ray: {how}", code="no-ray") from error
    if spec.shared is None and settings.cluster == LOCAL:
        spec = replace(spec, shared=str(settings.modules_folder))
    elif spec.shared is None:
        spec = replace(spec, disk=0)  # on a machine without a running engine, nothing would delete the files
    options = ClusterOptions(
        address=settings.cluster or LOCAL,
        engines=settings.cluster_engines,
        most=settings.cluster_engines_most or settings.cluster_engines,
        ongoing=settings.cluster_engine_load,
        waiting=settings.questions_waiting,
    )
    return start_cluster_engine(spec, options, tell)


class part(Generic[T]):
    """A property that opens a part of the service once, at its first use. Safe to use from any thread."""

    def __init__(self, opening: Callable[[Any], T]) -> None:
        self._open, self._name, self.__doc__ = opening, opening.__name__, opening.__doc__

    def __get__(self, service: Any, owner: type) -> T:
        if service is None:
            return cast("T", self)
        with service.opening.setdefault(self._name, RLock()):  # one lock for each part
            if self._name not in service.__dict__:  # Python looks here first from then on
                service.__dict__[self._name] = self._open(service)
        return cast("T", service.__dict__[self._name])


class Loading(TypedDict, total=False):
    """Options for loading parts. model, embedder, ranker: loaders instead of the default ones, for the first use.
    upgrade: see `open_database`. may_start_process: if the settings allow it, the engine gets its own process; else a
    thread. process: an already started process for the engine.
    """

    model: "Callable[[Settings], Model]"
    embedder: Callable[[Settings], Embedder]
    ranker: Callable[[Settings], StatementEncoder]
    upgrade: bool
    may_start_process: bool
    process: ChildProcess | None


class Parts:
    """The parts of a desk. Each part is opened at its first use."""

    def __init__(self, settings: Settings, **loading: Unpack[Loading]) -> None:
        self.settings = settings
        self.opening: dict[str, RLock] = {}
        self.awaited = ""
        self._load_model = loading.get("model", load_model_of)
        self._load_embedder = loading.get("embedder", load_embedder_of)
        self._load_ranker = loading.get("ranker", load_ranker_of)
        self.is_elsewhere = settings.model_server is not None
        may_start = loading.get("may_start_process", False) and not self.is_elsewhere
        self._process = loading.get("process")
        self._has_cluster = settings.cluster is not None and may_start
        self._has_process = (settings.engine_process or self._has_cluster) and may_start
        self._threads = THREADS_BESIDE if self._has_process and settings.reranker is None else settings.threads
        self.database = open_database(settings.database_url, upgrade=loading.get("upgrade", True))
        self.library = Library(self.database, settings.page_urls)
        self.history = History(self.database, timedelta(seconds=settings.answer_seconds))
        self._faq = FaqStore(self.database)
        self.begun = BegunWork(settings.data_dir)
        self._in_flight = InFlight()

    def is_open(self, name: str) -> bool:
        return name in self.__dict__

    def is_ready(self) -> bool:
        """Return whether all parts that answer a question are open. Opens none."""
        return self.is_open("_answering")

    def _set_threads(self) -> None:
        """Set the number of PyTorch's threads, if PyTorch is imported. numpy gets one thread: its products are small,
        and more threads would wait busily for them (reading passages would cost a third more).
        """
        ThreadpoolController().select(prefix="libscipy_openblas").limit(limits=1)
        if self._threads is not None and (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(self._threads)

    def _set_awaited(self, awaited: str) -> None:
        """Store the step of the start that is in progress; "" if there is none."""
        self.awaited = awaited

    @part
    def engine(self) -> EngineInterface:
        if (server := self.settings.model_server) is not None:
            return remote_engine(self.settings, server)
        spec = engine_spec(self.settings)
        engine: EngineInterface
        if self._has_cluster:
            engine = start_cluster(self.settings, spec, self._set_awaited)
        elif self._has_process:
            engine = EngineProcess(spec, self._process)
        else:
            from cache.serving.local_engine import start_engine  # imports PyTorch

            self._set_threads()
            engine = start_engine(self._load_model(self.settings), spec)
        engine.keep(kept_modules(self.library))
        return engine

    @part
    def search(self) -> Search:
        embedder = OneQuestionEmbedder(self._load_embedder(self.settings))
        self._set_threads()
        return Search(self.library, embedder, self.settings.index_path)

    @part
    def statements(self) -> StatementStore:
        ranker = self._load_ranker(self.settings)
        self._set_threads()
        return StatementStore(self.library, ranker)

    @part
    def prompts(self) -> PromptBuilder:
        return PromptBuilder(self.engine.tokenizer.template, self.settings.system_text)

    @part
    def _answering(self) -> Answering:
        engine = in_own_thread(lambda: self.engine)  # loads its model while search loads its own models
        return Answering(
            self.settings,
            self.library,
            self.history,
            self.finder,
            engine.result(),
            self.prompts,
            self._in_flight,
            self.policy,
            self.answer_mode,
            0.0 if self.calibration is None else self.calibration.bias_of(self.settings),
            SavingsMeter(self.engine, self.settings.savings_sample, Statistics(self.database).add_sample),
            self.curated,
        )

    @part
    def curated(self) -> CuratedAnswers:
        return CuratedAnswers(self.settings, self._faq, self.library, self.search)

    @part
    def finder(self) -> Finder:
        name = self.settings.reranker
        reranker = None if name is None else CrossEncoderReranker(name)
        self._set_threads()
        classifier = find_classifier(self.settings, self.search.embedder.name, self.statements.encoder.name)
        return Finder(self.library, self.search, self.statements, classifier, reranker)

    @part
    def calibration(self) -> Calibration | None:
        return find_calibration(self.settings)

    @property
    def policy(self) -> Policy:
        return policy_of(self.settings, self.calibration)

    @property
    def answer_mode(self) -> AnswerMode:
        return answer_mode_of(self.settings, self.calibration)

    @part
    def _tokenizer(self) -> ChatTokenizer:
        """Return the model's tokenizer. Ingesting without `warm` loads nothing else of the model."""
        if self.is_elsewhere:
            return TextTokenizer()
        if self._has_engine:
            return self.engine.tokenizer
        return load_tokenizer(self.settings.model, converted=self.settings.models_folder)

    def _neighbours(self) -> int:
        """Return the number of neighbours of each passage; 0 if the model is not position-independent. With a GGUF
        file, this is known before its model is loaded.
        """
        name = self.settings.model
        if not self.settings.neighbours or self.is_elsewhere:
            return 0
        if self._has_engine or not (name is None or name.endswith(".gguf")):
            moves = self.engine.info.is_position_independent
        else:
            moves = not placement_problem(bundled_gguf() if name is None else Path(name).expanduser())
        return self.settings.neighbours if moves else 0

    @property
    def _has_engine(self) -> bool:
        return self.is_open("engine") or self._load_model is not load_model_of

    @part
    def _warming(self) -> Warming:
        return Warming(self.library, self.engine, self.prompts, self._in_flight)

    @part
    def module_care(self) -> ModuleCare:
        if self.is_elsewhere:
            raise DeskError(f"{ELSEWHERE}: its memory cannot be changed here", code="runs-elsewhere")
        return ModuleCare(self._warming, self._in_flight)

    @part
    def _ingestion(self) -> Ingestion:
        return Ingestion(
            self.library,
            self.search,
            self.statements,
            lambda: self._warming,
            lambda text: len(self._tokenizer.encode([Text(text=text)])),
            passage_tokens=self.settings.passage_tokens,
            neighbours=self._neighbours,
            names={self.settings.faq_file.resolve(): self.settings.faq_document},
        )

    @part
    def _uploads(self) -> Uploads:
        return Uploads(self.settings.uploads_folder, self._ingestion, self.begun)
