"""`warmdesk eval helpdesk --found FILE`: search once, then decide again in seconds.

The file has the passages and the ranked statements of each question. The code that serves customers then decides and
chooses from this file, without a desk. Delete the file when the documents, the questions or the search change.

Each sign (a number used to decide) has an AUC (the probability that an answerable question has a higher sign than an
unanswerable one) and the share of answerable questions kept when at most `FALSE` of the unanswerable are answered. Two
signs are baselines. question_only: logistic regression on the words of the question, out of fold; a pair (ids "1-miss",
"1-twin") is in one fold. word_overlap: highest share of the question's words in a passage. Intervals: bootstrap.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter, ValidationError
from scipy.stats import bootstrap
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.pipeline import make_pipeline

from app.answering.prepare import Decider
from app.desk.service import Service
from app.domain.errors import DeskError
from app.domain.settings import Settings
from app.knowledge import finder
from app.knowledge.finder import Finder, SearchResults
from evals.answers.helpdesk import NOTHING, Figure, JudgedAnswer, ask_search, figures, fill
from evals.answers.questions import CustomerQuestion
from retrieval.answerability import AnswerabilityClassifier
from retrieval.text.codes import terms_of
from retrieval.text.terms import COMMON, asked_words, stem

FALSE = 0.2  # share of the unanswerable questions that may be answered
FOLDS = 10

Signs = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundQuestion:
    """A question as it was asked, and its search results."""

    question: str
    earlier: str | None
    results: SearchResults


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    classifier: AnswerabilityClassifier  # with the thresholds of the desk that searched
    found: list[FoundQuestion]


FILE = TypeAdapter(_File)


class FoundBefore(Finder):
    """Returns the results in the file. Other texts, for example the search for the contact page, have no results."""

    def __init__(self, kept: _File) -> None:
        self.classifier = kept.classifier
        self.found = {(one.question, one.earlier): one.results for one in kept.found}

    def find(self, question: str, *, earlier: str | None = None, **_: Any) -> SearchResults:
        return self.found.get((question, earlier), finder.NOTHING)


def search_once(
    service: Service, documents: Path, questions: Sequence[CustomerQuestion], file: Path, report: Callable[[str], None]
) -> None:
    """Ingest the documents, search for every question, and write the results into the file."""
    fill(service, documents, warm=False, report=report)
    find = partial(service.finder.find, count=service.settings.passages)
    found = [
        FoundQuestion(question=one.question, earlier=earlier, results=find(one.question, earlier=earlier))
        for one, (_, earlier) in zip(questions, map(_asked, questions), strict=True)
    ]
    file.write_bytes(FILE.dump_json(_File(classifier=service.finder.classifier, found=found)))


def _asked(question: CustomerQuestion) -> tuple[str, str | None]:
    return question.question, question.history[-1][0] if question.history else None


def replay(file: Path, questions: Sequence[CustomerQuestion], settings: Settings) -> dict[str, Any]:
    """Return rows and a summary as `measure_helpdesk` does, without times, and with the figures of the decision."""
    try:
        before = FoundBefore(FILE.validate_json(file.read_bytes()))
        results = [before.found[_asked(one)] for one in questions]
    except (OSError, ValidationError) as error:
        raise DeskError(f"{file} has no search results of this version: delete it", code="bad-found") from error
    except KeyError as error:
        raise DeskError(f"{file} lacks {error.args[0][0]!r}: delete it to search again", code="bad-found") from error
    decider = Decider(settings, before)
    judged = [JudgedAnswer(question=one, shown=ask_search(decider, one.question, one.history)) for one in questions]
    told = {name: figure for name, figure in figures(judged).items() if "ms" not in name.split("_")}
    return {"rows": [one.row() for one in judged], "summary": told | decision_figures(questions, results)}


def decision_figures(questions: Sequence[CustomerQuestion], results: Sequence[SearchResults]) -> dict[str, Figure]:
    """Return AUC and share kept of each sign, over all questions except small talk."""
    serious = [(one, found) for one, found in zip(questions, results, strict=True) if not one.is_small_talk]
    answerable = np.array([one.is_answerable for one, _ in serious], bool)
    signs = {
        "relevance": np.array([found.relevance for _, found in serious]),
        "question_only": question_only([one for one, _ in serious], answerable),
        "word_overlap": np.array([word_overlap(one.question, found) for one, found in serious]),
    }
    return {
        f"{name}_{sign}": _figure(measure, values[answerable], values[~answerable])
        for name, measure in (("auc", auc), ("kept", kept))
        for sign, values in signs.items()
    }


def question_only(questions: Sequence[CustomerQuestion], answerable: npt.NDArray[np.bool_]) -> Signs:
    """Return for each question the probability, by its words alone, that it is answerable; zeros for few questions."""
    pairs = [one.id.rpartition("-")[0] or one.id for one in questions]
    if len(set(pairs)) < FOLDS or len(set(answerable)) < 2:
        return np.zeros(len(questions))
    model = make_pipeline(CountVectorizer(token_pattern=r"\w+|\?"), LogisticRegression(max_iter=1000))
    folds = GroupKFold(FOLDS, shuffle=True, random_state=0)
    texts = [one.question for one in questions]
    found = cross_val_predict(model, texts, answerable, groups=pairs, cv=folds, method="predict_proba")
    return np.asarray(found[:, 1], np.float64)


def word_overlap(question: str, results: SearchResults) -> float:
    asked = {stem(word) for word in asked_words(question)} - COMMON
    held = (terms_of("\n".join([*one.passage.heading_path, one.passage.text])) for one in results.found)
    return max((len(asked & terms) / len(asked) for terms in held), default=0.0) if asked else 0.0


def auc(answerable: Signs, unanswerable: Signs) -> float:
    above = answerable[:, None] - unanswerable
    return float((above > 0).mean() + (above == 0).mean() / 2)


def kept(answerable: Signs, unanswerable: Signs) -> float:
    bar = np.sort(unanswerable)[::-1][int(FALSE * len(unanswerable))]  # the highest value that must not be answered
    return float((answerable > bar).mean())


def _figure(measure: Callable[[Signs, Signs], float], answerable: Signs, unanswerable: Signs) -> Figure:
    both = answerable, unanswerable
    if min(map(len, both)) < 2:
        return NOTHING
    drawn = bootstrap(both, measure, n_resamples=1000, vectorized=False, method="percentile", rng=0)
    ends = drawn.confidence_interval
    low, value, high = (round(float(one), 4) for one in (ends.low, measure(*both), ends.high))
    return {"value": value, "low": low, "high": high, "n": len(answerable) + len(unanswerable)}
