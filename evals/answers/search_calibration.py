"""Fit the models of `retrieval.answerability`: do the most likely statements answer, and which one does?

Logistic regression over the features of search results, for questions of several help desks: answerable questions,
unanswerable ones, and near misses. A near miss is an answerable question asked again while the passages that hold its
answer are hidden. Every help desk has the same weight, whatever its number of questions.

Questions in languages that the embedder does not know have separate models, which use words only. They are fitted on
such questions if there are enough, otherwise on all. Their near misses also include the same questions while only the
statements that answer are hidden: with words alone, the presence of the page must not be enough.

`certain` is chosen so that the share ANSWERED of the unanswerable questions gets a confident answer, on average over
the help desks. `threshold` is chosen so that the share REFUSED of the answerable ones is refused in the help desk for
which it is lowest, because an unseen help desk may be harder. The reported quality comes from models fitted without
the help desk that they judge, or, with one help desk only, without a consecutive tenth of its questions.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import logit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from app.desk.service import Service
from app.domain.errors import DeskError
from app.domain.settings import Settings
from app.knowledge.finder import CANDIDATES, Finder, JudgedQuestion
from evals.answers.questions import LabelledQuestion, read_labelled
from retrieval.answerability import (
    LEAST_TRUST,
    AnswerabilityClassifier,
    Candidate,
    LogisticModel,
    QuestionFeatures,
    statement_logit,
)

ANSWERED = 0.2  # share of the unanswerable questions, including near misses, that may get a confident answer
REFUSED = 0.003  # share of the answerable questions that may be refused
SHOWN = 2  # number of most likely statements; an answer is right if one of them is right
KEPT = 60  # number of most likely statements of a question that are fitted
STRENGTH = 0.3  # inverse regularisation strength of all models; ten times more or less changes nothing
SPREAD = 0.5
"""Factor of the log-odds of statements ranked by words only. Their order is less certain than the ranker's, so more of
them count as about equally likely (`app.answering.checking`).
"""
TINY = 1e-9  # the lowest probability whose log-odds are used
FOLDS = 10
LEAST = 20  # minimum number of questions of each kind
STATEMENT_FEATURES = ("ranked", "covered", "passage", "behind", "rank", "expected")
QUESTION_FEATURES = ("likely", "cosine", "score", "rest")
"""Features of the models with ranker and embedder. Others did not help on a help desk left out of the fit."""
WRITTEN_STATEMENT_FEATURES = (
    "covered", "own", "before", "parts", "beyond", "passage", "behind", "rank", "length", "expected"
)  # fmt: skip
WRITTEN_FEATURES = ("likely", "others", "score", "rest", "covered", "stated", "parts", "beyond", "expected")
"""Features of the models that use words only."""

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedCase:
    """A question with its search results. desk: its help desk. right: for each candidate whether it answers."""

    desk: str
    judged: JudgedQuestion
    is_answerable: bool
    right: tuple[bool, ...]

    @property
    def is_known(self) -> bool:
        return self.ranked[0][1].features.trust >= LEAST_TRUST

    @property
    def ranked(self) -> tuple[tuple[float, Candidate], ...]:
        return self.judged.statements.ranked


Calibration = tuple[AnswerabilityClassifier, dict[str, float]]
"""The fitted classifier, and its quality on questions it was not fitted on. answerable, unanswerable: their numbers.
auc: area under the ROC curve of right answers against all others. Confident answers: answered, share of answerable
questions; answered_right, right ones among these; answered_wrongly, share of unanswerable questions. written_...: the
same for the models that use words only.
"""


def calibrate(
    settings: Settings, data: Sequence[Path], documents: Sequence[Path], *, report: Callable[[str], None]
) -> Calibration:
    """Run search on each file's questions, and fit the classifiers. documents: one folder per file, each for a
    temporary installation; empty: use the installation of the settings. Raises DeskError.
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
) -> Iterator[JudgedCase]:
    """Search for a help desk's questions, and again without their answers (near misses). count: passages to find."""
    for number, question in enumerate(questions, start=1):
        if number % 100 == 0 or number == len(questions):
            report(f"{desk}: {number}/{len(questions)} questions")
        judged = finder.judge(question.question, earlier=question.earlier, count=count)
        case = labelled(question, judged, desk)
        if case is None:
            continue
        yield case
        if case.is_answerable:
            holding = {
                judged.hits[one.passage].id for (_, one), right in zip(case.ranked, case.right, strict=True) if right
            }
            hidden = finder.judge(question.question, earlier=question.earlier, count=count, without=holding)
            if hidden.statements.ranked:
                right = (False,) * len(hidden.statements.ranked)
                yield JudgedCase(desk=desk, judged=hidden, is_answerable=False, right=right)
            if not case.is_known and not all(case.right):
                yield _without_answers(case)


def _without_answers(case: JudgedCase) -> JudgedCase:
    left = [one for one, right in zip(case.ranked, case.right, strict=True) if not right]
    statements = replace(case.judged.statements, ranked=tuple(left))
    judged = replace(case.judged, statements=statements)
    return JudgedCase(desk=case.desk, judged=judged, is_answerable=False, right=(False,) * len(left))


def labelled(question: LabelledQuestion, judged: JudgedQuestion, desk: str) -> JudgedCase | None:
    """Mark the right candidates of a question. Returns None if nothing can be learned from it."""
    passages = [judged.passages[hit.id] for hit in judged.hits]
    right = tuple(question.is_answered_by(one.statement, passages[one.passage]) for _, one in judged.statements.ranked)
    if not right or (question.is_answerable and not any(right)):
        return None  # not found, or worded differently: the right statement is unknown
    return JudgedCase(desk=desk, judged=judged, is_answerable=question.is_answerable, right=right)


def fit(cases: Sequence[JudgedCase], embedder: str, ranker: str) -> Calibration:
    """Fit all models and measure them. Raises DeskError if there are too few questions with or without an answer."""
    answerable = sum(case.is_answerable for case in cases)
    if min(answerable, len(cases) - answerable) < LEAST:
        raise DeskError(
            f"search found an answer to {answerable} questions and none to {len(cases) - answerable}: "
            f"{LEAST} of each are needed",
            code="too-few-questions",
        )
    known = _of_many([case for case in cases if case.is_known])
    foreign = _of_many([case for case in cases if not case.is_known])
    trusting = _FittedModels.of(
        known if _are_enough(known) else cases, partial(_models, STATEMENT_FEATURES, QUESTION_FEATURES)
    )
    written = _FittedModels.of(
        foreign if _are_enough(foreign) else cases,
        partial(_models, WRITTEN_STATEMENT_FEATURES, WRITTEN_FEATURES, likely="parts", spread=SPREAD),
    )
    desks = sorted({case.desk for case in cases if case.is_answerable})
    classifier = AnswerabilityClassifier(
        embedder=embedder,
        ranker=ranker,
        fitted_on=f"{answerable:,} questions of {', '.join(desks)}",
        threshold=round(trusting.threshold, 4),
        certain=round(trusting.certain, 4),
        relevance=trusting.models.answered,
        statement=trusting.models.statement,
        written=written.shifted_to(trusting),
        written_statement=written.models.statement,
    )
    counts = {"answerable": answerable, "unanswerable": len(cases) - answerable}
    of_words = {f"written_{name}": value for name, value in written.quality().items()}
    return classifier, counts | trusting.quality() | of_words


def _of_many(cases: Sequence[JudgedCase]) -> list[JudgedCase]:
    """Keep the cases of help desks with enough cases. Every help desk has the same weight, so a few odd cases would
    weigh as much as hundreds.
    """
    count = Counter(case.desk for case in cases)
    return [case for case in cases if count[case.desk] >= LEAST]


def _are_enough(cases: Sequence[JudgedCase]) -> bool:
    answerable = sum(case.is_answerable for case in cases)
    return min(answerable, len(cases) - answerable) >= LEAST


@dataclass(frozen=True, slots=True, kw_only=True)
class _Models:
    """Two models. statement: does a statement answer? answered: do the most likely statements answer?"""

    statement: LogisticModel
    answered: LogisticModel

    def judged(self, case: JudgedCase) -> tuple[float, bool]:
        order, features = _ranked(self.statement, case)
        return self.answered.probability(features), any(case.right[n] for n in order[:SHOWN])


@dataclass(frozen=True, slots=True, kw_only=True)
class _FittedModels:
    """Models, and the judgement of each case by models that were fitted without it: arrays by case."""

    models: _Models
    probabilities: Matrix
    right: npt.NDArray[np.bool_]
    answerable: npt.NDArray[np.bool_]
    certain: float
    threshold: float

    @classmethod
    def of(cls, cases: Sequence[JudgedCase], fit_models: Callable[[Sequence[JudgedCase]], _Models]) -> "_FittedModels":
        desks = sorted({case.desk for case in cases if case.is_answerable})
        many = len(desks) > 1
        parts = [case.desk if many else str(n * FOLDS // len(cases)) for n, case in enumerate(cases)]
        probabilities, right = np.zeros(len(cases)), np.zeros(len(cases), bool)
        for part in sorted(set(parts)):
            models = fit_models([case for case, one in zip(cases, parts, strict=True) if one != part])
            for n in (n for n, one in enumerate(parts) if one == part):
                probabilities[n], right[n] = models.judged(cases[n])
        told = np.array([case.is_answerable for case in cases])
        desk_of = np.array([case.desk for case in cases])
        numbers = Counter(desk_of[~told])
        weights = np.array([1 / numbers[desk] for desk in desk_of[~told]])
        certain = float(np.quantile(probabilities[~told], 1 - ANSWERED, weights=weights, method="inverted_cdf"))
        least = [np.quantile(probabilities[told & (desk_of == desk)], REFUSED) for desk in desks]
        threshold = float(min(least))
        return cls(
            models=fit_models(cases),
            probabilities=probabilities,
            right=right,
            answerable=told,
            certain=certain,
            threshold=min(threshold, certain),
        )

    def quality(self) -> dict[str, float]:
        told, sure = self.answerable, self.probabilities >= self.certain
        return {
            "auc": round(float(roc_auc_score(self.right & told, self.probabilities)), 4),
            "answered": round(float(sure[told].mean()), 4),
            "answered_right": round(float(self.right[told & sure].sum() / max(1, (told & sure).sum())), 4),
            "answered_wrongly": round(float(sure[~told].mean()), 4),
        }

    def shifted_to(self, other: "_FittedModels") -> LogisticModel:
        """Return the model that judges whether a question is answered, with its log-odds scaled to the other models'
        thresholds.
        """
        certain, threshold, aim, least = logit(
            np.clip((self.certain, self.threshold, other.certain, other.threshold), TINY, 1 - TINY)
        )
        scale = (aim - least) / (certain - threshold) if certain > threshold and aim > least else 1.0
        model = _scaled(self.models.answered, scale)
        return replace(model, bias=round(model.bias - scale * certain + aim, 5))


def _scaled(model: LogisticModel, factor: float) -> LogisticModel:
    weights = {name: round(factor * weight, 5) for name, weight in model.weights.items()}
    return replace(model, weights=weights, bias=round(factor * model.bias, 5))


def _ranked(statement: LogisticModel, case: JudgedCase) -> tuple[list[int], QuestionFeatures]:
    assert case.judged.statements.measures is not None
    logits = [statement_logit(statement, one.features) for _, one in case.ranked]
    order = sorted(range(len(logits)), key=lambda n: -logits[n])
    return order, case.judged.statements.measures.features([(logits[n], case.ranked[n][1]) for n in order])


def _models(
    statement_names: Sequence[str],
    names: Sequence[str],
    cases: Sequence[JudgedCase],
    *,
    likely: str = "ranked",
    spread: float = 1.0,
) -> _Models:
    """Fit both models. likely: the feature that selects statements. spread: factor of their log-odds."""
    share = {desk: 1 / sum(case.desk == desk for case in cases) for desk in {case.desk for case in cases}}
    rows: list[dict[str, float]] = []
    labels: list[bool] = []
    weights: list[float] = []
    for case in cases:
        if not case.is_answerable:
            continue
        features = [(asdict(one.features), right) for (_, one), right in zip(case.ranked, case.right, strict=True)]
        some = sorted(features, key=lambda pair: -pair[0][likely])
        for row, right in some[:KEPT]:
            rows.append(row)
            labels.append(right)
            weights.append(share[case.desk] / (sum(case.right) if right else len(some)))
    statement = _scaled(fitted(statement_names, rows, labels, weights), spread)
    ranked = [_ranked(statement, case) for case in cases]
    of_questions = [asdict(features) for _, features in ranked]
    is_right = [any(case.right[n] for n in order[:SHOWN]) for case, (order, _) in zip(cases, ranked, strict=True)]
    counts = [share[case.desk] for case in cases]
    return _Models(statement=statement, answered=fitted(names, of_questions, is_right, counts))


def fitted(
    names: Sequence[str], rows: Sequence[dict[str, float]], labels: Sequence[bool], weights: Sequence[float]
) -> LogisticModel:
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
