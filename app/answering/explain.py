"""Example questions for an empty conversation, and the reason for the outcome of a question.

Examples are headings of documents; questions come before titles. A heading is offered only if its own document answers
it confidently. No model is asked. `explain` shows agents all scores of the search and the rule that decided; nothing is
stored.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress

from app.answering.curated import CuratedAnswers
from app.answering.prepare import QuestionPreparer
from app.domain.errors import DeskError
from app.domain.quality import FoundRow, SearchExplanation, StatementRow
from app.knowledge.finder import CANDIDATES, Finder
from retrieval.text.terms import COMMON, asked_words, stem

MOST = 4
TRIED = 32  # maximum headings that are tried; each costs a search
TELLING = 3
LONGEST = 90

Headings = Iterable[tuple[str, tuple[str, ...]]]


class ExampleQuestions:
    """Finds example questions in the background. Safe to use from any thread."""

    def __init__(
        self,
        headings: Callable[[], Headings],
        answered_from: Callable[[str], str | None],
        offered: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """offered: questions to try instead of headings, if any, each with the end of the path of the document that
        must answer it. Until that document is ingested, another document may give a wrong answer.
        """
        self._headings, self._answered_from, self._offered = headings, answered_from, offered
        self._lock = threading.Lock()
        self._snapshot: object = None
        self._found: list[str] = []

    def for_snapshot(self, snapshot: object) -> list[str]:
        """Return the examples found so far. The first call for a snapshot starts the search."""
        with self._lock:
            if self._snapshot is not snapshot:
                self._snapshot, self._found = snapshot, self._found if self._offered() else []
                threading.Thread(target=self._find, name="examples", daemon=True).start()
            return self._found

    def _find(self) -> None:
        with suppress(DeskError):  # the server was stopped
            if offered := self._offered():
                self._found = [
                    text for text, document in offered.items() if (self._answered_from(text) or "").endswith(document)
                ]
            else:
                self._found = example_questions(self._headings(), self._answered_from)


def example_questions(headings: Headings, answered_from: Callable[[str], str | None]) -> list[str]:
    """Return example questions. answered_from: returns the document that answers a question confidently."""
    chosen: dict[str, str] = {}
    for tried, (document, text) in enumerate(_candidates(headings)):
        if len(chosen) == MOST or tried == TRIED:
            break
        if document not in chosen and answered_from(text) == document:
            chosen[document] = text
    return list(chosen.values())


def _candidates(headings: Headings) -> Iterator[tuple[str, str]]:
    paths = [(document, path) for document, path in headings if path]
    questions = [(document, path[-1]) for document, path in paths if _is_question(path[-1])]
    titles = list(dict.fromkeys((document, path[0]) for document, path in paths))
    spread = titles[:: max(1, len(titles) // TRIED)]  # from all folders rather than from the first one
    for document, text in dict.fromkeys([*questions, *spread]):
        if len(text) <= LONGEST:
            yield document, text.strip()


def _is_question(heading: str) -> bool:
    """Return whether a heading is a question that is clear without its page: "How long do I have?" is not."""
    if not heading.rstrip().endswith(("?", "？")):
        return False
    return len({stem(word) for word in asked_words(heading) if len(word) > 1} - COMMON) >= TELLING


STATEMENTS = 8


def explain(questions: QuestionPreparer, finder: Finder, curated: CuratedAnswers, question: str) -> SearchExplanation:
    """Return search results and outcome of a conversation's first question. Raises DeskError if it is invalid."""
    question, decider = questions.valid(question), questions.decider
    decision = decider.decide(question, [])
    judged = finder.judge(question, earlier=None, count=CANDIDATES)
    ranked = judged.statements.ranked
    relevance = finder.classifier.is_answered(judged.statements.features) if ranked else 0.0
    said = "\n\n".join(one.text for one in decision.statements)
    nearest = curated.nearest(question)
    titles = {id_: passage.title or passage.document for id_, passage in judged.passages.items()}
    return SearchExplanation(
        question=question,
        outcome=decision.outcome,
        why=decision.why,
        says=decision.says,
        relevance=relevance,
        refuse_below=decider.refuse_below,
        answer_above=decider.answer_above,
        faq=None if nearest is None else nearest[1],
        passages=tuple(
            FoundRow(
                title=titles[hit.id],
                passage=judged.passages[hit.id].label,
                document=judged.passages[hit.id].document,
                score=hit.score,
                cosine=hit.cosine,
                share=hit.share,
            )
            for hit in judged.hits
        ),
        statements=tuple(
            StatementRow(
                text=one.statement.text,
                title=titles[judged.hits[one.passage].id],
                logit=logit,
                shown=decision.asks_model and one.statement.text in said,
            )
            for logit, one in ranked[:STATEMENTS]
        ),
    )
