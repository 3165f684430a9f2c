"""The text of a quotation, and the record of a finished answer.

A quotation is shown at once. The model then reads it but chooses nothing: search has chosen the statements and their
order. (A small model such as the bundled one can only order statements that search scores about equally. 40 SQuAD
questions, five passages each, gold answer in the one quoted sentence: model alone 0.23, search alone 0.88.)
The recorded numbers are counted by the engine during the answer.

Out of scope: tokenizers that do not return their input text, and models without a chat template, whose answers begin
with a space.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields

from app.answering.checking import CheckedText, citation, cite, cite_faq, cite_quotation, cite_statements
from app.answering.prepare import PreparedQuestion
from app.domain.answers import BETWEEN, Answer, AnswerTimings, AnswerUsage, LookUpTurn, Outcome, UsedModule
from app.domain.callers import CUT, LATE, QUOTED, REPEATED, STOPPED
from app.domain.quality import FAQ
from app.domain.setting_types import Policy
from app.knowledge.finder import RankedStatement
from app.storage.history import AnswerDetails, ModuleDetails, new_id
from cache.engine.request import Completion
from cache.prompt.parts import Text
from cache.prompt.tokenizer import Tokenizer
from retrieval.text.sentences import as_said


def quotation(
    shown: Sequence[RankedStatement], refusal: str, tokenizer: Tokenizer, stop: int, room: int
) -> tuple[str, tuple[int, ...]]:
    """Return text and tokens of an answer with these statements, as many as fit; without statements, of the refusal.
    stop: the token that ends an answer. room: maximum tokens.
    """
    said = list(dict.fromkeys(as_said(one.text) for one in shown)) or [refusal]
    while len(tokens := (*tokenizer.encode([Text(text=BETWEEN.join(said))]), stop)) > room and len(said) > 1:
        said.pop()
    return BETWEEN.join(said), tokens


_ENDINGS = {"length": CUT, "cancelled": STOPPED, "timeout": LATE, "repeated": REPEATED}


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedQuestion:
    """A question that is being answered. started: `time.perf_counter` at its arrival. Ids are empty if not stored."""

    started: float
    prepared: PreparedQuestion
    policy: Policy
    conversation_id: str = ""
    question_id: str = ""
    replaces: str = ""
    lookup: LookUpTurn | None = None


def without_model(asked: AskedQuestion) -> tuple[Answer, AnswerDetails]:
    decision = asked.prepared.decision
    found = () if decision.outcome == "nothing" else decision.results.passages
    cited = [(one.passage, citation(one.passage, one.cosine, see_also=True)) for one in found]
    if decision.faq is not None:
        cited = cite_faq(decision.says, [(one.passage, one.cosine) for one in found])
    total = round((time.perf_counter() - asked.started) * 1e3, 3)
    retrieve = round(asked.prepared.retrieve_ms, 3)
    answer = Answer(
        answer=decision.says,
        outcome=decision.outcome,
        conversation_id=asked.conversation_id,
        message_id=new_id(),
        citations=tuple(one for _, one in cited),
        timings=AnswerTimings(retrieve=retrieve, ttft=total, total=total),
        policy=asked.policy,
        quoted=bool(cited),  # its text is deleted with the document
        lookup=asked.lookup,
    )
    details = AnswerDetails(
        question_id=asked.question_id,
        finish_reason="refused" if answer.refused else "stop" if decision.faq is None else FAQ,
        passage_ids=tuple(passage.id for passage, _ in cited),
        faq_id=decision.faq,
        replaces=asked.replaces,
    )
    return answer, details


def usage_of(completion: Completion) -> AnswerUsage:
    return AnswerUsage(**{field.name: getattr(completion.usage, field.name) for field in fields(AnswerUsage)})


def timings_of(completion: Completion, retrieve_ms: float, total_ms: float) -> AnswerTimings:
    timings = completion.timings
    return AnswerTimings(
        retrieve=round(retrieve_ms, 3),
        load=round(timings.load, 3),
        prefill=round(timings.prefill, 3),
        ttft=round(retrieve_ms + timings.ttft, 3),
        total=round(total_ms, 3),
    )


def finished(completion: Completion, shown: CheckedText, asked: AskedQuestion) -> tuple[Answer, AnswerDetails]:
    prepared, decision = asked.prepared, asked.prepared.decision
    outcome: Outcome = "nothing" if shown.is_refusal else decision.outcome
    told = {number: prepared.sources[source] for number, source in enumerate(shown.cited)}
    said = decision.statements if shown.is_quotation and not told else []
    results = () if shown.is_refusal else decision.results.found if said or told else decision.results.passages
    found = [(one.passage, one.cosine) for one in results]
    if told:
        cited = cite_statements(told, found)
    else:
        cited = cite_quotation(shown.text, said, found) if said else cite(shown.text, found)
    ending = None if shown.is_whole else _ENDINGS.get(completion.finish_reason)
    notices = [QUOTED if shown.is_quotation else None, ending, prepared.notice]
    used = [(use, prepared.in_prompt.get(use.name)) for use in completion.modules]
    answer = Answer(
        answer=decision.says + BETWEEN + shown.text if outcome == "unsure" else shown.text,
        outcome=outcome,
        conversation_id=asked.conversation_id,
        message_id=new_id(),
        citations=tuple(one for _, one in cited),
        usage=usage_of(completion),
        modules=tuple(
            UsedModule(
                id=use.key,
                document=passage.document if passage else "",
                tokens=use.tokens,
                position=use.position,
                source=use.source,
                miss_reason=use.miss_reason,
            )
            for use, passage in used
        ),
        timings=timings_of(completion, prepared.retrieve_ms, (time.perf_counter() - asked.started) * 1e3),
        policy=asked.policy,
        exact=completion.exact,
        grounding=shown.score,
        quoted=shown.is_quotation,
        notice=" ".join(notice for notice in notices if notice) or None,
        lookup=asked.lookup,
    )
    details = AnswerDetails(
        question_id=asked.question_id,
        finish_reason=completion.finish_reason,
        tokens=None if shown.is_changed else completion.tokens,
        model=prepared.model,
        queue_ms=completion.timings.queue,
        replaces=asked.replaces,
        passage_ids=tuple(passage.id for passage, _ in cited),
        modules=tuple(
            ModuleDetails(
                name=use.name,
                passage=passage.label if passage else use.name,
                passage_id=passage.id if passage else None,
            )
            for use, passage in used
        ),
    )
    return answer, details
