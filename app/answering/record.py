"""From a completion to the answer that is stored. Its numbers are what the engine counted while it ran."""

import time
from dataclasses import dataclass, fields

from app.answering.check import CheckedText
from app.answering.cite import citation, cite, cite_faq, cite_quotation
from app.answering.prepare import PreparedQuestion
from app.domain.answers import BETWEEN, Answer, AnswerTimings, AnswerUsage, Outcome, UsedModule
from app.domain.notices import CUT, LATE, QUOTED, REPEATED, STOPPED
from app.domain.policies import Policy
from app.domain.quality import FAQ
from app.storage.answer_rows import AnswerDetails, ModuleDetails
from app.storage.history import new_id
from cache.engine.request import Completion

_ENDINGS = {"length": CUT, "cancelled": STOPPED, "timeout": LATE, "repeated": REPEATED}
"""What the reader is told about how an answer ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedQuestion:
    """A question that is being answered. started: `time.perf_counter` at its arrival. conversation_id, question_id:
    empty for one that is not stored. replaces: the question in whose place it is asked, if there is one.
    """

    started: float
    prepared: PreparedQuestion
    policy: Policy
    conversation_id: str = ""
    question_id: str = ""
    replaces: str = ""


def without_model(asked: AskedQuestion) -> tuple[Answer, AnswerDetails]:
    """The answer in the desk's own words, with the pages that it names, or that of the FAQ."""
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
        usage=AnswerUsage(prompt_tokens=0, completion_tokens=0, computed=0, session=0, prefix=0, module=0),
        modules=(),
        timings=AnswerTimings(retrieve=retrieve, load=0.0, prefill=0.0, ttft=total, total=total),
        policy=asked.policy,
        exact=True,
        quoted=bool(cited),  # its words are gone when the document is forgotten
    )
    details = AnswerDetails(
        question_id=asked.question_id,
        finish_reason="refused" if answer.refused else "stop" if decision.faq is None else FAQ,
        passage_ids=tuple(passage.id for passage, _ in cited),
        faq_id=decision.faq,
        replaces=asked.replaces,
    )
    return answer, details


def finished(completion: Completion, shown: CheckedText, asked: AskedQuestion) -> tuple[Answer, AnswerDetails]:
    """The answer of a completion as it was shown, and what else is stored of it."""
    prepared, timings = asked.prepared, completion.timings
    outcome: Outcome = "nothing" if shown.is_refusal else prepared.decision.outcome
    decision = prepared.decision
    said = decision.statements if shown.is_quotation else []
    results = () if shown.is_refusal else decision.results.found if said else decision.results.passages
    found = [(one.passage, one.cosine) for one in results]
    cited = cite_quotation(shown.text, said, found) if said else cite(shown.text, found)
    notices = [QUOTED if shown.is_quotation else None, _ENDINGS.get(completion.finish_reason), prepared.notice]
    used = [(use, prepared.in_prompt.get(use.name)) for use in completion.modules]
    answer = Answer(
        answer=prepared.decision.says + BETWEEN + shown.text if outcome == "unsure" else shown.text,
        outcome=outcome,
        conversation_id=asked.conversation_id,
        message_id=new_id(),
        citations=tuple(one for _, one in cited),
        usage=AnswerUsage(**{field.name: getattr(completion.usage, field.name) for field in fields(AnswerUsage)}),
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
        timings=AnswerTimings(
            retrieve=round(prepared.retrieve_ms, 3),
            load=round(timings.load, 3),
            prefill=round(timings.prefill, 3),
            ttft=round(prepared.retrieve_ms + timings.ttft, 3),
            total=round((time.perf_counter() - asked.started) * 1e3, 3),
        ),
        policy=asked.policy,
        exact=completion.exact,
        grounding=shown.score,
        quoted=shown.is_quotation,
        notice=" ".join(notice for notice in notices if notice) or None,
    )
    details = AnswerDetails(
        question_id=asked.question_id,
        finish_reason=completion.finish_reason,
        tokens=None if shown.is_changed else completion.tokens,
        model=prepared.model,
        queue_ms=timings.queue,
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
