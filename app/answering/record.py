"""From a completion to the answer that is stored. Its numbers are what the engine counted while it ran."""

import time
from dataclasses import dataclass, fields

from app.answering.check import CheckedText
from app.answering.cite import cite
from app.answering.prepare import PreparedQuestion
from app.domain.answers import Answer, AnswerTimings, AnswerUsage, UsedModule
from app.domain.policies import Policy
from app.storage.answer_rows import AnswerDetails, ModuleDetails
from app.storage.history import new_id
from cache.engine.request import Completion

QUOTED = "Quoted from the help pages."
NOTICES = {"length": "The answer was cut at its length limit.", "cancelled": "The answer was stopped before its end."}
"""What the reader is told about how an answer ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedQuestion:
    """A question that is being answered. started: `time.perf_counter` at its arrival. conversation_id, question_id:
    empty for one that is not stored.
    """

    started: float
    prepared: PreparedQuestion
    policy: Policy
    conversation_id: str = ""
    question_id: str = ""


def refusal(text: str, asked: AskedQuestion) -> tuple[Answer, AnswerDetails]:
    """The fixed answer if no passage is close enough: without model and citations."""
    total = round((time.perf_counter() - asked.started) * 1e3, 3)
    retrieve = round(asked.prepared.retrieve_ms, 3)
    answer = Answer(
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
    return answer, AnswerDetails(question_id=asked.question_id, finish_reason="refused")


def finished(completion: Completion, shown: CheckedText, asked: AskedQuestion) -> tuple[Answer, AnswerDetails]:
    """The answer of a completion as it was shown, and what else is stored of it."""
    prepared, timings = asked.prepared, completion.timings
    found = () if shown.is_refusal else prepared.results.passages
    cited = cite(shown.text, [(one.passage, one.cosine) for one in found])
    notices = [QUOTED if shown.is_quotation else None, NOTICES.get(completion.finish_reason), prepared.notice]
    used = [(use, prepared.in_prompt.get(use.name)) for use in completion.modules]
    answer = Answer(
        answer=shown.text,
        refused=shown.is_refusal,
        conversation_id=asked.conversation_id,
        message_id=new_id(),
        citations=tuple(citation for _, citation in cited),
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
        queue_ms=timings.queue,
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
