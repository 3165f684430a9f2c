"""Fits the models of `retrieval.answerability.classifier`: do passages answer a question, and which statement does?

Logistic regression over the features of the passages that the desk would find, for questions whose answer is a sentence
of the documents and questions without an answer. The threshold refuses FALSE_REFUSALS of the answered questions; each
question's probability comes from a model that was fitted without it (cross-validation).
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from app.domain.errors import DeskError
from app.domain.settings import Settings
from app.knowledge.finder import wordings
from evals.recall_questions import Corpus, RememberingEmbedder, corpus_of_folder
from retrieval.answerability.classifier import AnswerabilityClassifier
from retrieval.answerability.features import (
    AnalysedPassage,
    PassageFeatures,
    StatementFeatures,
    analyse,
    passage_features,
    statement_features,
)
from retrieval.answerability.logistic import LogisticModel
from retrieval.search.embedding import Embedder, Vectors
from retrieval.search.retriever import PassageHit
from retrieval.text.terms import words

FALSE_REFUSALS = 0.05
"""Share of answered questions that may be refused. Chosen on the sample questions, of which only 22 have no answer:
the F1 of refusals is .81 at .04, .87 at .05, .80 at .06."""
SAME_STATEMENT = 0.45
"""A statement is the answer if it has at least this share of the answer's words."""
WRITTEN_FEATURES = ("covered",)
"""Features that do not depend on the embedder."""
FOLDS = 10
STRENGTH = 0.3
"""Inverse regularisation strength of all models; ten times more or less changes nothing."""

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledQuestion:
    """A question with its answer, None if the documents do not answer it."""

    question: str
    answer: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchCalibration:
    """The fitted classifier, and its quality by cross-validation. answered, unanswered: numbers of questions. auc: area
    under the ROC curve. refused_right: share of the unanswered questions below the threshold.
    """

    classifier: AnswerabilityClassifier
    answered: int
    unanswered: int
    auc: float
    refused_right: float


def calibrate_search(
    settings: Settings,
    embedder: Embedder,
    files: Sequence[Path],
    documents: Path,
    *,
    report: Callable[[str], None],
) -> SearchCalibration:
    """Fit all models. Raises DeskError if there are too few questions with or without an answer."""
    questions = [question for file in files for question in read_labelled(file)]
    answered = sum(question.answer is not None for question in questions)
    if min(answered, len(questions) - answered) < 2 * FOLDS:
        raise DeskError(
            f"{answered} questions with an answer, {len(questions) - answered} without: {2 * FOLDS} of each are needed",
            code="too-few-questions",
        )
    remembering = RememberingEmbedder(embedder)
    corpus = corpus_of_folder(documents, settings, remembering, report)
    retriever = corpus.retriever(remembering)
    of_questions: list[PassageFeatures] = []
    of_sentences: list[tuple[list[StatementFeatures], int]] = []
    for number, question in enumerate(questions, start=1):
        query = retriever.query(wordings(question.question, None)[0])
        if not question.question.strip():
            raise DeskError(f"question {number} is empty", code="bad-row")
        hits = retriever.search([query], settings.passages)
        passages = analyse_hits(corpus, hits, remembering.embed_sentences)
        of_questions.append(passage_features(retriever, query, query, passages))
        if question.answer is not None:
            texts = [text for passage in passages for text in passage.statements]
            features = [one for ones in statement_features(retriever, query, query, passages) for one in ones]
            right = closest(question.answer, texts)
            if right is not None:
                of_sentences.append((features, right))
        if number % 100 == 0 or number == len(questions):
            report(f"{number}/{len(questions)} questions")
    labels = np.array([question.answer is not None for question in questions])
    return fit(embedder.name, of_questions, labels, of_sentences, " and ".join(file.name for file in files))


def fit(
    embedder: str,
    of_questions: Sequence[PassageFeatures],
    labels: npt.NDArray[np.bool_],
    of_sentences: Sequence[tuple[list[StatementFeatures], int]],
    fitted_on: str,
) -> SearchCalibration:
    """All models from the features. labels: whether each question is answered. of_sentences: the features of all
    sentences that were found for a question, and which of them answers it.
    """
    if not of_sentences:
        raise DeskError("no answer is a sentence of the documents: are these the right ones?", code="no-answers")
    names = [name for name in asdict(of_questions[0]) if name != "trust"]
    rows = np.array([[asdict(features)[name] for name in names] for features in of_questions])
    judged = cross_val_predict(_model(), rows, labels, cv=FOLDS, method="predict_proba")[:, 1]
    threshold = float(np.quantile(judged[labels], FALSE_REFUSALS))
    columns = [names.index(name) for name in WRITTEN_FEATURES]
    sentence_names = list(asdict(of_sentences[0][0][0]))
    sentence_rows = np.array(
        [[asdict(one)[n] for n in sentence_names] for features, _ in of_sentences for one in features]
    )
    is_right = np.array([number == right for features, right in of_sentences for number in range(len(features))])
    classifier = AnswerabilityClassifier(
        embedder=embedder,
        fitted_on=f"{len(labels):,} questions of {fitted_on}",
        threshold=round(threshold, 4),
        certain=round(threshold, 4),
        relevance=_fitted(names, rows, labels, balanced=True),
        written=_fitted(list(WRITTEN_FEATURES), rows[:, columns], labels, balanced=True),
        sentence=_fitted(sentence_names, sentence_rows, is_right, balanced=False),
    )
    return SearchCalibration(
        classifier=classifier,
        answered=int(labels.sum()),
        unanswered=int((~labels).sum()),
        auc=round(float(roc_auc_score(labels, judged)), 4),
        refused_right=round(float((judged[~labels] < threshold).mean()), 4),
    )


def _model(*, balanced: bool = True) -> Any:
    weight = "balanced" if balanced else None
    return make_pipeline(StandardScaler(), LogisticRegression(C=STRENGTH, class_weight=weight, max_iter=500))


def _fitted(names: Sequence[str], rows: Matrix, labels: npt.NDArray[np.bool_], *, balanced: bool) -> LogisticModel:
    model = _model(balanced=balanced).fit(rows, labels)
    scaler, regression = model[0], model[1]

    def named(values: Matrix) -> dict[str, float]:
        return {name: round(float(value), 5) for name, value in zip(names, values, strict=True)}

    return LogisticModel(
        weights=named(regression.coef_[0]),
        means=named(scaler.mean_),
        deviations=named(scaler.scale_),
        bias=round(float(regression.intercept_[0]), 5),
    )


def analyse_hits(
    corpus: Corpus, hits: Sequence[PassageHit], embed: Callable[[Sequence[str]], Vectors]
) -> list[AnalysedPassage]:
    """The passages found, with their statements."""
    passages = [corpus.passages[hit.id] for hit in hits]
    return analyse(hits, [(passage.heading_path, passage.text) for passage in passages], embed)


def closest(answer: str, statements: Sequence[str]) -> int | None:
    """The place of the statement with most of the answer's words, the shortest of equals; None if none has enough."""
    said = set(words(answer))
    shares = [len(said & set(words(statement))) / max(1, len(said)) for statement in statements]
    best = max(range(len(shares)), key=lambda n: (shares[n], -len(statements[n])), default=None)
    return best if best is not None and shares[best] >= SAME_STATEMENT else None


def read_labelled(file: Path) -> list[LabelledQuestion]:
    """JSON lines {question, answer}, {question} or {title, context, qas: [{question, answers}]}. Raises DeskError."""
    found: list[LabelledQuestion] = []
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
        for row in (json.loads(line) for line in lines if line.strip()):
            if "qas" in row:
                pairs = [(qa["question"], next(iter(qa["answers"]), None)) for qa in row["qas"]]
            else:
                pairs = [(row["question"], row.get("answer"))]
            found += [LabelledQuestion(question=question, answer=answer) for question, answer in pairs]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DeskError(f"{file} cannot be read as questions: {error}", code="bad-file") from error
    return found
