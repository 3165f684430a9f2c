"""Do answers cite the right article? Asks every sample question end to end, follow-ups after their earlier turn.

Counts, over questions that have an article: it is among the citations; it is the first of them; the desk refused. Over
questions that have none: the desk refused. Not covered: whether the answer itself is right.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from app.answers import Answer
from app.errors import DeskError
from app.service import Service


@dataclass(frozen=True, slots=True, kw_only=True)
class CitationRow:
    """Shares are of the questions with (cited, cited_first, refused_wrong) or without (refused_right) an article."""

    answerable: int
    unanswerable: int
    cited: float
    cited_first: float
    refused_wrong: float
    refused_right: float
    ttft_ms_median: float
    reused_share: float


def measure_citations(
    service: Service, data: Path, *, limit: int | None, report: Callable[[str], None]
) -> dict[str, object]:
    """Ask all questions of a JSONL file (`question`, `article`, `history`). Conversations are deleted again."""
    if not data.is_file():
        raise DeskError(f"there is no file {str(data)!r}", code="no-such-file")
    questions = [json.loads(line) for line in data.read_text(encoding="utf-8").splitlines() if line.strip()][:limit]
    found: list[tuple[str | None, Answer]] = []
    for number, question in enumerate(questions, start=1):
        answer = ask(service, question)
        found.append((question["article"], answer))
        report(f"{number}/{len(questions)} {verdict(question['article'], answer)}: {question['question']}")
    with_article = [(article, answer) for article, answer in found if article is not None]
    without = [answer for article, answer in found if article is None]
    prompts = sum(answer.usage.prompt_tokens for _, answer in found)
    row = CitationRow(
        answerable=len(with_article),
        unanswerable=len(without),
        cited=share([is_cited(answer, article) for article, answer in with_article]),
        cited_first=share([is_cited(answer, article, first=True) for article, answer in with_article]),
        refused_wrong=share([answer.refused for _, answer in with_article]),
        refused_right=share([answer.refused for answer in without]),
        ttft_ms_median=round(statistics.median(answer.timings.ttft for _, answer in found), 1),
        reused_share=round(sum(answer.usage.cached_tokens for _, answer in found) / max(1, prompts), 4),
    )
    return {"model": service.engine.model.info.name, "rows": [asdict(row)]}


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


def verdict(article: str | None, answer: Answer) -> str:
    """How a question went, in a word."""
    if answer.refused:
        return "refused" if article is None else "REFUSED"
    if article is None:
        return "ANSWERED"
    return "cited" if is_cited(answer, article) else "NOT CITED"


def share(values: list[bool]) -> float:
    """Part of the values that is true."""
    return round(sum(values) / len(values), 4) if values else 0.0
