"""Fits the models of `retrieval.answerability.classifier`: do the likeliest statements answer, and which one does?

Logistic regression over the features of what the desk would find, for questions of several help desks: those with an
answer, those without one, and near misses, which are the questions with an answer asked again while the passages that
hold it are hidden. Every help desk counts the same, however many questions it has.

`certain` is chosen so that ANSWERED of the unanswerable questions are answered as sure, `threshold` so that REFUSED of
the answerable ones are refused, each in the help desk for which it is lowest: an unseen desk is harder than those that
were fitted. The quality that is reported comes from models fitted without the help desk they judge;
with one help desk alone, from models fitted without a tenth of its questions.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from app.desk.service import Service
from app.domain.errors import DeskError
from app.domain.settings import Settings
from app.knowledge.finder import CANDIDATES, Finder, JudgedQuestion
from evals.labelled_questions import LabelledQuestion, read_labelled
from retrieval.answerability.classifier import AnswerabilityClassifier
from retrieval.answerability.features import Candidate, QuestionFeatures
from retrieval.answerability.logistic import LogisticModel

ANSWERED = 0.25
"""Share of the unanswerable questions, near misses among them, that may be answered as sure."""
REFUSED = 0.01
"""Share of the answerable questions that may be refused."""
SHOWN = 2
"""An answer is right if one of so many of the likeliest statements is."""
KEPT = 60
"""The likeliest statements of a question that are fitted."""
STRENGTH = 0.3
"""Inverse regularisation strength of all models; ten times more or less changes nothing."""
FOLDS = 10
LEAST = 20
"""Questions of each kind that are needed."""
WRITTEN_FEATURES = ("covered", "stated", "score", "rest", "expected")
"""Features that do not depend on ranker and embedder."""

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedCase:
    """A question as it was found. desk: the help desk it is of. right: for each candidate whether it answers."""

    desk: str
    judged: JudgedQuestion
    is_answerable: bool
    right: tuple[bool, ...]

    @property
    def ranked(self) -> tuple[tuple[float, Candidate], ...]:
        """The candidates with their log-odds."""
        return self.judged.statements.ranked


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchCalibration:
    """The fitted classifier, and its quality on questions it was not fitted on. auc: area under the ROC curve of right
    answers against all others. answered, answered_right, answered_wrongly: shares of the answerable questions that are
    answered as sure, of those that are right, and of the unanswerable ones that are answered.
    """

    classifier: AnswerabilityClassifier
    answerable: int
    unanswerable: int
    auc: float
    answered: float
    answered_right: float
    answered_wrongly: float


def calibrate(
    settings: Settings, data: Sequence[Path], documents: Sequence[Path], *, report: Callable[[str], None]
) -> SearchCalibration:
    """Look for the questions of every file in its documents, in a desk of their own, and fit. documents: a folder for
    each file, or none: the desk of the settings is asked. Raises DeskError.
    """
    if documents and len(documents) != len(data):
        raise DeskError(
            f"{len(data)} files of questions and {len(documents)} folders of documents: give one folder for each file",
            code="bad-questions",
        )
    questions = [read_labelled(file) for file in data]
    cases: list[JudgedCase] = []
    with TemporaryDirectory(prefix="warmdesk-") as temporary:
        for number, some in enumerate(questions):
            folder = Path(temporary) / str(number)
            folder.mkdir()
            own = {**settings.model_dump(exclude={"database_url"}), "data_dir": folder}
            with Service(Settings(**own) if documents else settings) as service:
                if documents:
                    service.ingest([documents[number]], warm=False)
                name = documents[number].stem if documents else "this desk"
                cases += judged_cases(service.finder, some, name, CANDIDATES, report)
                names = service.search.embedder.name, service.statements.encoder.name
    return fit(cases, *names)


def judged_cases(
    finder: Finder,
    questions: Sequence[LabelledQuestion],
    desk: str,
    count: int,
    report: Callable[[str], None],
    collections: Sequence[str] = (),
) -> Iterator[JudgedCase]:
    """What is found for the questions of a help desk, and for its near misses. count: passages that are searched."""
    for number, question in enumerate(questions, start=1):
        if number % 100 == 0 or number == len(questions):
            report(f"{desk}: {number}/{len(questions)} questions")
        judged = finder.judge(question.question, earlier=question.earlier, count=count, collections=collections)
        case = labelled(question, judged, desk)
        if case is None:
            continue
        yield case
        if case.is_answerable:
            holding = {
                judged.hits[one.passage].id for (_, one), right in zip(case.ranked, case.right, strict=True) if right
            }
            hidden = finder.judge(
                question.question, earlier=question.earlier, count=count, collections=collections, without=holding
            )
            if hidden.statements.ranked:
                right = (False,) * len(hidden.statements.ranked)
                yield JudgedCase(desk=desk, judged=hidden, is_answerable=False, right=right)


def labelled(question: LabelledQuestion, judged: JudgedQuestion, desk: str) -> JudgedCase | None:
    """A question with what is right among its candidates; None if nothing can be learned from it."""
    passages = [judged.passages[hit.id] for hit in judged.hits]
    right = tuple(question.is_answered_by(one.statement, passages[one.passage]) for _, one in judged.statements.ranked)
    if not right or (question.is_answerable and not any(right)):
        return None  # not found, or told in other words: unknown which statement is right
    return JudgedCase(desk=desk, judged=judged, is_answerable=question.is_answerable, right=right)


def fit(cases: Sequence[JudgedCase], embedder: str, ranker: str) -> SearchCalibration:
    """All models, and their quality. Raises DeskError if there are too few questions with or without an answer."""
    answerable = sum(case.is_answerable for case in cases)
    if min(answerable, len(cases) - answerable) < LEAST:
        raise DeskError(
            f"{answerable} questions with an answer that was found, {len(cases) - answerable} without: "
            f"{LEAST} of each are needed",
            code="too-few-questions",
        )
    desks = sorted({case.desk for case in cases if case.is_answerable})
    parts = [case.desk for case in cases] if len(desks) > 1 else [str(n % FOLDS) for n in range(len(cases))]
    probabilities, right = np.zeros(len(cases)), np.zeros(len(cases), bool)
    for part in sorted(set(parts)):
        inside = [n for n, one in enumerate(parts) if one == part]
        others = [case for case, one in zip(cases, parts, strict=True) if one != part]
        model = _classifier(others, embedder, ranker, "")
        for n in inside:
            probabilities[n], right[n] = _judged(model, cases[n])
    told = np.array([case.is_answerable for case in cases])
    desk_of = np.array([case.desk for case in cases])
    classifier = _classifier(cases, embedder, ranker, f"{answerable:,} questions of {', '.join(desks)}")
    certain, threshold = (
        float(np.min([np.quantile(probabilities[n], share) for desk in desks if (n := of & (desk_of == desk)).any()]))
        for of, share in ((~told, 1 - ANSWERED), (told, REFUSED))
    )
    classifier = replace(classifier, certain=round(certain, 4), threshold=round(min(threshold, certain), 4))
    sure = probabilities >= certain
    return SearchCalibration(
        classifier=classifier,
        answerable=answerable,
        unanswerable=len(cases) - answerable,
        auc=round(float(roc_auc_score(right & told, probabilities)), 4),
        answered=round(float(sure[told].mean()), 4),
        answered_right=round(float(right[told & sure].sum() / max(1, (told & sure).sum())), 4),
        answered_wrongly=round(float(sure[~told].mean()), 4),
    )


def _judged(model: AnswerabilityClassifier, case: JudgedCase) -> tuple[float, bool]:
    """The probability that the model gives, and whether what it would show is right."""
    order = _order(model, case)
    return model.is_answered(_features(model, case, order)), any(case.right[n] for n in order[:SHOWN])


def _order(model: AnswerabilityClassifier, case: JudgedCase) -> list[int]:
    logits = [model.answers(one.features) for _, one in case.ranked]
    return sorted(range(len(logits)), key=lambda n: -logits[n])


def _features(model: AnswerabilityClassifier, case: JudgedCase, order: Sequence[int]) -> QuestionFeatures:
    """The features as they would be with this model."""
    assert case.judged.statements.measures is not None
    candidates = [case.ranked[n][1] for n in order]
    return case.judged.statements.measures.features([(model.answers(one.features), one) for one in candidates])


def _classifier(cases: Sequence[JudgedCase], embedder: str, ranker: str, fitted_on: str) -> AnswerabilityClassifier:
    share = {desk: 1 / sum(case.desk == desk for case in cases) for desk in {case.desk for case in cases}}
    rows: list[dict[str, float]] = []
    labels: list[bool] = []
    weights: list[float] = []
    for case in cases:
        if not case.is_answerable:
            continue
        some = sorted(zip(case.ranked, case.right, strict=True), key=lambda pair: -pair[0][1].features.ranked)
        for (_, one), right in some[:KEPT]:
            rows.append(asdict(one.features))
            labels.append(right)
            weights.append(share[case.desk] / (sum(case.right) if right else len(some)))
    statement = fitted([name for name in rows[0] if name != "code"], rows, labels, weights)
    model = AnswerabilityClassifier(
        embedder=embedder,
        ranker=ranker,
        fitted_on=fitted_on,
        threshold=0.0,
        certain=0.0,
        relevance=statement,
        written=statement,
        statement=statement,
    )
    orders = [_order(model, case) for case in cases]
    of_questions = [asdict(_features(model, case, order)) for case, order in zip(cases, orders, strict=True)]
    is_right = [any(case.right[n] for n in order[:SHOWN]) for case, order in zip(cases, orders, strict=True)]
    counts = [share[case.desk] for case in cases]
    names = [name for name in of_questions[0] if name != "trust"]
    return replace(
        model,
        relevance=fitted(names, of_questions, is_right, counts),
        written=fitted(list(WRITTEN_FEATURES), of_questions, is_right, counts),
    )


def fitted(
    names: Sequence[str], rows: Sequence[dict[str, float]], labels: Sequence[bool], weights: Sequence[float]
) -> LogisticModel:
    """A logistic regression over named features. weights: how much each row counts."""
    matrix: Matrix = np.array([[row[name] for name in names] for row in rows])
    model: Any = make_pipeline(StandardScaler(), LogisticRegression(C=STRENGTH, max_iter=500))
    counted = np.asarray(weights) / np.mean(weights)
    model.fit(matrix, labels, logisticregression__sample_weight=counted)
    scaler, regression = model[0], model[1]

    def named(values: Matrix) -> dict[str, float]:
        return {name: round(float(value), 5) for name, value in zip(names, values, strict=True)}

    return LogisticModel(
        weights=named(regression.coef_[0]),
        means=named(scaler.mean_),
        deviations=named(scaler.scale_),
        bias=round(float(regression.intercept_[0]), 5),
    )
