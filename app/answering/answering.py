"""One question to one answer: history -> `prepare` -> engine -> `stream` -> `record`.

The question is stored before anything is computed and the answer when it ends, also if the reader has left, so nothing
that was said is lost.
"""

import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime

from app.answering.check import CheckedText
from app.answering.curated import CuratedAnswers
from app.answering.earlier import past_of
from app.answering.past import with_agents
from app.answering.prepare import PreparedQuestion, QuestionPreparer
from app.answering.quote import choices_of
from app.answering.record import AskedQuestion, finished, without_model
from app.answering.said import said
from app.answering.savings_meter import Sampled, SavingsMeter
from app.answering.stream import AnswerInProgress, OpenAnswers, engine_failed
from app.domain.answers import Answer
from app.domain.callers import OPERATOR, is_customer
from app.domain.errors import DeskError
from app.domain.plain import Said
from app.domain.policies import RECOMPUTATIONS, AnswerMode, Policy
from app.domain.settings import Settings
from app.grounding.check import AnswerChecker
from app.knowledge.finder import Finder
from app.knowledge.in_flight import InFlight
from app.knowledge.prompts import PromptBuilder
from app.storage.history import History
from app.storage.library import Library
from cache.decoding.sampling import Sampling
from cache.engine.request import Generation, Request, Reuse
from cache.errors import CacheError
from cache.memory.keys import PUBLIC_TENANT
from cache.prompt.parts import Text
from cache.prompt.tokenizer import run_tokens
from cache.serving.interface import EngineInterface

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
        """policy: of answers for which no other one is asked. answer_mode, refusal_bias: see `app.desk.calibration`."""
        self.settings, self.engine, self.policy, self.meter = settings, engine, policy, meter
        self.questions = QuestionPreparer(settings, library, finder, engine, prompts, curated)
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
    ) -> AnswerInProgress:
        """Record a valid question, search, plan and submit. conversation_id, collections: of those there are; only
        documents of these collections, if any are given. owner: whose conversation it is. earlier: the past of a
        conversation that is not stored. replaces: the question in whose place this one is asked. Raises DeskError.
        """
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
        asked = AskedQuestion(started=started, prepared=prepared, policy=policy, **ids)
        return AnswerInProgress(self._history, asked, running, self.open)

    def try_out(self, question: str) -> Answer:
        """What a first question is answered now. Nothing is stored or counted. Raises DeskError."""
        started = time.perf_counter()
        question = self.questions.valid(question)
        with self._in_flight.track():
            prepared = self.questions.prepare(question, [])
            asked = AskedQuestion(started=started, prepared=prepared, policy=self.policy)
            if prepared.plan is None:
                return without_model(asked)[0]
            generation = self.engine.submit(self.request(prepared, "on", None, self.policy))
        shown = self.checked(generation, prepared)
        try:
            deque(shown, maxlen=0)  # to the end
        except CacheError as error:
            raise engine_failed(error) from error
        return finished(generation.completion, shown, asked)[0]

    def rehearse(self) -> None:
        """Search and compute once without recording anything, so that the first customer does not wait for what is
        loaded at its first use. For the server of a model elsewhere nobody waits: it may be slow, or away, and then the
        log says so.
        """
        with suppress(DeskError):  # a prompt that does not fit: every question will say so
            self.questions.prepare(REHEARSED, [])
        plan = self.engine.arrange([Text(text=REHEARSED)])
        generation = self.engine.submit(Request(plan=plan, sampling=Sampling(max_tokens=1), reuse="off"))
        if not self.engine.info.is_elsewhere:
            _ = generation.completion

    def request(
        self, prepared: PreparedQuestion, reuse: Reuse, session: str | None, policy: Policy, owner: str = OPERATOR
    ) -> Request:
        """How the engine is asked a question that has a plan: sampling, offered quotations, bias of the refusal. What
        is computed for it is found by its owner alone; the modules of passages are everybody's.
        """
        plan, engine, settings = prepared.plan, self.engine, self.settings
        assert plan is not None
        choices = None
        if self._mode_of(prepared) == "quote":
            room = engine.info.max_positions - plan.next_position
            shown, stop = prepared.decision.statements, min(engine.info.stop_tokens)
            choices = choices_of(shown, settings.refusal_text, engine.tokenizer, stop, room)
        sampling = Sampling(
            max_tokens=max(settings.answer_tokens, 0 if choices is None else choices.longest),
            temperature=settings.temperature,
            repetition_penalty=settings.repetition_penalty,
            choices=choices,
            opening=self._opening,
            ends_loops=choices is None,
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
        """An answer as it may be shown. Its iteration raises what `said` raises."""
        mode = self._mode_of(prepared)
        evidence = prepared.passages if mode == "checked" else []  # reading it takes a tenth of a second
        return CheckedText(
            said(generation),
            AnswerChecker(prepared.question, evidence),
            refusal=self.settings.refusal_text,
            nothing=prepared.decision.nothing,
            answer_mode=mode,
        )

    def _mode_of(self, prepared: PreparedQuestion) -> AnswerMode:
        """An answer that the desk is not sure of is quoted, whoever words the others."""
        return "quote" if prepared.decision.outcome == "unsure" else self._answer_mode
