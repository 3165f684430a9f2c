"""Features of an answer worked out by hand, what the fitted models make of them, and how statements are judged."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace as Features

import numpy as np
import pytest
from hashed_search import HashRanker
from meanings import MeaningEmbedder, retriever_of

from retrieval.answerability import (
    CODE,
    FAR,
    LEAST_TRUST,
    FoundPassageText,
    JudgedStatements,
    LogisticModel,
    QuestionFeatures,
    QuestionMeasures,
    StatementFeatures,
    _rarities,
    agreement,
    as_json,
    candidates_of,
    judge,
    load_classifier,
    rule_of_thumb,
)
from retrieval.ranking.encoder import PassageToRead
from retrieval.search.embedding import Vectors
from retrieval.search.retriever import PassageHit, Query, Retriever
from retrieval.statements.cut import statements_of
from retrieval.text.codes import terms_of

NONE = QuestionFeatures(**{field.name: 0.0 for field in fields(QuestionFeatures)})
PLAIN = StatementFeatures(**{field.name: 0.0 for field in fields(StatementFeatures)})
RANKER = HashRanker()
DATA = Path(__file__).parent.parent / "data"


def test_a_logistic_model_weighs_standardised_features():
    model = LogisticModel(
        weights={"a": 2.0, "b": -1.0}, means={"a": 1.0, "b": 0.0}, deviations={"a": 0.5, "b": 2.0}, bias=0.5
    )
    features = Features(a=1.25, b=3.0, unnamed=99.0)
    assert model.logit(features) == pytest.approx(0.5 + 2 * 0.5 - 1.5)
    assert model.probability(Features(a=1.0, b=1.0)) == pytest.approx(0.5)
    assert model.probability(Features(a=1.0, b=1.0 - 2 * math.log(3))) == pytest.approx(0.75)
    assert [model.probability(Features(a=far, b=0.0)) for far in (1e9, -1e9)] == pytest.approx([1.0, 0.0]), (
        "no overflow"
    )


def constant(bias: float) -> LogisticModel:
    return LogisticModel(weights={}, means={}, deviations={}, bias=bias)


def test_below_least_trust_words_alone_judge_and_rank():
    classifier = replace(rule_of_thumb("x", "y"), relevance=constant(math.log(3)), written=constant(-math.log(3)))
    classifier = replace(classifier, statement=constant(1.0), written_statement=constant(-1.0))
    trusts = (0.0, LEAST_TRUST - 0.01, LEAST_TRUST, 1.0)
    assert [classifier.is_answered(replace(NONE, trust=trust)) for trust in trusts] == pytest.approx(
        [0.25, 0.25, 0.75, 0.75]
    )
    assert [classifier.answers(replace(PLAIN, trust=trust)) for trust in trusts] == [-1.0, -1.0, 1.0, 1.0]


def test_the_rule_of_thumb_is_even_at_the_bar_of_the_ranker():
    classifier = rule_of_thumb("any", "some")
    assert 0 < classifier.threshold < 0.5 < classifier.certain < 1
    low, even, high = (classifier.is_answered(replace(NONE, trust=1.0, likely=likely)) for likely in (-1.0, 0.0, 1.0))
    assert low < classifier.threshold < even < classifier.certain < high
    assert even == pytest.approx(0.5)
    assert classifier.is_answered(replace(NONE, trust=0.0, covered=0.39)) < 0.5
    better = replace(PLAIN, trust=1.0, ranked=1.0, covered=0.5)
    for worse in ({"ranked": 0.5}, {"passage": -1.0}):
        assert classifier.answers(better) > classifier.answers(replace(better, **worse))


def test_what_is_shipped_is_for_the_shipped_ranker_and_tells_good_features_from_bad():
    classifier = load_classifier(DATA / "search.json")
    assert as_json(classifier) == (DATA / "search.json").read_text("utf-8")
    assert classifier.ranker == json.loads((DATA / "ranker" / "ranker.json").read_text())["name"]
    assert 0.0 < classifier.threshold <= classifier.certain < 1.0
    assert set(classifier.relevance.weights) | set(classifier.written.weights) <= set(asdict(NONE))
    assert "trust" not in classifier.relevance.weights
    assert set(classifier.statement.weights) | set(classifier.written_statement.weights) <= set(asdict(PLAIN))
    assert not {"ranked", "cosine", "after"} & set(classifier.written_statement.weights)
    for model in (classifier.relevance, classifier.written, classifier.statement, classifier.written_statement):
        assert set(model.weights) == set(model.means) == set(model.deviations)
        assert min(model.deviations.values()) > 0
    for trust, model in ((1.0, classifier.relevance), (0.0, classifier.written)):
        good, bad = (replace(typical(model, by), trust=trust) for by in (1.0, -1.0))
        assert classifier.is_answered(good) > classifier.is_answered(bad) + 0.05


def typical(model: LogisticModel, by: float) -> QuestionFeatures:
    """Features of an average question, but so many deviations more of what speaks for an answer."""
    speak = ("likely", "covered", "stated")
    values = {name: model.means[name] + (by * model.deviations[name] if name in speak else 0.0) for name in model.means}
    return replace(NONE, **values)


LABELS, DRIVERS = "The parcel label is free. Print 2 of them.", "The drivers take the parcel."
QUESTION = "Is the zebra label free?"
RARE, UNKNOWN = math.log(1 + 1.5 / 1.5), math.log(1 + 2.5 / 0.5)  # of a term that one of two windows has, and none
WHOLE = 2 * RARE + UNKNOWN  # label and free, and zebra, which is nowhere; is and the say nothing
MEANINGS = {QUESTION: (0, 1, 0), f"Labels\n{LABELS}": (0, 1, 0), f"Drivers\n{DRIVERS}": (1, 0, 0)}
LOGITS = np.array([1.0, 3.0, -1.0], np.float32)


def found_passage(hit: PassageHit, heading: str, text: str) -> FoundPassageText:
    statements = statements_of(text, (heading,))
    spans = [(one.start, one.end) for one in statements]
    read = PassageToRead(headings=(heading,), text=text, spans=spans)
    return FoundPassageText(
        hit=hit, headings=(heading,), text=text, statements=statements, vectors=RANKER.read([read])[0]
    )


def case(knowledge: float) -> tuple[Retriever, list[FoundPassageText]]:
    embedder = MeaningEmbedder(MEANINGS, knowledge)
    retriever = retriever_of({1: [f"Labels\n{LABELS}"], 2: [f"Drivers\n{DRIVERS}"]}, embedder)
    hits = (PassageHit(id=1, score=1.5, cosine=0.9, share=0.6), PassageHit(id=2, score=0.5, cosine=0.95, share=0.1))
    return retriever, [found_passage(hits[0], "Labels", LABELS), found_passage(hits[1], "Drivers", DRIVERS)]


def measured(
    retriever: Retriever, passages: Sequence[FoundPassageText], order: Sequence[int], logits: Vectors = LOGITS
) -> QuestionFeatures:
    """The features of QUESTION when its candidates have this order, with log-odds 2, 1, 0."""
    query = retriever.queries([QUESTION])[0]
    candidates = candidates_of(retriever, query, query, passages, logits)
    measures = QuestionMeasures(retriever, query, passages)
    return measures.features([(2.0 - place, candidates[n]) for place, n in enumerate(order)])


def test_features_of_statements_by_hand():
    retriever, passages = case(0.8)
    query = retriever.queries([QUESTION])[0]
    assert query.trust == pytest.approx(0.64)
    first, second, third = (one.features for one in candidates_of(retriever, query, query, passages, LOGITS))
    expected = {
        "trust": 0.64,
        "ranked": 0.64 * 1.0,
        "covered": 2 * RARE / WHOLE,
        "own": 2 * RARE / WHOLE,
        "before": RARE / WHOLE,  # its heading has "label"
        "parts": 2 * RARE / WHOLE,
        "beyond": RARE / (WHOLE - RARE),
        "passage": 1.5,
        "behind": 0.0,
        "rank": 0.0,
        "length": math.log(25),
        "expected": 0.0,
        "code": 0.0,
    }
    assert asdict(first) == pytest.approx(expected, abs=1e-5)
    assert second.covered == pytest.approx(RARE / WHOLE), "its heading says what it is about"
    assert (second.own, second.before) == pytest.approx((0.0, 2 * RARE / WHOLE))
    assert (third.passage, third.behind, third.rank, third.covered, third.before) == pytest.approx(
        (0.5, 1.0, 1.0, 0.0, 0.0)
    )
    many = retriever.queries(["How many labels?"])[0]
    assert [one.features.expected for one in candidates_of(retriever, query, many, passages, LOGITS)] == [-1, 1, -1]


def test_features_of_a_question_by_hand():
    retriever, passages = case(0.8)
    assert asdict(measured(retriever, passages, [1, 0, 2])) == pytest.approx(
        {
            "trust": 0.64,
            "likely": 2.0,
            "others": 2.0,  # the best of the other passage has 0
            "cosine": 0.64 * 0.9,
            "score": 1.5,
            "rest": 1.0,
            "covered": 2 * RARE / WHOLE,
            "stated": 2 * RARE / WHOLE,
            "parts": RARE / WHOLE,  # the likeliest is the second
            "beyond": 0.0,
            "expected": 0.0,
        },
        abs=1e-5,
    )
    assert measured(retriever, passages[:1], [0, 1]).others == FAR, "there is no other passage"


def test_without_trust_only_words_are_left():
    retriever, passages = case(0.0)
    features = measured(retriever, passages, [0, 1, 2])
    assert (features.trust, features.cosine) == (0.0, 0.0)
    assert features.covered == features.stated > 0
    assert (features.score, features.rest) == pytest.approx((0.6, 0.35)), "the shares alone: the cosines are noise"
    query = retriever.queries([QUESTION])[0]
    for one in candidates_of(retriever, query, query, passages, LOGITS):
        assert one.features.ranked == 0.0


def test_a_question_of_common_words_is_covered_by_them():
    retriever, passages = case(1.0)
    question = retriever.queries(["Is it the?"])[0]
    assert candidates_of(retriever, question, question, passages, LOGITS)[0].features.covered > 0
    blank = retriever.queries(["?"])[0]
    assert [one.features.covered for one in candidates_of(retriever, blank, blank, passages, LOGITS)] == [0.0] * 3


def help_desk(pages: dict[int, tuple[str, str]], knowledge: float = 1.0) -> tuple[Retriever, list[FoundPassageText]]:
    """Passages by number, all equally near, in the order of their numbers."""
    texts = {id_: [f"{heading}\n{text}"] for id_, (heading, text) in pages.items()}
    retriever = retriever_of(texts, MeaningEmbedder(knowledge=knowledge))
    hits = {id_: PassageHit(id=id_, score=1.0, cosine=0.5, share=0.5) for id_ in pages}
    return retriever, [found_passage(hits[id_], *page) for id_, page in pages.items()]


def judged(pages: dict[int, tuple[str, str]], *questions: str, knowledge: float = 1.0) -> JudgedStatements:
    """questions: as the desk was asked, the last with the turn before it."""
    retriever, passages = help_desk(pages, knowledge)
    queries: list[Query] = [retriever.queries([question])[0] for question in questions]
    return judge(retriever, RANKER, rule_of_thumb("meaning", RANKER.name), queries, passages)


def texts_of(found: JudgedStatements) -> list[str]:
    return [one.statement.text for _, one in found.ranked]


def test_statements_are_judged_likeliest_first():
    pages = {1: ("Stores", "Stores open at nine."), 2: ("Cards", "A card lasts five years. Cards are made of paper.")}
    found = judged(pages, "How many years does a card last?")
    assert texts_of(found)[0] == "A card lasts five years."
    logits = [logit for logit, _ in found.ranked]
    assert logits == sorted(logits, reverse=True)
    assert (found.features.likely, found.features.trust) == (logits[0], 1.0)
    assert {one.statement.text: one.passage for _, one in found.ranked} == {
        "Stores open at nine.": 0,
        "A card lasts five years.": 1,
        "Cards are made of paper.": 1,
    }


def test_statements_about_another_model_are_left_out():
    pages = {
        1: ("Vacuum SV-3", "The SV-3 is charged for four hours."),
        2: ("Vacuum SV-3 Pro", "The SV-3 Pro is charged for six hours."),
        3: ("Vacuums", "Charging takes longer in the cold."),
    }
    said = texts_of(judged(pages, "How long is the SV-3 Pro charged?"))
    assert "The SV-3 Pro is charged for six hours." in said
    assert "The SV-3 is charged for four hours." not in said
    assert "Charging takes longer in the cold." in said
    assert len(texts_of(judged(pages, "How long is it charged?"))) == 3
    follow_up = judged(pages, "How long is it charged?", "I have the SV-3 Pro. How long is it charged?")
    assert "The SV-3 is charged for four hours." not in texts_of(follow_up), "the model may be named in the turn before"


def test_rows_about_another_thing_are_left_out_if_the_asked_thing_has_its_own():
    rows = "Store: Dublin Dundrum; Sunday: 11:00\nStore: Dublin Capel; Sunday: 12:00\nStore: Cork; Sunday: 13:00"
    pages = {
        1: ("Hours", f"{rows}\n\nAll stores close on Sundays in May."),
        2: ("Hours", "Store: Sligo; Sunday: closed"),
    }

    def stores(question: str) -> set[str]:
        return {one.statement.subject for _, one in judged(pages, question).ranked if one.statement.subject}

    assert stores("Is Dublin Capel open on Sunday?") == {"Dublin Capel"}
    assert stores("Is Dublin open on Sunday?") == {"Dublin Capel", "Dublin Dundrum"}
    assert stores("Are Cork and Sligo open on Sunday?") == {"Cork", "Sligo"}
    assert len(stores("Are you open on Sunday?")) == 4
    assert len(judged(pages, "Is Cork open on Sunday?").ranked) == 2, "a sentence is about all stores"


def test_a_statement_that_names_the_code_comes_first():
    text = "The hob shows a code. E3: The pan is too hot. E4: The pan is too small."
    retriever = retriever_of({1: [text]}, MeaningEmbedder({}))
    hit = PassageHit(id=1, score=1.0, cosine=0.0, share=1.0)
    classifier = rule_of_thumb("meanings", RANKER.name)

    def best(question: str) -> str:
        found = judge(
            retriever, RANKER, classifier, [retriever.queries([question])[0]], [found_passage(hit, "Hob", text)]
        )
        (logit, first), (_, second), *_ = found.ranked
        assert (first.features.code, second.features.code) == (1.0, 0.0)
        assert logit == pytest.approx(classifier.answers(replace(first.features, code=0.0)) + CODE)
        return first.statement.text

    assert best("my hob shows e03, what does that mean").startswith("E3")
    assert best("my hob shows e04, what does that mean").startswith("E4")


def test_a_statement_of_two_passages_is_judged_once_in_the_better_one():
    text = "It is free of charge."
    (_, one), *others = judged({1: ("Cards", text), 2: ("Shoes", text)}, "Is it free?").ranked
    assert (one.passage, others) == (0, [])


def test_the_scores_of_a_candidate_are_its_own_also_behind_some_that_were_left_out():
    pages = {1: ("Vacuum SV-3", "The SV-3 costs 90 euros."), 2: ("Vacuum SV-5", "The SV-5 costs 120 euros.")}
    retriever, passages = help_desk(pages)
    query = retriever.queries(["What does the SV-5 cost?"])[0]
    logits = RANKER.mixture.scores(RANKER.question(query.text), [passage.vectors for passage in passages])[0]
    (only,) = candidates_of(retriever, query, query, passages, logits)
    assert only.passage == 1
    assert only.features.ranked == pytest.approx(float(logits[1]))


def test_shares_are_those_of_all_terms_of_a_statement():
    retriever, passages = help_desk({1: ("SV-5", "The SV-5 costs 120 euros. It is free in May.")})
    for asked in combinations(["sv-5", "costs", "free", "May", "zebra", "is"], 3):
        query = retriever.queries([" ".join(asked)])[0]
        rarity = _rarities(retriever, query.text)
        for one in candidates_of(retriever, query, query, passages, LOGITS):
            plain = sum(value for term, value in rarity.items() if term in terms_of(one.statement.text))
            assert one.features.own == pytest.approx(plain / sum(rarity.values()))


def test_passages_without_statements_give_nothing_to_judge():
    found = judged({1: ("Returns", "Returns?")}, "Returns?")
    assert (found.ranked, found.measures) == ((), None)
    with pytest.raises(AssertionError):
        assert found.features
    retriever, _ = help_desk({})
    nothing = judge(retriever, RANKER, rule_of_thumb("meaning", "hash"), [retriever.queries(["Returns?"])[0]], [])
    assert nothing.measures is None


def test_parts_of_chinese_terms_are_characters():
    """The pairs "保期" and "期多" of the question stand nowhere, its characters do."""
    heading, text = "吸尘器", "保修期为两年。"
    retriever = retriever_of({1: [f"{heading}\n{text}"]}, MeaningEmbedder({}, 0.1))
    passage = found_passage(PassageHit(id=1, score=1.0, cosine=0.1, share=0.9), heading, text)
    query = retriever.queries(["吸尘器的质保期多久？"])[0]
    (candidate,) = candidates_of(retriever, query, query, [passage], np.zeros(1, np.float32))
    known, unknown = math.log1p(0.5 / 1.5), math.log1p(1.5 / 0.5)  # of a character of the only window, and of another
    parts = 5 * known / (5 * known + unknown)  # 吸尘器 保 期, but not 质
    assert candidate.features.parts == pytest.approx(parts)
    assert candidate.features.beyond == pytest.approx(2 * known / (2 * known + unknown))
    assert candidate.features.covered < candidate.features.parts


@pytest.mark.parametrize(
    ("question", "has", "has_not"),
    [
        ("How much is gift wrapping?", "It costs EUR 3.90 per item.", "It includes a card with 200 characters."),
        ("运费多少钱？", "运费12元。", "我们使用快递发货。"),
        ("When do you open on Sunday?", "At noon, in Galway only.", "We open when staff are there."),
        ("退款要多久？", "需要5天。", "请联系我们。"),
        ("运费多少钱？", "满60元免运费。", "请联系我们。"),
        ("这座桥是哪一年建成的？", "1937年建成。", "桥很长。"),
        ("它在哪里？", "位于都柏林市中心。", "它很大。"),
        ("那本书的作者是谁？", "作者叫安娜。", "它很厚。"),
        ("为什么关门？", "因装修暂停营业。", "周一休息。"),
        ("When does the sale end?", "Until 31 December.", "Until nothing is left."),
        ("How much longer does it take?", "2 extra working days.", "EUR 3 more."),
        ("How many users can an account have?", "Up to 15 can share one.", "Several people can."),
        ("Where can I report a text message?", "Forward it to fraud@larkmoor.example.", "Do not answer it."),
        ("How do I descale it?", "Descaling:\n1. Fill the tank.\n2. Press Start.", "It must be descaled in 1 hour."),
    ],
)
def test_a_text_that_has_what_is_asked_for(question, has, has_not):
    assert agreement(question)(has) == 1.0
    assert agreement(question)(has_not) == -1.0


def test_two_things_asked_for_and_one_there_and_no_such_thing():
    question = "How long does delivery take and what does it cost?"
    answers = ("It takes 3 days and costs EUR 5.", "It takes 3 days.", "The driver carries it in.")
    assert [agreement(question)(answer) for answer in answers] == [1.0, 0.0, -1.0]
    for question in ("Can I cancel?", "What happens when I cancel?", "Kann ich stornieren?", "", "怎么退货？"):
        assert agreement(question)("EUR 5 within 14 days") == agreement(question)("No.") == 0.0
