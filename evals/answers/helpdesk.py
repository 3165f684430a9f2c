"""`warmdesk eval helpdesk`: are the answers about these documents right, to the point, and honest about not knowing?

Each question is asked end to end through the code that serves customers, and the shown answer is compared with the
facts of a right answer. Earlier turns of a follow-up are stored in the conversation as the file has them.

Arms: `shipped` as the settings say; `checked` the model's own words, checked (answer_mode = checked); `search` composed
by search alone, without a language model (`shown_answers.SearchAlone`).

Milliseconds of a row. first_token_ms: from the question to the first words shown. Passages are encoded before, unless
the desk is cold; without a model, the time ends when the first statement is chosen. added_ms: the time that judging and
ranking statements adds to plain search, which is `timings_ms.retrieve` minus a plain search for the same wordings,
timed right after. The language model's own part is first_token_ms minus retrieve.

Questions are answerable (a page answers them), unanswerable, or small talk. Statements, facts and contradictions are
judged for answerable questions only, in answers that are shown as sure or unsure.

A statement is beside the point if it holds no form of any fact and no statement with a fact needs it. It is needed if
the next statement holds a fact and begins with a word that points back ("It", "This", "Otherwise"), or if it ends with
a colon. This is strict: a true and useful statement without a requested fact also counts as beside the point.
"""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal, TypeAlias

from scipy.stats import binom, binomtest

from app.desk.service import Service
from app.domain.errors import DeskError
from app.knowledge.finder import wordings
from evals.answers.contradictions import contradictions
from evals.answers.fact_matching import holds_all, holds_fact
from evals.answers.questions import CustomerQuestion
from evals.answers.shown_answers import SearchAlone, ShownAnswer, ask_desk
from retrieval.text.terms import CHINESE_JAPANESE


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure with its 95 % interval (low, high). value: a share (0 to 1) or a median, None if n, the count, is 0."""

    value: float | None
    low: float | None
    high: float | None
    n: int


def share(flags: Sequence[bool]) -> Figure:
    """Count the share that is true, with Wilson's interval (1927), which also holds for few cases."""
    n = len(flags)
    if not n:
        return Figure(value=None, low=None, high=None, n=0)
    found = binomtest(sum(flags), n).proportion_ci(method="wilson")
    return Figure(value=round(sum(flags) / n, 4), low=round(found.low, 4), high=round(found.high, 4), n=n)


def middle_of(values: Sequence[float]) -> Figure:
    """Take the median. Its interval lies between the order statistics that hold it with at least 95 % (binomial)."""
    ordered, n = sorted(values), len(values)
    if not n:
        return Figure(value=None, low=None, high=None, n=0)
    first = max(0, int(binom.ppf(0.025, n, 0.5)) - 1)
    low, high = round(ordered[first], 1), round(ordered[n - 1 - first], 1)
    return Figure(value=round(median(ordered), 1), low=low, high=high, n=n)


POINTS_BACK = re.compile(
    r"(?:it|its|they|them|their|this|that|these|those|then|otherwise|instead|both|there|also|if so|if not)\b",
    re.IGNORECASE,
)
_FULL_WIDTH_MARKS = "\u3000-\u303f\uff01-\uff0f\uff1a-\uff1f"
_WORD = re.compile(rf"[{CHINESE_JAPANESE}]{{1,2}}|[^\s{CHINESE_JAPANESE}{_FULL_WIDTH_MARKS}]+")
"""Text between spaces, or two Chinese or Japanese characters, the usual length of their words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedAnswer:
    """A question and the answer shown for it. added_ms: see above."""

    question: CustomerQuestion
    shown: ShownAnswer
    added_ms: float

    @property
    def num_words(self) -> int:
        return len(_WORD.findall(self.shown.text))

    @property
    def has_all_facts(self) -> bool:
        return bool(self.question.facts) and holds_all("\n".join(self.shown.statements), self.question.facts)

    @property
    def has_facts_first(self) -> bool:
        """Return whether the first statement holds all facts."""
        return bool(self.question.facts) and holds_all("".join(self.shown.statements[:1]), self.question.facts)

    @property
    def has_page_first(self) -> bool:
        """Return whether the first source is a page that answers."""
        return any(_is_page(document, self.question.articles) for document in self.shown.documents[:1])

    @property
    def has_page(self) -> bool:
        return any(_is_page(document, self.question.articles) for document in self.shown.documents)

    @property
    def is_dead_end(self) -> bool:
        """Return whether the customer gets neither all the facts nor a page that has them."""
        return not self.has_all_facts and not self.has_page

    @property
    def is_harmful(self) -> bool:
        """Return whether a statement is from a page that must not be quoted here."""
        return any(_is_page(document, self.question.not_from) for document in self.shown.quoted)

    @property
    def beside_the_point(self) -> list[bool]:
        """Return for each statement whether it is beside the point."""
        shown = self.shown.statements
        on_point = [any(holds_fact(one, fact) for fact in self.question.facts) for one in shown]
        needed = [
            follows and (one.rstrip().endswith(":") or POINTS_BACK.match(after) is not None)
            for one, after, follows in zip(shown, [*shown[1:], ""], [*on_point[1:], False], strict=False)
        ]
        return [not (holds or helps) for holds, helps in zip(on_point, needed, strict=True)]

    @property
    def contradictions(self) -> list[str]:
        return contradictions(self.question, self.shown.statements)

    @property
    def verdict(self) -> str:
        outcome, asked = self.shown.outcome, self.question
        if not asked.is_answerable:
            return outcome if outcome != "answered" else "ANSWERED"
        held = sum(holds_fact("\n".join(self.shown.statements), fact) for fact in asked.facts)
        page = "page first" if self.has_page_first else "page" if self.has_page else "no page"
        wrong = (", CONTRADICTED" if self.contradictions else "") + (", HARMFUL" if self.is_harmful else "")
        return f"{outcome}, {held} of {len(asked.facts)} facts, {page}{wrong}"

    def row(self) -> dict[str, Any]:
        shown = self.shown
        return {
            "id": self.question.id,
            "kind": self.question.kind,
            "question": self.question.question,
            "outcome": shown.outcome,
            "refused": shown.outcome == "nothing",
            "answer": shown.text,
            "statements": list(shown.statements),
            "documents": list(shown.documents),
            "words": self.num_words,
            "first_token_ms": round(shown.first_ms, 1),
            "added_ms": round(self.added_ms, 1),
        }


def figures(judged: Sequence[JudgedAnswer]) -> dict[str, Figure]:
    """Return the figures by name. Shares are of the questions that a name begins with, except: right_page_first,
    right_page_any: of answerable questions whose page is known. all_facts, facts_first, dead_ends, contradicted: of
    answerable questions. harmful: of questions that name pages that must not be quoted. answered_all_facts: of answered
    ones. beside_the_point: of the statements shown for answerable ones. smalltalk_handled: of small talk.
    smalltalk_mistaken: of the rest. words, first_token_ms: median of answered and unsure ones. added_ms: median of all
    except small talk.
    """
    answerable = [one for one in judged if one.question.is_answerable]
    unanswerable = [one for one in judged if one.question.is_unanswerable]
    small_talk = [one for one in judged if one.question.is_small_talk]
    with_page = [one for one in answerable if one.question.articles]
    with_facts = [one for one in answerable if one.question.facts]
    told = [one for one in judged if one.shown.outcome in ("answered", "unsure")]
    serious = [one for one in judged if not one.question.is_small_talk]
    return {
        "right_page_first": share([one.has_page_first for one in with_page]),
        "right_page_any": share([one.has_page for one in with_page]),
        "all_facts": share([one.has_all_facts for one in with_facts]),
        "facts_first": share([one.has_facts_first for one in with_facts]),
        "answered_all_facts": share([one.has_all_facts for one in with_facts if one.shown.outcome == "answered"]),
        "dead_ends": share([one.is_dead_end for one in answerable]),
        "contradicted": share([bool(one.contradictions) for one in with_facts]),
        "harmful": share([one.is_harmful for one in judged if one.question.not_from]),
        "beside_the_point": share([beside for one in with_facts for beside in one.beside_the_point]),
        "words": middle_of([one.num_words for one in told]),
        "answerable_answered": _part(answerable, "answered"),
        "answerable_unsure": _part(answerable, "unsure"),
        "answerable_refused": _part(answerable, "nothing"),
        "unanswerable_answered": _part(unanswerable, "answered"),
        "unanswerable_unsure": _part(unanswerable, "unsure"),
        "unanswerable_refused": _part(unanswerable, "nothing"),
        "smalltalk_handled": _part(small_talk, "smalltalk"),
        "smalltalk_mistaken": _part(serious, "smalltalk"),
        "first_token_ms": middle_of([one.shown.first_ms for one in told]),
        "added_ms": middle_of([one.added_ms for one in serious]),
    }


MEDIANS = frozenset(("words", "first_token_ms", "added_ms"))
"""Figures that are not shares."""


def markdown(summary: dict[str, Figure]) -> str:
    lines = ["| figure | value | 95 % interval | n |", "|---|---|---|---|"]
    for name, figure in summary.items():
        if figure.value is None or figure.low is None or figure.high is None:
            lines.append(f"| {name.replace('_', ' ')} | | | 0 |")
            continue
        scale, unit = (1, "") if name in MEDIANS else (100, " %")
        low, value, high = (f"{scale * number:.0f}" for number in (figure.low, figure.value, figure.high))
        lines.append(f"| {name.replace('_', ' ')} | {value}{unit} | {low} to {high} | {figure.n} |")
    return "\n".join(lines)


def _part(judged: Sequence[JudgedAnswer], outcome: str) -> Figure:
    return share([one.shown.outcome == outcome for one in judged])


def _is_page(document: str, articles: Sequence[str]) -> bool:
    return any(document == article or document.endswith(f"/{article}") for article in articles)


Arm: TypeAlias = Literal["search", "shipped", "checked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HelpdeskResult:
    """Judged answers, and figures over all of them."""

    answers: tuple[JudgedAnswer, ...]
    summary: dict[str, Figure]

    def as_json(self) -> dict[str, Any]:
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
    """Ingest the folder, as far as the desk does not have it yet, and ask. cold: do not encode passages before. Raises
    DeskError if the desk has other documents, which would also be found.
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
    """Ingest the documents of a folder. Raises DeskError if there are none, or others in the desk."""
    folder = documents.resolve()
    if not folder.is_dir():
        raise DeskError(f"there is no folder {str(documents)!r}", code="no-such-file")
    others = [one.path for one in service.documents() if not Path(one.path).is_relative_to(folder)]
    if others:
        raise DeskError(
            f"the desk holds other documents ({others[0]}): give another --data-dir", code="other-documents"
        )
    done = service.ingest([folder], sync=True, warm=warm)
    report(f"{done.documents} documents, {done.passages} passages, {done.seconds:.0f} s")
    if not done.documents:
        raise DeskError(f"{documents} holds no document that can be read", code="no-documents")
    if warm:
        service.prepare()


def plain_search_ms(service: Service, question: CustomerQuestion) -> float:
    """Time search alone: embed the wordings and find their passages, without judgement."""
    started = time.perf_counter()
    retriever = service.search.snapshot.retriever()
    earlier = question.history[-1][0] if question.history else None
    queries = retriever.queries(wordings(question.question, earlier))
    retriever.search(queries, service.settings.passages)
    return (time.perf_counter() - started) * 1e3
