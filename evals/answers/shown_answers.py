"""Answers of a help desk, as the customer sees them: from the whole desk, or composed by search alone.

The difference between the two is what the language model adds.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from app.answering.checking import cite_quotation
from app.answering.prepare import Decider
from app.desk.service import Service
from app.domain.answers import BETWEEN, Answer, AnswerTimings, AnswerUsage, Outcome
from app.domain.setting_types import AnswerMode
from app.storage.history import AnswerDetails, PastMessage, new_id
from retrieval.text.sentences import sentences


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownAnswer:
    """An answer as the customer sees it. statements: in the order shown; none for nothing and small talk. documents: of
    its sources, in order; quoted: the documents of its statements. first_ms: from the question to the first words.
    find_ms: the part before the language model: search, judgement, ranking of statements.
    """

    outcome: Outcome
    text: str
    statements: tuple[str, ...]
    documents: tuple[str, ...]
    quoted: tuple[str, ...]
    first_ms: float
    find_ms: float


def ask_desk(service: Service, question: str, history: Sequence[tuple[str, str]]) -> ShownAnswer:
    """Ask in a conversation that already has the earlier questions and answers, then delete the conversation."""
    conversation = record_turns(service, history) if history else None
    stream = service.ask(question, conversation_id=conversation)
    for _ in stream:
        pass
    answer = stream.answer
    service.delete_conversation(answer.conversation_id)
    return ShownAnswer(
        outcome=answer.outcome,
        text=answer.answer,
        statements=statements_of(answer, service.answer_mode),
        documents=tuple(dict.fromkeys(citation.document for citation in answer.citations)),
        quoted=tuple(dict.fromkeys(citation.document for citation in answer.citations if not citation.see_also)),
        first_ms=answer.timings.ttft,
        find_ms=answer.timings.retrieve,
    )


def statements_of(answer: Answer, answer_mode: AnswerMode) -> tuple[str, ...]:
    """Split what the answer says from the documents: its quotations, or the sentences of the model."""
    if answer_mode == "quote" or answer.outcome == "unsure":
        return answer.statements
    return tuple(sentences(BETWEEN.join(answer.statements)))


def record_turns(service: Service, history: Sequence[tuple[str, str]]) -> str:
    """Store a conversation with these questions and answers, without sources. Returns its id."""
    conversation = service.history.start_conversation(history[0][0])
    for asked, said in history:
        question_id = service.history.record_question(conversation, asked)
        answer = Answer(
            answer=said,
            outcome="answered",
            conversation_id=conversation,
            message_id=new_id(),
            citations=(),
            usage=AnswerUsage(prompt_tokens=0, completion_tokens=0, computed=0, session=0, prefix=0, module=0),
            modules=(),
            timings=AnswerTimings(retrieve=0.0, load=0.0, prefill=0.0, ttft=0.0, total=0.0),
            policy=service.policy,
            exact=True,
        )
        service.history.record_answer(answer, AnswerDetails(question_id=question_id, finish_reason="stop"))
    return conversation


class SearchAlone:
    """Answers questions from the documents without a language model. Nothing is stored."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @cached_property
    def _decider(self) -> Decider:
        return Decider(self._service.settings, self._service.finder)

    def ask(self, question: str, history: Sequence[tuple[str, str]]) -> ShownAnswer:
        """Return the statements that would be shown, or the fixed text that replaces them."""
        started = time.perf_counter()
        past = [
            message
            for asked, said in history
            for message in (PastMessage(role="user", text=asked), PastMessage(role="assistant", text=said))
        ]
        decision = self._decider.decide(question, past)
        statements = [one.text for one in decision.statements] if decision.asks_model else []
        spent = (time.perf_counter() - started) * 1e3
        text = BETWEEN.join([*([decision.says] if decision.says else []), *statements])
        results = decision.results
        found = [(one.passage, one.cosine) for one in results.found]
        cited = cite_quotation(BETWEEN.join(statements), decision.statements, found) if statements else []
        named = [] if decision.outcome == "nothing" else [one.passage for one in results.passages]
        shown = [passage for passage, _ in cited] or named
        return ShownAnswer(
            outcome=decision.outcome,
            text=text,
            statements=tuple(statements),
            documents=tuple(dict.fromkeys(passage.document for passage in shown)),
            quoted=tuple(dict.fromkeys(passage.document for passage, one in cited if not one.see_also)),
            first_ms=spent,
            find_ms=spent,
        )
