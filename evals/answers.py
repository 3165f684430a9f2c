"""Are the desk's answers right? Asks every sample question end to end, follow-ups after their earlier turn.

Over questions that have an article: the answer holds all the facts it must; something in it contradicts that article
and what it cites (by the same `AnswerChecker` that checks what the desk shows); the article is among the citations, or
the first of them; the desk refused. Over questions that have none: the desk refused.
All answers are in the result, to be read.
"""

import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from app.desk.service import Service
from app.domain.answers import Answer
from app.domain.errors import DeskError
from app.grounding.grounding import NOT_SAID, AnswerChecker
from evals.cases import holds
from retrieval.documents.document import with_headings


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRow:
    """Shares, 0 to 1: of the questions with an article (facts_right, contradicted, cited, cited_first, refused_wrong),
    of those without (refused_right), of the answers that are no refusals (quoted). ttft: time to the first token.
    """

    policy: str
    answer_mode: str
    answerable: int
    unanswerable: int
    facts_right: float
    contradicted: float
    cited: float
    cited_first: float
    refused_wrong: float
    refused_right: float
    quoted: float
    ttft_ms_median: float
    reused_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredAnswer:
    """A question with its answer. problems: what contradicts the article, if it has one."""

    question: dict[str, Any]
    answer: Answer
    problems: tuple[str, ...]

    @property
    def facts_right(self) -> bool:
        """Whether the answer holds all it must."""
        return not self.answer.refused and holds(self.answer.answer, self.question["facts"])


def measure_answers(
    service: Service, data: Path, *, limit: int | None, report: Callable[[str], None]
) -> dict[str, object]:
    """Ask all questions of a JSONL file (`question`, `article`, `facts`, `history`). Conversations are deleted again.
    Raises DeskError if there is no such file, or nothing to answer from.
    """
    if not data.is_file():
        raise DeskError(f"there is no file {str(data)!r}", code="no-such-file")
    if not service.documents():
        raise DeskError("the desk has no documents: ingest some, or give its --data-dir", code="no-documents")
    questions = [json.loads(line) for line in data.read_text(encoding="utf-8").splitlines() if line.strip()][:limit]
    found: list[MeasuredAnswer] = []
    for number, question in enumerate(questions, start=1):
        answer = ask(service, question)
        contradictions = problems(service, question["question"], question["article"], answer)
        found.append(MeasuredAnswer(question=question, answer=answer, problems=contradictions))
        report(f"{number}/{len(questions)} {verdict(found[-1])}: {question['question']}")
    answers = [
        {
            "question": one.question["question"],
            "facts": one.question["facts"],
            "answer": one.answer.answer,
            "verdict": verdict(one),
            "problems": one.problems,
            "grounding": one.answer.grounding,
            "quoted": one.answer.quoted,
        }
        for one in found
    ]
    return {"model": service.engine.info.name, "rows": [asdict(summarise(service, found))], "answers": answers}


def summarise(service: Service, found: list[MeasuredAnswer]) -> AnswerRow:
    """Shares over all questions."""
    with_article = [one for one in found if one.question["article"] is not None]
    without = [one for one in found if one.question["article"] is None]
    prompts = sum(one.answer.usage.prompt_tokens for one in found)
    return AnswerRow(
        policy=service.policy,
        answer_mode=service.answer_mode,
        answerable=len(with_article),
        unanswerable=len(without),
        facts_right=share([one.facts_right for one in with_article]),
        contradicted=share([bool(one.problems) for one in with_article]),
        cited=share([is_cited(one.answer, one.question["article"]) for one in with_article]),
        cited_first=share([is_cited(one.answer, one.question["article"], first=True) for one in with_article]),
        refused_wrong=share([one.answer.refused for one in with_article]),
        refused_right=share([one.answer.refused for one in without]),
        quoted=share([one.answer.quoted for one in found if not one.answer.refused]),
        ttft_ms_median=round(statistics.median(one.answer.timings.ttft for one in found), 1),
        reused_share=round(sum(one.answer.usage.cached_tokens for one in found) / max(1, prompts), 4),
    )


def ask(service: Service, question: dict[str, list[list[str]] | str]) -> Answer:
    """The answer to a question, after its earlier turns were asked in the same conversation."""
    conversation: str | None = None
    for text in [*(turn[0] for turn in question.get("history") or []), question["question"]]:
        stream = service.ask(str(text), conversation_id=conversation)
        for _ in stream:
            pass
        conversation = stream.answer.conversation_id
    assert conversation is not None
    service.delete_conversation(conversation)
    return stream.answer


def is_cited(answer: Answer, article: str, *, first: bool = False) -> bool:
    """Whether an article is among the citations, or the first of them."""
    cited = answer.citations[:1] if first else answer.citations
    return any(citation.document.endswith("/" + article) for citation in cited)


def problems(service: Service, question: str, article: str | None, answer: Answer) -> tuple[str, ...]:
    """What in an answer contradicts its article or what it cites. Sentences about something else do not."""
    if article is None or answer.refused:
        return ()
    paths = [document.path for document in service.documents() if document.path.endswith("/" + article)]
    passages = [passage for path in paths for passage in service.library.passages_of(path)]
    known = [with_headings(passage.heading_path, passage.text) for passage in passages]
    known += [f"{citation.title}\n{citation.quote}" for citation in answer.citations]
    grounding = AnswerChecker(question, known).check(answer.answer)
    return tuple(s.problem for s in grounding.sentences if s.problem is not None and s.problem != NOT_SAID)


def verdict(one: MeasuredAnswer) -> str:
    """How a question went, in a word."""
    if one.question["article"] is None:
        return "refused" if one.answer.refused else "ANSWERED"
    if one.answer.refused:
        return "REFUSED"
    if one.problems:
        return "CONTRADICTED"
    return "right" if one.facts_right else "FACTS MISSING"


def share(values: list[bool]) -> float:
    """Part of the values that is true."""
    return round(sum(values) / len(values), 4) if values else 0.0
