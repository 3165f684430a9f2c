"""Answers to store, for tests of the history and the dashboard's sums, and passages that are stored."""

from dataclasses import replace

from app.domain.answers import Answer, AnswerTimings, AnswerUsage, Citation, UsedModule
from app.domain.documents import StoredPassage
from app.storage.history import AnswerDetails, History, ModuleDetails, new_id


def an_answer(conversation_id: str, number: int = 0, *, refused: bool = False) -> Answer:
    citation = Citation(
        document="/kb/returns.md", title="Returns", passage="Returns (1)", quote="30 days, Grüße 退款", score=1 / 3
    )
    modules = (
        UsedModule(id="b2:system", document="", tokens=40, position=0, source="device", miss_reason=None),
        UsedModule(
            id="b2:one", document="/kb/returns.md", tokens=50, position=40, source="computed", miss_reason="evicted"
        ),
    )
    return Answer(
        answer=f"You have {number} days.",
        outcome="nothing" if refused else "answered",
        conversation_id=conversation_id,
        message_id=new_id(),
        citations=() if refused else (citation, replace(citation, document="/kb/other.md", score=0.25)),
        usage=AnswerUsage(
            prompt_tokens=100 + number, completion_tokens=7, computed=number, session=10, prefix=50, module=40
        ),
        modules=() if refused else modules,
        timings=AnswerTimings(retrieve=1.25, load=0.1, prefill=30.0, ttft=31.4 + number, total=99.9),
        policy="balanced",
        exact=False,
        notice="older turns were dropped" if number else None,
    )


def details(question_id: str, answer: Answer, tokens: tuple[int, ...] | None = (5, 6, 7)) -> AnswerDetails:
    return AnswerDetails(
        question_id=question_id,
        finish_reason="stop",
        tokens=tokens,
        queue_ms=2.5,
        passage_ids=(11, None)[: len(answer.citations)],
        modules=(
            ModuleDetails(name="system", passage=""),
            ModuleDetails(name="p11", passage="Returns (1)", passage_id=11),
        )[: len(answer.modules)],
    )


def add_turn(history: History, conversation_id: str, number: int = 0, *, refused: bool = False) -> Answer:
    question_id = history.record_question(conversation_id, f"question {number}?")
    answer = an_answer(conversation_id, number, refused=refused)
    history.record_answer(answer, details(question_id, answer))
    return answer


def a_passage(id_: int, text: str, document: str, *headings: str) -> StoredPassage:
    """A passage under these headings, the first of which is the title of its document."""
    return StoredPassage(
        id=id_,
        document=document,
        title=headings[0] if headings else document,
        ordinal=0,
        heading_path=headings,
        text=text,
        content_hash=text,
        num_tokens=9,
        module_key=None,
    )
