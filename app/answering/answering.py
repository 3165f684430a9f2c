"""From a question to a recorded answer: history -> `prepare` -> engine -> checks -> `record`.

The question is stored before anything is computed, and the answer when it ends, even if the reader has left. If the
database is busy, full or unreachable, storing an answer is retried. Out of scope: the stored fields (`record`).
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Protocol, TypeVar
from weakref import WeakSet, finalize

from app.answering.checking import CheckedText
from app.answering.curated import CuratedAnswers
from app.answering.prepare import PreparedQuestion, QuestionPreparer, past_of, with_agents
from app.answering.record import AskedQuestion, finished, quotation, without_model
from app.answering.savings_meter import Sampled, SavingsMeter
from app.domain.answers import BETWEEN, Answer, LookUpTurn, Said
from app.domain.callers import OPERATOR, is_customer
from app.domain.errors import DeskError
from app.domain.setting_types import RECOMPUTATIONS, AnswerMode, Policy
from app.domain.settings import Settings
from app.grounding.grounding import AnswerChecker, Source
from app.knowledge.finder import Finder
from app.knowledge.prompts import PromptBuilder
from app.knowledge.warm import InFlight
from app.storage.history import AnswerDetails, History, PastMessage
from app.storage.library import Library
from cache.decoding.sampling import Sampling
from cache.engine.request import Completion, Generation, Request, Reuse, Usage
from cache.errors import CacheError, EngineFull, PromptError
from cache.memory.keys import PUBLIC_TENANT
from cache.prompt.parts import Text
from cache.prompt.tokenizer import run_tokens
from cache.serving.interface import EngineInterface


def said(generation: Generation) -> Iterator[str]:
    """Return the pieces of a generation. Raises CacheError, and DeskError if it ends without text because it was
    stopped or because a remote model returned none: an empty text would look like "the documents have no answer".
    """
    has_words = False
    for piece in generation:
        has_words = has_words or bool(piece)
        yield piece
    if has_words:
        return
    completion = generation.completion
    if completion.finish_reason == "cancelled":
        raise DeskError("the answer was stopped before it began", code="no-answer")
    if completion.silence:
        raise DeskError(completion.silence, code="engine")


PATIENCE_S = 60.0
FIRST_PAUSE_S = 0.25


def record_patiently(
    history: History, answer: Answer, details: AnswerDetails, is_ending: threading.Event, patience_s: float = PATIENCE_S
) -> None:
    """Store an answer, in the calling thread. patience_s: maximum time of retries. is_ending: set when the server
    stops; one last attempt follows at once. Raises the errors of `History.record_answer`.
    """
    deadline, pause = time.monotonic() + patience_s, FIRST_PAUSE_S
    while True:
        is_last = is_ending.is_set() or time.monotonic() >= deadline
        try:
            history.record_answer(answer, details)
            return
        except DeskError as error:
            if is_last or not error.is_of_database:
                raise
            log.warning("storing an answer failed and will be retried: %s", error)
        is_ending.wait(min(pause, max(0.0, deadline - time.monotonic())))
        pause *= 2


log = logging.getLogger(__name__)


T_co = TypeVar("T_co", covariant=True)


class AnswerStream(Protocol[T_co]):
    """A running answer. Iterating returns its text in pieces and may raise DeskError. `answer` may be read after the
    iteration has ended without an error. `cancel` may be called from any thread, repeatedly and after the end. It does
    not wait: the iteration ends soon, and `answer` is the text until then, stored with a notice. If there is no text
    yet, both raise DeskError (no-answer), and nothing is stored.
    """

    def __iter__(self) -> Iterator[str]: ...

    @property
    def answer(self) -> T_co: ...

    def cancel(self) -> None: ...


class OpenAnswer(Protocol):
    """A running answer that a stopping server can cancel. finish: record it, even if nobody reads it."""

    is_finished: threading.Event

    def cancel(self) -> None: ...

    def finish(self) -> None: ...


class AnswerInProgress:
    """The answer to one question (an `AnswerStream`), recorded when it ends."""

    def __init__(
        self,
        history: History,
        asked: AskedQuestion,
        running: tuple[Generation, CheckedText] | None,
        open_answers: "OpenAnswers",
    ) -> None:
        """running: the engine's answer and its checked text; None if the model is not asked."""
        self._history, self._asked, self._running = history, asked, running
        self._answer: Answer | None = None
        self._finishing = threading.Lock()
        self.is_finished = threading.Event()
        self._open = open_answers
        self._open.add(self)
        finalize(self, history.ended, asked.question_id)  # the reader may never iterate

    def __iter__(self) -> Iterator[str]:
        says = self._asked.prepared.decision.says
        if self._running is None:
            try:
                self._answer, details = without_model(self._asked)
                self._history.record_answer(self._answer, details)
            finally:
                self._ended()
            yield says
            yield from self._below()
            return
        generation, shown = self._running
        try:
            lead = says + BETWEEN if says else ""  # sent with the first words, because alone it is not an answer
            for piece in shown:
                yield lead + piece
                lead = ""
        except CacheError as error:
            if not shown.is_whole:
                raise engine_failed(error) from error
            log.warning("a quotation was shown, but the model could not read it: %s", error)
        except BaseException:  # the reader has left: store the text so far
            generation.cancel()
            raise
        finally:
            self.finish()
        yield from self._below()

    def _below(self) -> Iterator[str]:
        if (lookup := self._asked.lookup) is not None and lookup.below:
            yield BETWEEN + lookup.below

    @property
    def conversation_id(self) -> str:
        return self._asked.conversation_id

    def cancel(self) -> None:
        if self._running is not None:
            self._running[0].cancel()

    @property
    def answer(self) -> Answer:
        if self._answer is None:
            raise DeskError("the answer was stopped before it began", code="no-answer")
        return self._answer

    def finish(self) -> None:
        """Wait for the engine, and record the shown text. Runs once, also without a reader."""
        with self._finishing:
            if self._running is None or self.is_finished.is_set():
                return
            generation, shown = self._running
            try:
                completion = _completion(generation, shown)
                if shown.text or not (completion.finish_reason == "cancelled" or completion.silence):
                    self._answer, details = finished(completion, shown, self._asked)
                    record_patiently(self._history, self._answer, details, self._open.is_ending)
            except CacheError:
                return
            finally:
                self._ended()

    def _ended(self) -> None:
        is_withdrawn = bool(self._asked.replaces) and self._answer is None
        self._history.ended(self._asked.question_id, is_withdrawn=is_withdrawn)
        self._open.remove(self)
        self.is_finished.set()


def _completion(generation: Generation, shown: CheckedText) -> Completion:
    """Return the engine's completion; an empty one if the engine failed after a quotation. Raises CacheError."""
    try:
        return generation.completion
    except CacheError:
        if not (shown.is_whole and shown.text):
            raise
        return Completion(text="", finish_reason="stop", usage=Usage(prompt_tokens=0))


def engine_failed(error: CacheError) -> DeskError:
    codes = ((EngineFull, "engine-full"), (PromptError, "context-full"))
    code = next((code for kind, code in codes if isinstance(error, kind)), "engine")
    return DeskError(str(error), code=code, wait_s=error.wait_s)


class OpenAnswers:
    """The running answers. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.is_ending = threading.Event()
        self._answers: WeakSet[OpenAnswer] = WeakSet()  # weak: a requested answer may have no reader

    def add(self, answer: OpenAnswer) -> None:
        with self._lock:
            self._answers.add(answer)

    def remove(self, answer: OpenAnswer) -> None:
        with self._lock:
            self._answers.discard(answer)

    def end(self, patience_s: float, most_s: float = 8.0) -> None:
        """Stop all answers, and record their text so far. patience_s: time for all readers together to read the
        generated text; unread text is not recorded. most_s: time for recording, because an engine or a database that
        hangs must not keep the server from stopping.
        """
        self.is_ending.set()
        with self._lock:
            answers = list(self._answers)
        for answer in answers:
            answer.cancel()
        deadline = time.monotonic() + patience_s
        answers = [one for one in answers if not one.is_finished.wait(max(0.0, deadline - time.monotonic()))]
        finishing = [threading.Thread(target=_finish, args=(one,), daemon=True) for one in answers]
        for thread in finishing:  # one thread each, so that none waits for another
            thread.start()
        deadline = time.monotonic() + most_s
        for thread in finishing:
            thread.join(max(0.0, deadline - time.monotonic()))
        if left := sum(thread.is_alive() for thread in finishing):
            log.error("%d of the answers did not end within %g s and are not recorded", left, most_s)


def _finish(answer: OpenAnswer) -> None:
    try:
        answer.finish()
    except Exception as error:  # the other answers are still recorded
        log.error("an answer could not be recorded: %s", error)


REHEARSED = "How do I send something back?"


class Answering:
    """Answers questions with the parts of an open desk."""

    def __init__(
        self,
        settings: Settings,
        library: Library,
        history: History,
        finder: Finder,
        engine: EngineInterface,
        prompts: PromptBuilder,
        in_flight: InFlight,
        policy: Policy,
        answer_mode: AnswerMode,
        refusal_bias: float,
        meter: SavingsMeter,
        curated: CuratedAnswers | None = None,
    ) -> None:
        """policy: the default policy. answer_mode, refusal_bias: see `app.desk.calibration`."""
        self.settings, self.engine, self.policy, self.meter = settings, engine, policy, meter
        self.questions = QuestionPreparer(
            settings, library, finder, engine, prompts, in_flight, curated, numbers=answer_mode == "checked"
        )
        self._history, self._in_flight = history, in_flight
        self._answer_mode, self._opening = answer_mode, None
        self.open = OpenAnswers()
        if refusal_bias:
            refusal = run_tokens([Text(text=settings.refusal_text)], engine.tokenizer)
            self._opening = refusal[0], refusal_bias

    def ask(
        self,
        question: str,
        conversation_id: str | None,
        reuse: Reuse,
        policy: Policy | None = None,
        collections: Sequence[str] = (),
        *,
        owner: str,
        earlier: Sequence[Said] = (),
        replaces: str = "",
        lookup: LookUpTurn | None = None,
    ) -> AnswerInProgress:
        """Record a valid question, search, plan and submit a prompt. Arguments: see `Service.ask`. Raises DeskError."""
        started, arrived = time.perf_counter(), datetime.now(UTC)
        with self._in_flight.track():
            if conversation_id is None:
                past = past_of(earlier, self.settings)
            else:
                past = with_agents(self._history.past(conversation_id, owner, replaces))
            most = self.settings.conversations_kept if is_customer(owner) else None
            conversation_id = conversation_id or self._history.start_conversation(question, owner, most)
            question_id = self._history.record_question(conversation_id, question, arrived=arrived)
            is_free = reuse == "on" and not self.engine.info.is_elsewhere
            policy = (policy or self.policy) if is_free else "exact"
            running = None
            try:
                prepared = self.questions.prepare(question, past, collections)
                if prepared.plan is not None:
                    request = self.request(prepared, reuse, conversation_id, policy, owner)
                    generation = self.engine.submit(request)
                    self.meter.consider(Sampled(request, generation, policy, question_id))
                    running = generation, self.checked(generation, prepared)
            except BaseException:
                self._history.ended(question_id, is_withdrawn=bool(replaces))
                raise
        ids = {"conversation_id": conversation_id, "question_id": question_id, "replaces": replaces}
        asked = AskedQuestion(started=started, prepared=prepared, policy=policy, lookup=lookup, **ids)
        return AnswerInProgress(self._history, asked, running, self.open)

    def try_out(self, question: str) -> Answer:
        """Return the answer to the first question of a conversation. Nothing is stored or counted. Raises DeskError."""
        with self._in_flight.track():
            asked = self.asked(question)
            if asked.prepared.plan is None:
                return without_model(asked)[0]
            generation = self.engine.submit(self.request(asked.prepared, "on", None, self.policy))
        try:
            return self.read(generation, asked)
        except CacheError as error:
            raise engine_failed(error) from error

    def asked(self, question: str, past: Sequence[PastMessage] = ()) -> AskedQuestion:
        """Prepare a question outside of any conversation. Raises DeskError, CacheError."""
        started = time.perf_counter()
        prepared = self.questions.prepare(self.questions.valid(question), past)
        return AskedQuestion(started=started, prepared=prepared, policy=self.policy)

    def read(self, generation: Generation, asked: AskedQuestion) -> Answer:
        """Return the finished answer without recording it. Raises DeskError, CacheError."""
        shown = self.checked(generation, asked.prepared)
        deque(shown, maxlen=0)  # read it to the end
        return finished(generation.completion, shown, asked)[0]

    def rehearse(self) -> None:
        """Search and compute once without recording, so that the first customer does not wait for lazy loading. A slow
        or unreachable remote model server is logged and not waited for.
        """
        with suppress(DeskError):  # the prompt does not fit: every question will report this
            self.questions.prepare(REHEARSED, [])
        plan = self.engine.arrange([Text(text=REHEARSED)])
        generation = self.engine.submit(Request(plan=plan, sampling=Sampling(max_tokens=1), reuse="off"))
        if not self.engine.info.is_elsewhere:
            _ = generation.completion

    def request(
        self, prepared: PreparedQuestion, reuse: Reuse, session: str | None, policy: Policy, owner: str = OPERATOR
    ) -> Request:
        """Return the engine's request. Only the owner can reuse its prefix; modules of passages are shared."""
        plan, settings = prepared.plan, self.settings
        assert plan is not None
        _, given = self._quotation(prepared)
        sampling = Sampling(
            max_tokens=max(settings.answer_tokens, len(given)),
            temperature=settings.temperature,
            repetition_penalty=settings.repetition_penalty,
            given=given,
            opening=self._opening,
            ends_loops=not given,
        )
        return Request(
            plan=plan,
            sampling=sampling,
            reuse=reuse,
            recomputation=RECOMPUTATIONS[policy],
            session=session,
            tenant=owner,
            module_tenant=PUBLIC_TENANT,
        )

    def checked(self, generation: Generation, prepared: PreparedQuestion) -> CheckedText:
        headings = {one.passage.id: one.passage.heading_path for one in prepared.decision.results.passages}
        sources = [Source(one.text, "\n".join(headings[one.passage])) for one in prepared.sources]
        quoted, _ = self._quotation(prepared)
        return CheckedText(
            generation if quoted else said(generation),
            AnswerChecker(prepared.question, sources),
            refusal=self.settings.refusal_text,
            nothing=prepared.decision.nothing,
            answer_mode=self._mode_of(prepared),
            quotation=quoted,
        )

    def _quotation(self, prepared: PreparedQuestion) -> tuple[str, tuple[int, ...]]:
        """Return text and tokens of a quotation; nothing if the model uses its own words."""
        if prepared.plan is None or self._mode_of(prepared) != "quote":
            return "", ()
        info, shown = self.engine.info, prepared.decision.statements
        room = info.max_positions - prepared.plan.next_position
        return quotation(shown, self.settings.refusal_text, self.engine.tokenizer, min(info.stop_tokens), room)

    def _mode_of(self, prepared: PreparedQuestion) -> AnswerMode:
        """Return the answer's mode. An unsure answer is always quoted."""
        return "quote" if prepared.decision.outcome == "unsure" else self._answer_mode
