"""The fit of what search judges by, on cases that one can count; and once from files to classifier."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hashed_search import HashEmbedder, HashRanker
from meanings import MeaningEmbedder
from tiny import build

from app.desk.service import Service
from app.domain.errors import DeskError
from app.domain.settings import Settings
from app.knowledge.finder import JudgedQuestion
from evals.answers.questions import LabelledQuestion
from evals.answers.search_calibration import (
    ANSWERED,
    LEAST,
    QUESTION_FEATURES,
    REFUSED,
    STATEMENT_FEATURES,
    WRITTEN_FEATURES,
    WRITTEN_STATEMENT_FEATURES,
    JudgedCase,
    calibrate,
    fit,
    judged_cases,
)
from retrieval.answerability import (
    Candidate,
    JudgedStatements,
    QuestionFeatures,
    StatementFeatures,
    as_json,
    load_classifier,
)
from retrieval.statements.grouping import Statement

NONE = QuestionFeatures(**{field.name: 0.0 for field in fields(QuestionFeatures)})
HASHED = {"model": lambda _: build(), "embedder": lambda _: HashEmbedder(), "ranker": lambda _: HashRanker()}
PLAIN = replace(StatementFeatures(**{field.name: 0.0 for field in fields(StatementFeatures)}), trust=1.0)


class ToyMeasures:
    """Measures whose features are known beforehand, but for what depends on the order."""

    def __init__(self, values: Mapping[str, float], trust: float = 1.0) -> None:
        self.values, self._trust = values, trust

    def features(self, ranked: Sequence[tuple[float, Candidate]]) -> QuestionFeatures:
        return replace(NONE, trust=self._trust, likely=ranked[0][0], **self.values)


def case(desk: str, noise: random.Random, *, is_answerable: bool, **values: float) -> JudgedCase:
    """Five candidates, of which the ranker likes one best; that is right if anything is."""
    best = noise.randrange(5)
    ranked = tuple(
        (
            0.0,
            Candidate(
                number=n,
                passage=n,
                statement=Statement(f"{n}", 0, 1, "sentence"),
                features=replace(PLAIN, ranked=4.0 * (n == best) + noise.gauss(0, 1)),
            ),
        )
        for n in range(5)
    )
    statements = JudgedStatements(ranked=ranked, told=np.zeros((5, 1)), measures=ToyMeasures(values))
    return JudgedCase(
        desk=desk,
        judged=JudgedQuestion(hits=(), passages={}, statements=statements),
        is_answerable=is_answerable,
        right=tuple(is_answerable and n == best for n in range(5)),
    )


def desk_of(name: str, number: int, gap: float, feature: str = "score", seed: int = 1) -> list[JudgedCase]:
    """Every other question has an answer, and a feature that is so many deviations higher."""
    noise = random.Random(seed)
    return [
        case(name, noise, is_answerable=n % 2 == 0, **{feature: noise.gauss(gap * (n % 2 == 0), 1.0)})
        for n in range(number)
    ]


def in_another_language(one: JudgedCase) -> JudgedCase:
    ranked = tuple(
        (logit, replace(each, features=replace(each.features, trust=0.1, parts=each.features.ranked, ranked=0.0)))
        for logit, each in one.ranked
    )
    measures = ToyMeasures(one.judged.statements.measures.values, trust=0.1)
    statements = JudgedStatements(ranked=ranked, told=np.zeros((5, 1)), measures=measures)
    return replace(one, judged=replace(one.judged, statements=statements))


def probabilities(classifier: Any, cases: Sequence[JudgedCase]) -> list[float]:
    found = []
    for one in cases:
        order = sorted(((classifier.answers(each.features), each) for _, each in one.ranked), key=lambda pair: -pair[0])
        found.append(classifier.is_answered(one.judged.statements.measures.features(order)))
    return found


def test_two_desks_that_can_be_told_apart_are():
    cases = [*desk_of("shop", 200, gap=6.0), *desk_of("bank", 100, gap=6.0, seed=2)]
    classifier, found = fit(cases, "small", "first")
    assert (found["answerable"], found["unanswerable"]) == (150, 150)
    assert found["auc"] > 0.97
    assert (found["answered"], found["answered_right"]) == pytest.approx((1.0, 1.0), abs=0.03)
    assert found["answered_wrongly"] == pytest.approx(ANSWERED, abs=0.05), "as many as may be"
    assert (classifier.embedder, classifier.ranker) == ("small", "first")
    assert classifier.fitted_on == "150 questions of bank, shop"
    assert set(classifier.relevance.weights) == set(QUESTION_FEATURES)
    assert set(classifier.written.weights) == set(WRITTEN_FEATURES)
    assert set(classifier.statement.weights) == set(STATEMENT_FEATURES)
    assert set(classifier.written_statement.weights) == set(WRITTEN_STATEMENT_FEATURES)
    right = 0
    for one in cases[::2]:
        logits = [classifier.answers(each.features) for _, each in one.ranked]
        right += one.right[logits.index(max(logits))]
    assert right >= 0.95 * 150


def test_thresholds_answer_and_refuse_their_shares():
    cases = [*desk_of("shop", 400, gap=1.5), *desk_of("bank", 400, gap=1.5, seed=2)]
    classifier, found = fit(cases, "small", "first")
    assert 0 < classifier.threshold < classifier.certain < 1
    judged = probabilities(classifier, cases)
    answerable, others = judged[::2], judged[1::2]
    assert sum(p < classifier.threshold for p in answerable) / len(answerable) == pytest.approx(REFUSED, abs=0.015)
    assert sum(p >= classifier.certain for p in others) / len(others) == pytest.approx(ANSWERED, abs=0.08)
    assert ANSWERED - 0.01 <= found["answered_wrongly"] <= ANSWERED + 0.1  # more where a desk needs a higher threshold
    sure = sum(p >= classifier.certain for p in answerable) / len(answerable)
    assert found["answered"] == pytest.approx(sure, abs=0.04)
    assert 0.6 < sure < 0.95


def test_quality_is_that_of_models_fitted_on_other_desks():
    """What speaks for an answer in one desk speaks against it in the other."""
    opposite = [*desk_of("shop", 100, gap=4.0, feature="cosine"), *desk_of("bank", 100, gap=-4.0, feature="cosine")]
    assert fit(opposite, "small", "first")[1]["auc"] < 0.5
    for one in (opposite[:100], opposite[100:]):
        assert fit(one, "small", "first")[1]["auc"] > 0.9, "alone it is judged by tenths"


def test_languages_that_the_embedder_does_not_know_have_models_of_their_own():
    """What speaks for an answer in one language speaks against it in the other; the thresholds hold for both."""
    known = desk_of("shop", 200, gap=6.0)
    foreign = [in_another_language(one) for one in desk_of("bank", 200, gap=-3.0, seed=2)]
    classifier = fit([*known, *foreign], "small", "first")[0]
    assert classifier.relevance.weights["score"] > 0 > classifier.written.weights["score"]
    judged = probabilities(classifier, foreign)
    assert sum(p < classifier.threshold for p in judged[::2]) / 100 == pytest.approx(REFUSED, abs=0.02)
    assert sum(p >= classifier.certain for p in judged[1::2]) / 100 == pytest.approx(ANSWERED, abs=0.05)


def test_every_desk_counts_the_same():
    large, small = desk_of("shop", 300, gap=2.0), desk_of("bank", 50, gap=-2.0, seed=2)
    alone = fit(large, "small", "first")[0].relevance.weights["score"]
    both = fit([*large, *small], "small", "first")[0].relevance.weights["score"]
    assert alone > 1
    assert abs(both) < 0.35 * alone


def test_a_desk_may_have_only_questions_without_or_only_with_an_answer():
    noise = random.Random(3)
    bad, good = (
        [case("bank", noise, is_answerable=is_good, score=noise.gauss(4 * is_good, 1)) for _ in range(30)]
        for is_good in (False, True)
    )
    others = [*desk_of("shop", 60, gap=4.0), *desk_of("club", 60, gap=4.0, seed=2)]
    for cases, counted in (([*others, *bad], (60, 90)), ([*others, *good], (90, 60))):
        classifier, found = fit(cases, "small", "first")
        assert (found["answerable"], found["unanswerable"]) == counted
        assert 0 < classifier.threshold <= classifier.certain < 1


@pytest.mark.parametrize(("answerable", "others"), [(LEAST - 1, LEAST), (LEAST, LEAST - 1), (0, 0)])
def test_too_few_questions_of_either_kind_are_refused(answerable, others):
    noise = random.Random(4)
    cases = [case("shop", noise, is_answerable=n < answerable, score=0.0) for n in range(answerable + others)]
    with pytest.raises(DeskError, match=f"to {answerable} questions and none to {others}: 20") as caught:
        fit(cases, "small", "first")
    assert caught.value.code == "too-few-questions"


@pytest.fixture(autouse=True)
def _without_models(monkeypatch):
    """Desks rank by words: all else takes seconds."""
    monkeypatch.setattr("evals.answers.search_calibration.Service", partial(Service, **HASHED))


def write_rows(file: Path, rows: Sequence[object]) -> Path:
    file.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return file


def price_of(thing: str, euros: int) -> str:
    """A statement that has few words in common with that about another thing."""
    return f"{thing.title()} {thing}ix {thing}ex costs {euros} euros."


def help_centre(folder: Path, kind: str, answered: int = 20, unanswered: int = 20) -> tuple[Path, Path]:
    """A file of questions, and a folder with one page for each of those with an answer."""
    pages = folder / kind
    pages.mkdir(parents=True)
    things = [f"{first}{second}" for first in ("boot", "shoe", "lamp", "cup", "bag") for second in "bcdfgh"][:answered]
    for n, thing in enumerate(things):
        own = " ".join(f"{thing}{letter}" for letter in "klmnpqrstvwz")  # no near copy of another page
        text = f"# About {thing}\n\n{price_of(thing, n)} Ask us before you buy {kind}. See {own}.\n"
        (pages / f"{thing}.md").write_text(text)
    rows: list[object] = [
        {"question": f"What {thing} costs?", "answers": [price_of(thing, n)]} for n, thing in enumerate(things)
    ]
    rows += [{"question": f"Qzebra{n} quagga{n} {kind}"} for n in range(unanswered)]
    return write_rows(folder / f"{kind}.jsonl", rows), pages


def test_calibrated_on_two_tiny_help_centres(tmp_path):
    files, folders = zip(*(help_centre(tmp_path, kind, 10, 10) for kind in ("things", "goods")), strict=True)
    told: list[str] = []
    classifier, found = calibrate(Settings(data_dir=tmp_path / "data"), files, folders, report=told.append)
    assert (found["answerable"], found["unanswerable"]) == (20, 40), "each is asked again with its page hidden"
    assert found["auc"] > 0.9
    assert (classifier.embedder, classifier.ranker) == ("hash-256", "hash")
    assert classifier.fitted_on == "20 questions of goods, things"
    assert told == ["things: 20/20 questions", "goods: 20/20 questions"]
    assert not (tmp_path / "data").exists(), "desks of their own are asked"
    (tmp_path / "search.json").write_text(as_json(classifier))
    assert asdict(load_classifier(tmp_path / "search.json")) == asdict(classifier)


def test_without_folders_the_desk_of_the_settings_is_asked(tmp_path):
    """Its questions may stand in several files, also those without an answer alone."""
    file, pages = help_centre(tmp_path, "things")
    lines = file.read_text().splitlines(keepends=True)
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    good.write_text("".join(lines[:20]))
    bad.write_text("".join(lines[20:]))
    settings = Settings(data_dir=tmp_path)
    with Service(settings, **HASHED) as desk:
        desk.ingest([pages], warm=False)
    classifier, found = calibrate(settings, [good, bad], [], report=lambda _: None)
    assert (found["answerable"], found["unanswerable"]) == (20, 40)
    assert classifier.threshold <= classifier.certain


def test_near_misses_in_other_languages_are_also_pages_that_lack_the_statement(tmp_path):
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "a.md").write_text("# 退款\n\n退款需要五天。请保留收据。\n", encoding="utf-8")
    with Service(Settings(data_dir=tmp_path), **HASHED | {"embedder": lambda _: MeaningEmbedder({}, 0.1)}) as desk:
        desk.ingest([tmp_path / "pages"], warm=False)
        questions = [LabelledQuestion(question="退款要多久？", answers=("五天",))]
        found, near_miss = judged_cases(desk.finder, questions, "shop", 3, lambda _: None)
    assert (found.is_known, found.is_answerable, near_miss.is_answerable) == (False, True, False)
    assert [one.statement.text for _, one in near_miss.ranked] == ["请保留收据。"]


def test_folders_and_files_must_be_as_many(tmp_path):
    file, pages = help_centre(tmp_path, "things", 1, 1)
    with pytest.raises(DeskError, match="1 files of questions and 2 folders of documents: give one folder for each"):
        calibrate(Settings(data_dir=tmp_path), [file], [pages, pages], report=lambda _: None)


def test_near_misses_are_asked_without_the_passages_that_answer(tmp_path):
    _, pages = help_centre(tmp_path, "things", 3, 0)
    with Service(Settings(data_dir=tmp_path), **HASHED) as desk:
        desk.ingest([pages], warm=False)
        questions = [
            LabelledQuestion(question="What bootb costs?", answers=(price_of("bootb", 0),)),
            LabelledQuestion(question="What bootb costs?", answers=("It stands nowhere else at all.",)),
            LabelledQuestion(question="quagga"),
        ]
        first, near_miss, none = judged_cases(desk.finder, questions, "shop", 3, lambda _: None)
    assert (first.is_answerable, near_miss.is_answerable, none.is_answerable) == (True, False, False)
    assert sum(first.right) == 1
    texts = [[one.statement.text for _, one in found.ranked] for found in (first, near_miss)]
    assert texts[0][first.right.index(True)] == price_of("bootb", 0)
    assert price_of("bootb", 0) not in texts[1]
    assert texts[1]
    assert not any(near_miss.right)
