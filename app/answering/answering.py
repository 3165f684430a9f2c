"""One question to one answer: history -> retrieve -> plan prompt -> engine -> stream -> record.

The question is stored before anything is computed and the answer when it ends, also when the reader has left, so
nothing that was said is lost. Numbers beside an answer are what the engine counted while it ran.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from app.answering.checking import Checked
from app.answering.citing import cite
from app.answering.quoting import choices_of
from app.domain.answers import Answer, AnswerTimings, AnswerUsage, Citation, UsedModule
from app.domain.documents import StoredPassage
from app.domain.errors import DeskError
from app.domain.policies import RECOMPUTATIONS, AnswerMode, Policy
from app.domain.settings import Settings
from app.knowledge.finder import Finder, FoundPassage, SearchResults
from app.knowledge.in_flight import InFlight
from app.knowledge.prompts import PassageText, PromptBuilder, PromptTurn
from app.storage.answer_rows import AnswerDetails, ModuleDetails
from app.storage.history import History, PastMessage, new_id
from app.storage.library import Library
from cache.engine.constraints import Choices
from cache.engine.engine import Engine
from cache.engine.request import Completion, Generation, Request, Reuse
from cache.engine.sampling import Sampling
from cache.errors import CacheError, PromptError
from cache.prompt.parts import Text
from cache.prompt.plan import Plan
from cache.prompt.tokenizer import run_tokens
from retrieval.documents.document import with_headings

OLDER_TURNS_LEFT_OUT = "This conversation is longer than the model can read: its oldest questions are left out."
QUOTED = "Quoted from the help pages."
CUT = "The answer was cut at its length limit."
STOPPED = "The answer was stopped before its end."


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What a question needs from the documents. plan: None if they do not answer it. in_prompt: every passage of the
    prompt by its module's name.
    """

    results: SearchResults
    in_prompt: dict[str, StoredPassage]
    plan: Plan | None
    retrieve_ms: float
    notice: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question on its way to the engine."""

    started: float
    conversation_id: str
    question_id: str
    question: str
    prepared: Prepared
    policy: Policy


class Answering:
    """Answers questions with the parts of an open desk."""

    def __init__(
        self,
        settings: Settings,
        library: Library,
        history: History,
        finder: Finder,
        engine: Engine,
        prompts: PromptBuilder,
        in_flight: InFlight,
        policy: Policy,
        answer_mode: AnswerMode,
        refusal_bias: float,
    ) -> None:
        """policy: of answers for which no other one is asked. answer_mode, refusal_bias: see `calibration`."""
        self.settings, self.library, self.history = settings, library, history
        self.finder, self.engine, self.prompts, self.in_flight = finder, engine, prompts, in_flight
        self.policy, self.answer_mode, self.refusal_bias = policy, answer_mode, refusal_bias

    def ask(
        self,
        question: str,
        conversation_id: str | None,
        reuse: Reuse,
        policy: Policy | None = None,
        collections: Sequence[str] = (),
    ) -> Stream:
        """Retrieve, plan and submit. collections: only documents of these, if any are given. Raises DeskError for a
        question that cannot be asked.
        """
        started = time.perf_counter()
        question = self.valid(question)
        past = [] if conversation_id is None else self.history.past(conversation_id)
        if conversation_id is not None and not past:
            raise DeskError(f"there is no conversation {conversation_id!r}", code="conversation-unknown")
        if unknown := set(collections) - set(self.library.collections() if collections else ()):
            raise DeskError(
                f"there is no collection {sorted(unknown)[0]!r}: `warmdesk documents` names those there are",
                code="collection-unknown",
            )
        conversation_id = conversation_id or self.history.start_conversation(question)
        question_id = self.history.record_question(conversation_id, question)
        policy = (policy or self.policy) if reuse == "on" else "exact"
        with self.in_flight.track():
            prepared = self.prepare(question, past, collections)
            generation = None
            if prepared.plan is not None:
                generation = self.engine.submit(self.request(prepared, question, reuse, conversation_id, policy))
        asked = Asked(
            started=started,
            conversation_id=conversation_id,
            question_id=question_id,
            question=question,
            prepared=prepared,
            policy=policy,
        )
        return Stream(self, asked, generation)

    def prepare(self, question: str, past: Sequence[PastMessage], collections: Sequence[str] = ()) -> Prepared:
        """Retrieve and plan; nothing is computed or recorded. Raises DeskError if the prompt does not fit."""
        started = time.perf_counter()
        results = self._find(question, past, collections)
        retrieve_ms = (time.perf_counter() - started) * 1e3
        if not results.passages or results.relevance < self.refuse_below:
            return Prepared(results=results, in_prompt={}, plan=None, retrieve_ms=retrieve_ms)
        turns, in_prompt = self._turns(past, results.passages, question)
        plan, dropped = self._fit(turns)
        return Prepared(
            results=results,
            in_prompt=in_prompt,
            plan=plan,
            retrieve_ms=retrieve_ms,
            notice=OLDER_TURNS_LEFT_OUT if dropped else None,
        )

    def request(self, prepared: Prepared, question: str, reuse: Reuse, session: str | None, policy: Policy) -> Request:
        """A request with the desk's settings for answers; prepared has a plan."""
        plan = prepared.plan
        assert plan is not None
        choices = self._choices(prepared.results, plan) if self.answer_mode == "quote" else None
        sampling = Sampling(
            max_tokens=max(self.settings.answer_tokens, 0 if choices is None else choices.longest),
            temperature=self.settings.temperature,
            repetition_penalty=self.settings.repetition_penalty,
            choices=choices,
            opening=(self._refusal_token, self.refusal_bias) if self.refusal_bias else None,
        )
        return Request(plan=plan, sampling=sampling, reuse=reuse, recomputation=RECOMPUTATIONS[policy], session=session)

    @cached_property
    def _refusal_token(self) -> int:
        return run_tokens([Text(text=self.settings.refusal_text)], self.engine.model.tokenizer)[0]

    def checked(self, pieces: Iterable[str], asked: Asked) -> Checked:
        """An answer as it may be shown."""
        passages = [with_headings(passage.heading_path, passage.text) for passage in asked.prepared.in_prompt.values()]
        return Checked(
            pieces,
            question=asked.question,
            passages=passages,
            refusal=self.settings.refusal_text,
            answer_mode=self.answer_mode,
        )

    def _choices(self, results: SearchResults, plan: Plan) -> Choices:
        model = self.engine.model
        room = model.info.max_positions - plan.next_position
        refusal = self.settings.refusal_text
        return choices_of(results.statements, refusal, model.tokenizer, min(model.info.stop_tokens), room)

    def valid(self, question: str) -> str:
        """The question without space around it. Raises DeskError for one that cannot be asked."""
        question = question.strip()
        limit = self.settings.max_question_chars
        if not question:
            raise DeskError("the question is empty: write one", code="question-empty")
        if len(question) > limit:
            raise DeskError(
                f"the question has {len(question):,} characters, the limit is {limit:,}: shorten it",
                code="question-too-long",
            )
        return question

    def _find(self, question: str, past: Sequence[PastMessage], collections: Sequence[str]) -> SearchResults:
        """What the documents say. A follow-up is also searched together with the question before it."""
        earlier = next((message.text for message in reversed(past) if message.role == "user"), None)
        return self.finder.find(question, earlier=earlier, count=self.settings.passages, collections=collections)

    @property
    def refuse_below(self) -> float:
        """Relevance below which the desk does not answer."""
        set_to = self.settings.refuse_below
        return self.finder.classifier.threshold if set_to is None else set_to

    def _turns(
        self, past: Sequence[PastMessage], found: Sequence[FoundPassage], question: str
    ) -> tuple[list[PromptTurn], dict[str, StoredPassage]]:
        """The conversation as prompt turns, and every passage in it by its module's name."""
        answers = [m for m in past if m.role == "assistant" and not m.refused]
        ids = {id_ for m in answers for id_ in m.passage_ids if id_ is not None}
        stored = {passage.id: passage for passage in self.library.passages(sorted(ids))}
        turns = []
        for before, message in pairwise(past):
            if message.role == "assistant" and not message.refused and before.role == "user":
                passages = [stored[id_] for id_ in message.passage_ids if id_ is not None and id_ in stored]
                turns.append(
                    PromptTurn(
                        passages=tuple(PassageText.of(p) for p in passages),
                        question=before.text,
                        answer=message.text,
                        answer_tokens=message.tokens,
                    )
                )
        new = [one.passage for one in reversed(found)]  # the most relevant stands last, next to the question
        turns.append(PromptTurn(passages=tuple(PassageText.of(p) for p in new), question=question))
        return turns, {PassageText.of(p).name: p for p in (*stored.values(), *new)}

    def _fit(self, turns: list[PromptTurn]) -> tuple[Plan, int]:
        """The plan of as many of the latest turns as fit with an answer; and how many were left out."""
        room = self.engine.model.info.max_positions - self.settings.answer_tokens
        for dropped in range(len(turns)):
            try:
                plan = self.engine.arrange(self.prompts.prompt(turns[dropped:]))
            except PromptError:
                continue
            if plan.next_position <= room:
                return plan, dropped
        raise DeskError(
            f"the question and its passages do not fit the model's {self.engine.model.info.max_positions} positions: "
            "shorten the question, or lower the settings passages or passage_tokens",
            code="context-full",
        )


class Stream:
    """An answer on its way; see `app.desk.interface.AnswerStream`."""

    def __init__(self, desk: Answering, asked: Asked, generation: Generation | None) -> None:
        self._desk, self._asked, self._generation = desk, asked, generation
        self._answer: Answer | None = None

    def __iter__(self) -> Iterator[str]:
        if self._generation is None:
            self._record(refusal(self._desk.settings.refusal_text, self._asked))
            yield self._desk.settings.refusal_text
            return
        checked = self._desk.checked(self._generation, self._asked)
        ended = False
        try:
            yield from checked
            ended = True
        except CacheError as error:
            ended = True
            raise DeskError(str(error), code="engine") from error
        finally:
            if not ended:  # the reader has left: what there is so far is kept
                self._generation.cancel()
            self._finish(checked)

    def cancel(self) -> None:
        """Stop generating soon."""
        if self._generation is not None:
            self._generation.cancel()

    @property
    def answer(self) -> Answer:
        """The whole answer, after the end of the iteration. Raises DeskError if there is none."""
        if self._answer is None:
            raise DeskError("there is no answer: it was stopped before it began", code="no-answer")
        return self._answer

    def _finish(self, checked: Checked) -> None:
        assert self._generation is not None
        try:
            completion = self._generation.completion
        except CacheError:
            return
        if checked.text or completion.finish_reason != "cancelled":
            self._record(finished(completion, checked, self._asked), completion, is_changed=checked.is_changed)

    def _record(self, answer: Answer, completion: Completion | None = None, *, is_changed: bool = False) -> None:
        in_prompt = self._asked.prepared.in_prompt
        found = [one.passage for one in self._asked.prepared.results.passages]
        passages = {passage.label + passage.document: passage.id for passage in found}
        details = AnswerDetails(
            question_id=self._asked.question_id,
            finish_reason="refused" if completion is None else completion.finish_reason,
            tokens=None if completion is None or is_changed else completion.tokens,
            queue_ms=0.0 if completion is None else completion.timings.queue,
            passage_ids=tuple(passages.get(c.passage + c.document) for c in answer.citations),
            modules=tuple(
                ModuleDetails(
                    name=use.name,
                    passage=in_prompt[use.name].label if use.name in in_prompt else use.name,
                    passage_id=in_prompt[use.name].id if use.name in in_prompt else None,
                )
                for use in (() if completion is None else completion.modules)
            ),
        )
        self._desk.history.record_answer(answer, details)
        self._answer = answer


def finished(completion: Completion, checked: Checked, asked: Asked) -> Answer:
    """The answer of a completion, as it was shown."""
    found = () if checked.is_refusal else asked.prepared.results.passages
    citations: tuple[Citation, ...] = tuple(
        citation for _, citation in cite(checked.text, [(one.passage, one.cosine) for one in found])
    )
    usage, timings = completion.usage, completion.timings
    notices = [
        QUOTED if checked.is_quotation else None,
        {"length": CUT, "cancelled": STOPPED}.get(completion.finish_reason),
        asked.prepared.notice,
    ]
    return Answer(
        answer=checked.text,
        refused=checked.is_refusal,
        conversation_id=asked.conversation_id,
        message_id=new_id(),
        citations=citations,
        usage=AnswerUsage(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            computed=usage.computed,
            session=usage.session,
            prefix=usage.prefix,
            module=usage.module,
        ),
        modules=tuple(
            UsedModule(
                id=use.key,
                document=asked.prepared.in_prompt[use.name].document if use.name in asked.prepared.in_prompt else "",
                tokens=use.tokens,
                position=use.position,
                source=use.source,
                miss_reason=use.miss_reason,
            )
            for use in completion.modules
        ),
        timings=AnswerTimings(
            retrieve=round(asked.prepared.retrieve_ms, 3),
            load=round(timings.load, 3),
            prefill=round(timings.prefill, 3),
            ttft=round(asked.prepared.retrieve_ms + timings.ttft, 3),
            total=round((time.perf_counter() - asked.started) * 1e3, 3),
        ),
        policy=asked.policy,
        exact=completion.exact,
        grounding=checked.score,
        quoted=checked.is_quotation,
        notice=" ".join(notice for notice in notices if notice) or None,
    )


def refusal(text: str, asked: Asked) -> Answer:
    """The fixed answer when no passage is close enough: no model, no citations."""
    total = round((time.perf_counter() - asked.started) * 1e3, 3)
    retrieve = round(asked.prepared.retrieve_ms, 3)
    return Answer(
        answer=text,
        refused=True,
        conversation_id=asked.conversation_id,
        message_id=new_id(),
        citations=(),
        usage=AnswerUsage(prompt_tokens=0, completion_tokens=0, computed=0, session=0, prefix=0, module=0),
        modules=(),
        timings=AnswerTimings(retrieve=retrieve, load=0.0, prefill=0.0, ttft=total, total=total),
        policy=asked.policy,
        exact=True,
    )
