"""`warmdesk eval helpdesk`: is a desk right, to the point, and honest about not knowing, on these documents?

Every question is asked end to end through the code that serves, and what is shown is compared with what a right answer
must hold. Earlier turns of a follow-up stand in the conversation as the file gives them.

Arms: `shipped` as the settings say; `checked` the model's own words, checked (answer_mode = checked); `search` composed
by search alone, without a language model (`evals.search_alone`).

Milliseconds of a row. first_token_ms: from the question's arrival to the first words shown, passages encoded before
unless the desk is cold; without a model, until the first statement is chosen. added_ms: what judging and ranking
statements adds to plain search before the language model begins, that is `timings_ms.retrieve` less a plain search for
the same wordings, timed right after. The language model's own part is first_token_ms less retrieve.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from app.desk.service import Service
from app.domain.errors import DeskError
from app.knowledge.finder import wordings
from evals.helpdesk_figures import JudgedAnswer, figures
from evals.helpdesk_questions import CustomerQuestion
from evals.intervals import Figure
from evals.search_alone import SearchAlone
from evals.shown_answers import ask_desk

Arm: TypeAlias = Literal["search", "shipped", "checked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HelpdeskResult:
    """Every question with its answer, and the figures over all by name."""

    answers: tuple[JudgedAnswer, ...]
    summary: dict[str, Figure]

    def as_json(self) -> dict[str, Any]:
        """Rows and summary as plain values."""
        return {
            "rows": [one.row() for one in self.answers],
            "summary": {name: asdict(figure) for name, figure in self.summary.items()},
        }


def measure_helpdesk(
    service: Service,
    documents: Path,
    questions: list[CustomerQuestion],
    *,
    arm: Arm,
    cold: bool,
    report: Callable[[str], None],
) -> HelpdeskResult:
    """Ingest the folder, as far as the desk does not have it yet, and ask. cold: passages are not encoded before.
    Raises DeskError for a desk that holds other documents, which would be found as well.
    """
    fill(service, documents, warm=not cold and arm != "search", report=report)
    alone = SearchAlone(service)
    plain_search_ms(service, questions[0])  # opens the index and the embedder
    judged = []
    for number, question in enumerate(questions, start=1):
        shown = (
            alone.ask(question.question, question.history)
            if arm == "search"
            else ask_desk(service, question.question, question.history)
        )
        added = max(0.0, shown.find_ms - plain_search_ms(service, question))
        judged.append(JudgedAnswer(question=question, shown=shown, added_ms=added))
        report(f"{number}/{len(questions)} {judged[-1].verdict}: {question.question}")
    return HelpdeskResult(answers=tuple(judged), summary=figures(judged))


def fill(service: Service, documents: Path, *, warm: bool, report: Callable[[str], None]) -> None:
    """Bring the documents of a folder into a desk. Raises DeskError if there are none, or others in the desk."""
    folder = documents.resolve()
    if not folder.is_dir():
        raise DeskError(f"there is no folder {str(documents)!r}", code="no-such-file")
    others = [one.path for one in service.documents() if not Path(one.path).is_relative_to(folder)]
    if others:
        raise DeskError(
            f"the desk holds other documents ({others[0]}): give a --data-dir of its own", code="other-documents"
        )
    done = service.ingest([folder], sync=True, warm=warm)
    report(f"{done.documents} documents, {done.passages} passages, {done.seconds:.0f} s")
    if not done.documents:
        raise DeskError(f"{documents} holds no document that can be read", code="no-documents")
    if warm:
        service.prepare()


def plain_search_ms(service: Service, question: CustomerQuestion) -> float:
    """Milliseconds of search alone: the wordings embedded and their passages found, nothing judged."""
    started = time.perf_counter()
    retriever = service.search.retriever
    earlier = question.history[-1][0] if question.history else None
    queries = retriever.queries(wordings(question.question, earlier))
    retriever.search(queries, service.settings.passages)
    return (time.perf_counter() - started) * 1e3
