"""Features of an answer worked out by hand, and what the fitted models make of them."""

from __future__ import annotations

import math
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest
from meanings import MeaningEmbedder, retriever_of

from retrieval.answerability.classifier import (
    LEAST_TRUST,
    AnswerabilityClassifier,
    load_classifier,
    rule_of_thumb,
    save_classifier,
)
from retrieval.answerability.features import (
    AnalysedPassage,
    PassageFeatures,
    StatementFeatures,
    analyse,
    passage_features,
    statement_features,
    terms_of,
)
from retrieval.answerability.logistic import LogisticModel
from retrieval.search.retriever import PassageHit, Retriever
from retrieval.search.sentence_embedder import SentenceEmbedder

SHIPPED = Path(__file__).parent.parent / "data" / "search.json"

NONE = PassageFeatures(**{field.name: 0.0 for field in fields(PassageFeatures)})
PLAIN = StatementFeatures(**{field.name: 0.0 for field in fields(StatementFeatures)})


# --- the model ------------------------------------------------------------------------------------------


def test_a_logistic_model_weighs_standardised_features() -> None:
    model = LogisticModel(
        weights={"a": 2.0, "b": -1.0}, means={"a": 1.0, "b": 0.0}, deviations={"a": 0.5, "b": 2.0}, bias=0.5
    )
    features = {"a": 1.25, "b": 3.0, "unnamed": 99.0}
    assert model.logit(features) == pytest.approx(0.5 + 2 * 0.5 - 1.5)
    assert model.probability({"a": 1.0, "b": 1.0}) == pytest.approx(0.5)
    assert model.probability({"a": 1.0, "b": 1.0 - 2 * math.log(3)}) == pytest.approx(0.75)


@pytest.mark.parametrize(("feature", "expected"), [(1e9, 1.0), (-1e9, 0.0)])
def test_features_beyond_measure_do_not_overflow(feature: float, expected: float) -> None:
    model = LogisticModel(weights={"a": 1.0}, means={"a": 0.0}, deviations={"a": 1e-6}, bias=0.0)
    assert model.probability({"a": feature}) == pytest.approx(expected)


def constant(bias: float) -> LogisticModel:
    return LogisticModel(weights={}, means={}, deviations={}, bias=bias)


def test_below_least_trust_words_alone_are_judged() -> None:
    classifier = replace(rule_of_thumb("x"), relevance=constant(math.log(3)), written=constant(-math.log(3)))
    trusts = (0.0, LEAST_TRUST - 0.01, LEAST_TRUST, 1.0)
    assert [classifier.is_answered(replace(NONE, trust=trust)) for trust in trusts] == pytest.approx(
        [0.25, 0.25, 0.75, 0.75]
    )


def test_the_rule_of_thumb_is_even_at_its_means() -> None:
    classifier = rule_of_thumb("any")
    assert classifier.embedder == "any"
    assert classifier.is_answered(replace(NONE, trust=1.0, best=0.3)) == pytest.approx(classifier.threshold)
    assert classifier.is_answered(replace(NONE, trust=1.0, best=0.31)) > classifier.threshold
    assert classifier.is_answered(replace(NONE, trust=0.0, covered=0.39)) < classifier.threshold
    assert classifier.answers(replace(PLAIN, cosine=0.65, covered=0.5)) == pytest.approx(1.0)


def test_saved_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "search.json"
    classifier = replace(rule_of_thumb("Ä"), threshold=0.123456789, fitted_on="1,000 questions")
    save_classifier(rule_of_thumb("older"), file)
    save_classifier(classifier, file)
    assert load_classifier(file) == classifier
    assert [path.name for path in tmp_path.iterdir()] == ["search.json"]

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        save_classifier(rule_of_thumb("newer"), file)
    assert load_classifier(file) == classifier


def test_what_is_shipped_is_for_the_bundled_embedder_and_tells_good_features_from_bad() -> None:
    classifier = load_classifier(SHIPPED)
    assert classifier.embedder == SentenceEmbedder().name
    assert 0.0 < classifier.threshold < 1.0
    assert {*classifier.relevance.weights, "trust"} == set(asdict(NONE))
    assert set(classifier.written.weights) <= set(asdict(NONE))
    assert set(classifier.sentence.weights) == set(asdict(PLAIN))
    for model in (classifier.relevance, classifier.written, classifier.sentence):
        assert set(model.weights) == set(model.means) == set(model.deviations)
        assert min(model.deviations.values()) > 0
    for trust in (0.0, 1.0):
        good = replace(average(classifier, by=1.0), trust=trust)
        bad = replace(average(classifier, by=-1.0), trust=trust)
        assert classifier.is_answered(good) > 0.5 > classifier.is_answered(bad)


def average(classifier: AnswerabilityClassifier, *, by: float) -> PassageFeatures:
    """Features of an average question, but so many deviations more of what speaks for an answer."""
    model = classifier.relevance
    speak = ("best", "first", "sentence", "told", "apt", "covered")
    values = {name: model.means[name] + (by * model.deviations[name] if name in speak else 0.0) for name in model.means}
    return PassageFeatures(trust=1.0, **values)


# --- the features ------------------------------------------------------------------------------------------

LABELS, DRIVERS = "Labels\nThe parcel label is free. Print 2 of them.", "Drivers\nThe drivers take the parcel."
QUESTION = "Is the zebra label free?"
RARE, UNKNOWN = math.log(1 + 1.5 / 1.5), math.log(1 + 2.5 / 0.5)  # of a term that one of two windows has, and none
MEANINGS = {
    QUESTION: (0, 1, 0),
    LABELS: (0, 1, 0),
    DRIVERS: (1, 0, 0),
    "The parcel label is free.": (0, 3, 4),
    "Print 2 of them.": (0, 4, 3),
    "Labels: The parcel label is free.": (0, 4, 3),
    "The drivers take the parcel.": (1, 0, 0),
    f"Earlier? {QUESTION}": (0, 0, 1),
}


def case(knowledge: float) -> tuple[Retriever, list[AnalysedPassage]]:
    embedder = MeaningEmbedder(MEANINGS, knowledge)
    retriever = retriever_of({1: [LABELS], 2: [DRIVERS]}, embedder)
    found = (PassageHit(id=1, score=1.5, cosine=0.9, share=0.6), PassageHit(id=2, score=0.5, cosine=0.95, share=0.1))
    texts = [([text.split("\n")[0]], text.split("\n")[1]) for text in (LABELS, DRIVERS)]
    return retriever, analyse(found, texts, embedder.embed_documents)


def test_features_by_hand() -> None:
    retriever, passages = case(0.8)
    query = retriever.query(QUESTION)
    assert query.trust == pytest.approx(0.64)
    covered = 2 * RARE / (2 * RARE + UNKNOWN)  # label and free, not zebra; is and the say nothing
    heading_covers = RARE / (2 * RARE + UNKNOWN)
    assert asdict(passage_features(retriever, query, query, passages)) == pytest.approx(
        {
            "trust": 0.64,
            "best": 0.64 * 0.95,
            "first": 0.64 * 0.9,
            "above": 0.64 * (0.95 - 0.5) / 0.5,  # the cosines with the index are 1 and 0
            "spread": 0.64 * 0.5,
            "rest": 1.0,
            "sentence": 0.64 * 0.8,
            "told": max(0.64 * 0.6 + covered, 0.64 * 0.8 + heading_covers),
            "apt": max(0.64 * 0.6 + covered, 0.64 * 0.8 + heading_covers),
            "covered": covered,
        },
        abs=1e-5,
    )
    second = replace(passages[0], statements=passages[0].statements[1:], vectors=passages[0].vectors[1:])
    told = passage_features(retriever, query, query, [second]).told
    assert told == pytest.approx(0.64 * 0.8 + heading_covers, abs=1e-5), "its heading says what it is about"
    many = retriever.query("How many labels?")
    features = passage_features(retriever, many, many, [second])
    assert features.apt == pytest.approx(features.told + 1 / 5), "it has a number"
    turned = passage_features(retriever, query, query, passages[::-1])
    assert (turned.first, turned.covered) == pytest.approx((0.64 * 0.95, covered), abs=1e-5)


def test_an_embedder_that_knows_nothing_leaves_features_of_words() -> None:
    retriever, passages = case(0.0)
    query = retriever.query(QUESTION)
    features = passage_features(retriever, query, query, passages)
    assert (features.trust, features.best, features.first, features.above, features.spread, features.sentence) == (
        0.0,
    ) * 6
    assert features.told == features.covered > 0
    assert all(
        one.cosine == one.alone == 0.0 for of in statement_features(retriever, query, query, passages) for one in of
    )


def test_features_of_statements_by_hand() -> None:
    retriever, passages = case(0.8)
    question, query = retriever.query(QUESTION), retriever.query(f"Earlier? {QUESTION}")
    (first, second), (third,) = statement_features(retriever, query, question, passages)
    whole = 2 * RARE + UNKNOWN
    expected = {
        "cosine": 0.64 * 0.8,
        "alone": 0.64 * 0.6,
        "headed": 0.64 * 0.6,
        "covered": 2 * RARE / whole,
        "own": 2 * RARE / whole,
        "joined": 2 * RARE / whole,
        "before": 0.0,
        "passage": 1.5,
        "behind": 0.0,
        "rank": 0.0,
        "length": math.log(25),
        "expected": 0.0,
    }
    assert asdict(first) == pytest.approx(expected, abs=1e-5)
    assert second.covered == pytest.approx(RARE / whole), "its heading says what it is about"
    assert (second.own, second.joined, second.before) == pytest.approx((0.0, 2 * RARE / whole, 2 * RARE / whole))
    assert (third.passage, third.behind, third.rank, third.covered, third.before) == (0.5, 1.0, 1.0, 0.0, 0.0)
    many = retriever.query("How many labels?")
    assert [one.expected for one in statement_features(retriever, many, many, passages)[0]] == [-1.0, 1.0]


def test_a_question_of_common_words_is_covered_by_them() -> None:
    retriever, passages = case(1.0)
    question = retriever.query("Is it the?")
    assert statement_features(retriever, question, question, passages)[0][0].covered > 0
    blank = retriever.query("?")
    assert passage_features(retriever, blank, blank, passages).covered == 0.0


def test_a_passage_is_read_into_sentences_that_are_each_there_once() -> None:
    embedder = MeaningEmbedder()
    found = PassageHit(id=1, score=0, cosine=0, share=0)
    texts = (["Help", "Returns"], "It is free. What is? It is free.\nNo label"), ([], "Heading")
    one, none = analyse([found, found], texts, embedder.embed_documents)
    assert (one.headings, list(one.statements), one.vectors.shape) == ("Help\nReturns", ["It is free."], (1, 3))
    assert one.headed.shape == (1, 3)
    assert analyse([], [], embedder.embed_documents) == []
    assert (list(none.statements), none.vectors.shape) == ([], (0, 3))
    retriever, _ = case(1.0)
    query = retriever.query(QUESTION)
    assert (
        passage_features(retriever, query, query, [none]).sentence,
        passage_features(retriever, query, query, [none]).told,
    ) == (
        0,
        0,
    )
    assert statement_features(retriever, query, query, [none]) == [[]]


def test_terms_of_a_text_are_stems() -> None:
    assert terms_of("Returned KM-450s 退款") >= {"return", "km", "450", "退款"}
