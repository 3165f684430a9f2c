"""`warmdesk eval helpdesk`: are the answers about these documents right, to the point, and honest about not knowing?

Each question is asked end to end through the code that serves customers, and the shown answer is compared with the
facts of a right answer. Earlier turns of a follow-up are stored in the conversation as the file has them.

Arms: `shipped`, as the settings say; `checked`, the model's own words after checks (answer_mode = checked); `search`,
composed by search alone, without a language model (`ask_search`).

Times of a row are in milliseconds. first_token_ms: from the question to the first words shown. Passages are already
encoded. Without a model, the time ends when the first statement is chosen.

Questions are answerable (a page answers them), unanswerable, or small talk. Statements, facts and contradictions are
judged for answerable questions only, in answers that are shown as sure or unsure.

A statement is beside the point if it holds no form of any fact and no statement with a fact needs it. It is needed if
the next statement holds a fact, and either it ends with a colon or the next statement begins with a word that points
back ("It", "This", "Otherwise"). So a true and useful statement without a requested fact is also beside the point.
"""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from scipy.stats import binom, binomtest

from app.answering.checking import cite_quotation
from app.answering.prepare import Decider
from app.desk.calibration import ModeMetrics
from app.desk.service import Service
from app.domain.answers import BETWEEN, Answer, Outcome
from app.domain.errors import DeskError
from app.domain.setting_types import AnswerMode
from app.storage.history import AnswerDetails, PastMessage, new_id
from evals.answers.contradictions import contradictions
from evals.answers.questions import CustomerQuestion, holds_all, holds_fact
from evals.report import percentile
from retrieval.text.sentences import sentences
from retrieval.text.terms import CHINESE_JAPANESE


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownAnswer:
    """An answer as the customer sees it. statements: in the order shown; empty if it has none from the documents.
    documents: of all its sources, in order. quoted: documents of its statements only. first_ms: from the question to
    the first words. find_ms: the part before the language model: search, judgement, ranking of statements.
    """

    outcome: Outcome
    text: str
    statements: tuple[str, ...]
    documents: tuple[str, ...]
    quoted: tuple[str, ...]
    first_ms: float
    find_ms: float


def ask_desk(service: Service, question: str, history: Sequence[tuple[str, str]]) -> ShownAnswer:
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
    """Return the answer's statements from the documents: its quotations, or the model's sentences."""
    if answer_mode == "quote" or answer.outcome == "unsure":
        return answer.statements
    return tuple(sentences(BETWEEN.join(answer.statements)))


def record_turns(service: Service, history: Sequence[tuple[str, str]]) -> str:
    conversation = service.history.start_conversation(history[0][0])
    for asked, said in history:
        question_id = service.history.record_question(conversation, asked)
        answer = Answer(
            answer=said,
            outcome="answered",
            conversation_id=conversation,
            message_id=new_id(),
            policy=service.policy,
        )
        service.history.record_answer(answer, AnswerDetails(question_id=question_id, finish_reason="stop"))
    return conversation


def ask_search(decider: Decider, question: str, history: Sequence[tuple[str, str]]) -> ShownAnswer:
    """Answer from the documents without a language model: the statements that would be shown, or the fixed text that
    replaces them. Nothing is stored.
    """
    started = time.perf_counter()
    past = [
        message
        for asked, said in history
        for message in (PastMessage(role="user", text=asked), PastMessage(role="assistant", text=said))
    ]
    decision = decider.decide(question, past)
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


Figure = dict[str, Any]
"""value: a share (0 to 1) or a median, None if n, the count, is 0. low, high: its 95 % interval."""
NOTHING: Figure = {"value": None, "low": None, "high": None, "n": 0}


def share(flags: Sequence[bool]) -> Figure:
    """Return the share that is true, with Wilson's interval (1927), which is also valid for few cases."""
    n = len(flags)
    if not n:
        return NOTHING
    found = binomtest(sum(flags), n).proportion_ci(method="wilson")
    return {"value": round(sum(flags) / n, 4), "low": round(found.low, 4), "high": round(found.high, 4), "n": n}


def middle_of(values: Sequence[float], percent: float = 50) -> Figure:
    """Return a percentile, with the order statistics that contain it with at least 95 % probability (binomial)."""
    ordered, n = sorted(values), len(values)
    if not n:
        return NOTHING
    first, last = (int(place) for place in binom.ppf((0.025, 0.975), n, percent / 100))
    low, high = round(ordered[max(0, first - 1)], 1), round(ordered[min(n - 1, last)], 1)
    return {"value": round(percentile(ordered, percent), 1), "low": low, "high": high, "n": n}


POINTS_BACK = re.compile(
    r"(?:it|its|they|them|their|this|that|these|those|then|otherwise|instead|both|there|also|if so|if not)\b",
    re.IGNORECASE,
)
_FULL_WIDTH_MARKS = "\u3000-\u303f\uff01-\uff0f\uff1a-\uff1f"
_WORD = re.compile(rf"[{CHINESE_JAPANESE}]{{1,2}}|[^\s{CHINESE_JAPANESE}{_FULL_WIDTH_MARKS}]+")
"""Text between spaces, or two Chinese or Japanese characters, the usual length of their words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedAnswer:
    """A question, the answer shown for it, and judgements of the answer."""

    question: CustomerQuestion
    shown: ShownAnswer

    @property
    def num_words(self) -> int:
        return len(_WORD.findall(self.shown.text))

    @property
    def has_all_facts(self) -> bool:
        return bool(self.question.facts) and holds_all("\n".join(self.shown.statements), self.question.facts)

    @property
    def has_page_first(self) -> bool:
        return any(_is_page(document, self.question.articles) for document in self.shown.documents[:1])

    @property
    def has_page(self) -> bool:
        return any(_is_page(document, self.question.articles) for document in self.shown.documents)

    @property
    def is_harmful(self) -> bool:
        """Return whether a statement has words, or is from a page, that must not be quoted for this question."""
        said = any(holds_fact("\n".join(self.shown.statements), [words]) for words in self.question.not_said)
        return said or any(_is_page(document, self.question.not_from) for document in self.shown.quoted)

    @property
    def beside_the_point(self) -> list[bool]:
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
        }


def figures(judged: Sequence[JudgedAnswer]) -> dict[str, Figure]:
    """Return the figures by name. The start of a name shows which questions the share counts, except: right_page_first,
    right_page_any: share of answerable questions whose page is known. all_facts, facts_first (in the first statement),
    dead_ends (neither all facts nor a page that has them), contradicted: share of answerable questions. harmful: of
    questions that name pages or words that must not be quoted. answered_all_facts: share of answered questions.
    beside_the_point: share of statements shown for answerable questions. smalltalk_handled: share of small talk.
    smalltalk_mistaken: share of all other questions. words, first_token_ms: median of answered and unsure. search_ms
    (median), search_ms_p95: for all but small talk; the time of everything before the language model.
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
        "facts_first": share([holds_all("".join(one.shown.statements[:1]), one.question.facts) for one in with_facts]),
        "answered_all_facts": share([one.has_all_facts for one in with_facts if one.shown.outcome == "answered"]),
        "dead_ends": share([not one.has_all_facts and not one.has_page for one in answerable]),
        "contradicted": share([bool(one.contradictions) for one in with_facts]),
        "harmful": share([one.is_harmful for one in judged if one.question.not_from or one.question.not_said]),
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
        "search_ms": middle_of([one.shown.find_ms for one in serious]),
        "search_ms_p95": middle_of([one.shown.find_ms for one in serious], 95),
    }


MEDIANS = frozenset(("words", "first_token_ms", "search_ms", "search_ms_p95"))  # not shares


def markdown(summary: dict[str, Figure]) -> str:
    lines = ["| figure | value | 95 % interval | n |", "|---|---|---|---|"]
    for name, figure in summary.items():
        if figure["value"] is None:
            lines.append(f"| {name.replace('_', ' ')} | | | 0 |")
            continue
        scale, unit = (1, "") if name in MEDIANS else (100, " %")
        low, value, high = (f"{scale * number:.0f}" for number in (figure["low"], figure["value"], figure["high"]))
        lines.append(f"| {name.replace('_', ' ')} | {value}{unit} | {low} to {high} | {figure['n']} |")
    return "\n".join(lines)


def _part(judged: Sequence[JudgedAnswer], outcome: str) -> Figure:
    return share([one.shown.outcome == outcome for one in judged])


def _is_page(document: str, articles: Sequence[str]) -> bool:
    return any(document == article or document.endswith(f"/{article}") for article in articles)


Arm: TypeAlias = Literal["search", "shipped", "checked"]


def measure_helpdesk(
    service: Service,
    documents: Path,
    questions: list[CustomerQuestion],
    *,
    arm: Arm,
    report: Callable[[str], None],
) -> dict[str, Any]:
    """Ingest new documents of the folder, and ask all questions. Returns rows, and a summary of figures over all rows.
    Raises DeskError if the desk has other documents, which search would also find.
    """
    fill(service, documents, warm=arm != "search", report=report)
    judged = judged_answers(service, questions, arm=arm, report=report)
    return {"rows": [one.row() for one in judged], "summary": figures(judged)}


def judged_answers(
    service: Service, questions: Sequence[CustomerQuestion], *, arm: Arm, report: Callable[[str], None]
) -> list[JudgedAnswer]:
    decider = Decider(service.settings, service.finder)
    decider.decide(questions[0].question, [])  # opens the index and the embedder
    judged = []
    for number, question in enumerate(questions, start=1):
        shown = (
            ask_search(decider, question.question, question.history)
            if arm == "search"
            else ask_desk(service, question.question, question.history)
        )
        judged.append(JudgedAnswer(question=question, shown=shown))
        report(f"{number}/{len(questions)} {judged[-1].verdict}: {question.question}")
    return judged


def compare_modes(
    service: Service, documents: Path, questions: Sequence[CustomerQuestion], report: Callable[[str], None]
) -> tuple[ModeMetrics, ModeMetrics]:
    """Return the metrics of the model's own words and of quotations. service: answers in the model's own words."""
    fill(service, documents, warm=True, report=report)
    checked, quoted = (judged_answers(service, questions, arm=arm, report=report) for arm in OWN_AND_QUOTED)
    return mode_metrics(checked, "checked"), mode_metrics(quoted, "quote")


OWN_AND_QUOTED: tuple[Arm, Arm] = ("checked", "search")  # search composes the same quotations, without the model


def mode_metrics(judged: Sequence[JudgedAnswer], mode: AnswerMode) -> ModeMetrics:
    serious = [one for one in judged if not one.question.is_small_talk]
    told = [one.num_words for one in serious if one.shown.outcome in ("answered", "unsure")]
    return ModeMetrics(
        mode=mode,
        questions=len(serious),
        right=sum(one.has_all_facts for one in serious),
        wrong=sum(one.shown.outcome == "answered" and not one.has_all_facts for one in serious),
        words=middle_of(told)["value"],
    )


def folder_of(documents: Path) -> Path:
    folder = documents.resolve()
    if not folder.is_dir():
        raise DeskError(f"there is no folder {str(documents)!r}", code="no-such-file")
    return folder


def fill(service: Service, documents: Path, *, warm: bool, report: Callable[[str], None]) -> None:
    folder = folder_of(documents)
    others = [one.path for one in service.documents() if not Path(one.path).is_relative_to(folder)]
    if others:
        raise DeskError(
            f"the data folder has other documents ({others[0]}): give another --data-dir", code="other-documents"
        )
    done = service.ingest([folder], sync=True, warm=warm)
    report(f"{done.documents} documents, {done.passages} passages, {done.seconds:.0f} s")
    if not done.documents:
        raise DeskError(f"{documents} has no readable document", code="no-documents")
    if warm:
        service.prepare()
