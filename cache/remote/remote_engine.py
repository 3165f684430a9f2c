"""An engine whose model runs in another server: vLLM, SGLang, llama.cpp, Ollama, or a hosted service.

Prompts are arranged as for a local engine, in ids that contain their text (`text_tokens`), and sent as messages. A
question is sent even if the server was unreachable before, so a restarted server is used at once. This engine has no
modules or prefixes. It does not use files of an earlier local engine, but deletion removes them.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Sequence, Set
from concurrent.futures import Future
from contextlib import aclosing, suppress
from typing import Any

import httpx

from cache.engine.request import (
    Completion,
    Encoded,
    FinishReason,
    Generation,
    Limits,
    ModuleUse,
    Request,
    Timings,
    Usage,
)
from cache.engine.restarts import SHUT_DOWN
from cache.errors import CacheError, EngineFull, EngineStopped, ServerFailed
from cache.memory.disk import DiskTier, TierContents
from cache.memory.keys import PUBLIC_TENANT, ModuleCheck, PrefixUse, digest
from cache.memory.kv_shape import KVShape
from cache.model.info import ModelInfo
from cache.prompt.parts import Text, TextModule
from cache.prompt.plan import Placement, Plan, Segment, arrange, module_segment
from cache.remote.chat_server import ChatServer, ServerFacts, headers_of
from cache.remote.reply import CLOSE, Refusal, Reply, ServerSpec, silence, thinks_aloud, thinks_too_long
from cache.remote.text_tokens import STOP, TextTokenizer, messages_of
from cache.serving.exchange import Told


class ServerAnswer(Generation):
    """A generation that runs as a task of an event loop. submitted: time of submission (`time.perf_counter`)."""

    def __init__(self, request: Request, stop: Callable[["ServerAnswer"], None]) -> None:
        """stop: called by `cancel` with this answer."""
        super().__init__()
        self.request, self.plan, self.reply = request, request.plan, Reply()
        self.submitted = time.perf_counter()
        self.begun = self.first = 0.0
        self.silence = ""
        self.task: asyncio.Task[FinishReason] | None = None
        self._stop = stop

    def cancel(self) -> None:
        """Close the connection, so that the server also stops generating."""
        super().cancel()
        self._stop(self)

    async def run(self, server: ChatServer, spec: ServerSpec, tokenizer: TextTokenizer) -> FinishReason:
        """Generate the answer. If the server reports that the prompt is too long, drop the first passages. Raises
        Refusal and CacheError.
        """
        self.begun = time.perf_counter()
        while True:
            body = server.bodies.of(self.request, messages_of(self.plan, tokenizer))
            try:
                async with aclosing(server.events(body, headers_of(self.request, spec))) as events:
                    async for event in events:
                        if piece := self.reply.take(event):
                            if CLOSE in self.reply.text:  # the server puts the start tag into the prompt
                                raise CacheError(thinks_aloud(spec))
                            self.first = self.first or time.perf_counter()
                            self.deliver(piece)
                break
            except Refusal as refusal:
                shorter = shortened(self.plan)
                if not refusal.is_too_long or self.reply.text or shorter is None:
                    raise
                self.plan = shorter
        self.silence = "" if self.reply.text.strip() else silence(spec, self.reply)
        return self.reply.finish_reason

    def completed(self, finish_reason: FinishReason) -> Completion:
        now = time.perf_counter()
        begun, first = self.begun or now, self.first or now
        return Completion(
            text=self.reply.text,
            finish_reason=finish_reason,
            usage=self.reply.usage,
            modules=modules_of(self.plan),
            timings=Timings(
                queue=(begun - self.submitted) * 1e3,
                prefill=(first - begun) * 1e3,
                ttft=(first - self.submitted) * 1e3,
                total=(now - self.submitted) * 1e3,
            ),
            silence=self.silence,
        )


def quoted(request: Request, tokenizer: TextTokenizer) -> Generation:
    """Return the given answer of a request as its generation. Nothing is sent to the server."""
    generation, text = Generation(), tokenizer.decode(request.sampling.given[:-1])
    generation.deliver(text)
    generation.deliver(
        Completion(text=text, finish_reason="stop", usage=Usage(prompt_tokens=0), modules=modules_of(request.plan))
    )
    return generation


def modules_of(plan: Plan) -> tuple[ModuleUse, ...]:
    return tuple(
        ModuleUse(name=span.segment.name, tokens=len(span.tokens), position=span.start, source="elsewhere")
        for span in plan.spans
        if span.segment is not None
    )


def shortened(plan: Plan) -> Plan | None:
    """Return a prompt without the first third of its passages; None if it has no passages. The first module is the
    system text, not a passage.
    """
    passages = plan.segments()[1:]
    left_out = passages[: -(-len(passages) // 3)]
    return Plan(spans=tuple(span for span in plan.spans if span.segment not in left_out)) if left_out else None


ELSEWHERE = "the language model is remote"
NOT_HERE = f"{ELSEWHERE}: only its server manages its memory"
ASSUMED_CONTEXT = 4096  # tokens if the context length is unknown: small enough for any usual server
FRESH_S, PATIENCE_S = 2.0, 12.0  # seconds for which a server's facts are valid, and seconds to wait for them
NO_KV = KVShape(layers=0, kv_heads=0, head_dim=0, dtype="float32")
BUSY = "the server is busy: too many questions are waiting, try again soon"
log = logging.getLogger(__name__)


class RemoteEngine:
    """An `EngineInterface` for a model on a server. problem: why the server is unreachable, as last known, or empty."""

    num_restarts, num_shortages, module_room, seconds_per_token = 0, 0, 0, 0.0

    def __init__(
        self,
        spec: ServerSpec,
        limits: Limits,
        left_over: DiskTier | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Check the server once; it may be unreachable. left_over: module files of an earlier local engine. transport:
        replaces the network in tests.
        """
        self._spec, self._limits, self._left_over, self.tokenizer = spec, limits, left_over, TextTokenizer()
        self._server, self._slots = ChatServer(spec, transport), asyncio.Semaphore(limits.running)
        self.has_key, self.problem = spec.key is not None, ""
        self._facts, self._misses_model = ServerFacts(), False
        self._looked, self._looking = 0.0, threading.Lock()
        self._open: set[ServerAnswer] = set()
        self._lock = threading.Lock()
        self._is_closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="model-server", daemon=True)
        self._thread.start()
        self._look()

    def close(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        for answer in list(self._open):
            self._stop(answer)
        self.settle()
        for last in (self._server.close(), self._loop.shutdown_asyncgens()):
            self._in_loop(last).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # --- prompts ---------------------------------------------------------------------------------------------

    @property
    def info(self) -> ModelInfo:
        """Properties of the model. max_positions: context length in tokens, or ASSUMED_CONTEXT."""
        spec = self._spec
        return ModelInfo(
            name=spec.name,
            fingerprint=digest("elsewhere", spec.url, spec.name),
            position_scheme="none",
            max_positions=spec.context_tokens or self._facts.context_tokens or ASSUMED_CONTEXT,
            vocabulary=0,
            kv=NO_KV,
            stop_tokens=frozenset({STOP}),
            is_elsewhere=True,
        )

    def arrange(
        self, parts: Sequence[TextModule | Text], placement: Placement | None = None, slot: int | None = None
    ) -> Plan:
        """Arrange modules and texts contiguously. The placement is ignored."""
        return arrange(parts, self.tokenizer, position_independent=False, max_positions=self.info.max_positions)

    def segment(self, module: TextModule) -> Segment:
        return module_segment(module, self.tokenizer, room=0)

    # --- answers ---------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> Generation:
        """Send a request. Raises EngineStopped, and ValueError for a teacher-forced request."""
        if request.teacher_forced:
            raise ValueError(f"{ELSEWHERE}: it does not support teacher forcing")
        if request.sampling.given:
            return quoted(request, self.tokenizer)
        answer = ServerAnswer(request, self._stop)
        with self._lock:
            if self._is_closed:
                raise EngineStopped(SHUT_DOWN)
            if len(self._open) >= self._limits.running + self._limits.waiting:
                answer.deliver(EngineFull(BUSY))
                return answer
            self._open.add(answer)
            self._loop.call_soon_threadsafe(self._begin, answer)
        return answer

    def compute_idle(self, request: Request) -> Generation:
        """End the generation with an error: the savings of a remote model cannot be measured."""
        generation = Generation()
        generation.deliver(CacheError(NOT_HERE))
        return generation

    def settle(self) -> None:
        with self._lock:
            answers = list(self._open)
        for answer in answers:
            with suppress(CacheError):
                _ = answer.completion

    @property
    def is_idle(self) -> bool:
        return not self._open

    def load(self) -> tuple[int, int]:
        with self._lock:
            running = sum(answer.begun > 0 for answer in self._open)
            return running, len(self._open) - running

    # --- modules (there are none) -----------------------------------------------------------------------------

    def key(self, segment: Segment, tenant: str = PUBLIC_TENANT) -> str:
        return digest("elsewhere", tenant, segment.name, repr(segment.tokens))

    def encode(self, segments: Sequence[Segment], tenant: str = PUBLIC_TENANT) -> Future[Encoded]:
        """Return a finished result: no module is encoded, none fails."""
        done: Future[Encoded] = Future()
        done.set_result(Encoded(0, {}))
        return done

    def prefetch(self, segments: Sequence[Segment], tenant: str = PUBLIC_TENANT) -> Told:
        return Told(lambda: None)

    def forget(self, keys: Set[str]) -> int:
        """Remove module files of an earlier local engine. Returns their number. A server's cache expires by itself."""
        if self._left_over is None:
            return 0
        return sum(self._left_over.remove(key) for key in keys if key in self._left_over)

    def keep(self, keys: Set[str]) -> None:
        pass

    def drop_prefixes(self, tenant: str) -> bool:
        return True

    def modules(self, tenant: str) -> frozenset[str]:
        headers = [] if self._left_over is None else self._left_over.headers()
        return frozenset(header.key for header in headers if header.tenant == tenant)

    def modules_of_prefixes(self) -> frozenset[str]:
        return frozenset()

    def bring_to_device(self, segment: Segment) -> None:
        raise CacheError(NOT_HERE)

    def evict(self, key: str) -> bool:
        return True

    def verify(self, segment: Segment) -> ModuleCheck:
        raise CacheError(NOT_HERE)

    def contents(self, with_modules: bool = True) -> TierContents:
        return TierContents()

    def prefix_uses(self, limit: int) -> list[PrefixUse]:
        return []

    def flush(self) -> None:
        pass

    # --- in the event loop -----------------------------------------------------------------------------------

    def _begin(self, answer: ServerAnswer) -> None:
        answer.task = self._loop.create_task(self._run(answer))
        answer.task.add_done_callback(lambda task: self._end(answer, task))

    async def _run(self, answer: ServerAnswer) -> FinishReason:
        try:
            async with asyncio.timeout(self._limits.seconds), self._slots:
                return await answer.run(self._server, self._spec, self.tokenizer)
        except TimeoutError as error:
            if answer.reply.text:
                return "timeout"
            assert self._limits.seconds is not None
            if answer.reply.has_thoughts:
                raise CacheError(thinks_too_long(self._spec, self._limits.seconds)) from error
            busy = f"the question has waited {self._limits.seconds:g} s: the server is busy, try again soon"
            raise EngineFull(busy) from error

    def _end(self, answer: ServerAnswer, task: asyncio.Task[FinishReason]) -> None:
        with self._lock:
            self._open.discard(answer)
        error = None if task.cancelled() else task.exception()
        if task.cancelled() and self._is_closed:
            answer.deliver(EngineStopped(SHUT_DOWN))
        elif error is None:
            self._found("")
            answer.deliver(answer.completed("cancelled" if task.cancelled() else task.result()))
        else:
            known = self._as_known(error)
            if isinstance(known, ServerFailed):
                self._misses_model = isinstance(error, Refusal) and error.status == httpx.codes.NOT_FOUND
                self._found(str(known))
            answer.deliver(known)

    def _as_known(self, error: BaseException) -> CacheError:
        if isinstance(error, Refusal):
            return error.as_error(self._spec, self._facts.models)
        if isinstance(error, CacheError):
            return error
        log.error("a question to the model's server failed", exc_info=error)
        return CacheError("the question could not be sent to the model's server: ask again (the log has the cause)")

    def _stop(self, answer: ServerAnswer) -> None:
        with suppress(RuntimeError):  # the loop is closed, so the answer has ended
            self._loop.call_soon_threadsafe(lambda: answer.task is not None and answer.task.cancel())

    # --- state of the server ---------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Return whether the server was reachable and accepted key and model, not longer than FRESH_S ago."""
        if self._is_closed:
            return False
        with self._looking:
            if time.monotonic() - self._looked > FRESH_S:
                self._look()
        return not self.problem

    @property
    def context_tokens(self) -> int | None:
        return self._facts.context_tokens

    def _look(self) -> None:
        try:
            self._facts = self._in_loop(self._server.look()).result(PATIENCE_S)
            self._misses_model &= self._spec.name not in self._facts.models
            self._found(self.problem if self._misses_model else "")
        except (CacheError, TimeoutError) as error:
            self._found(str(error) or f"the model's server {self._spec.url} does not report its state")
        self._looked = time.monotonic()

    def _found(self, problem: str) -> None:
        """Store the problem, or "" for none. Logs once that the server is unreachable, and once that it is back."""
        if problem and not self.problem:
            log.warning("%s", problem)
        elif self.problem and not problem:
            log.warning("the model's server %s is available again", self._spec.url)
        self.problem = problem

    def _in_loop(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)
