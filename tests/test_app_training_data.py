"""What adapters are trained on: answers out of documents, refusals, and the examples made of them."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny import build

from app.domain.errors import DeskError
from app.knowledge.prompts import PromptBuilder
from app.training.training_data import (
    LABELLED,
    LONGEST_ANSWER,
    LONGEST_PASSAGE,
    OWN,
    QueryMix,
    TrainingData,
    TrainingPassage,
    TrainingTokenizer,
    answer_sentence,
    key_words,
    read_rows,
    split_topics,
    topic_hash,
    topic_weights,
)
from cache.training.examples import TrainingExample

REFUSAL = "I do not know."
TEXT = "Labels are free. They last 30 days, in stores 9 days. Ask in a store."


@pytest.fixture(scope="module")
def tokenizer() -> TrainingTokenizer:
    tokenizer = build().tokenizer
    return TrainingTokenizer(PromptBuilder(tokenizer.template, "Answer."), tokenizer, REFUSAL)


def data_of(
    tokenizer: TrainingTokenizer, passages: list[TrainingPassage], mix: QueryMix = LABELLED, neighbours: int = 1
) -> TrainingData:
    return TrainingData(passages, tokenizer, mix, neighbours=neighbours, seed=0)


def row(number: int, **more: Any) -> dict[str, Any]:
    qas = [{"question": f"What costs {number}?", "answers": [f"Shelf {number}"]}, {"question": "Why?", "answers": []}]
    return {"src": "shop", "title": f"T{number % 3}", "context": f"Shelf {number} is it.", "qas": qas, **more}


# --- answers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "answer", "expected"),
    [
        ("How long do they last?", "30 days", "They last 30 days, in stores 9 days."),
        ("How long in a store?", "a store", "Ask in a store."),
        ("What about labels?", "labels are FREE", "Labels are free."),
        ("And labels?", "They are free and last 30 days", "They are free and last 30 days"),
        ("Who?", "Nobody said anything of the kind", None),
        ("Who?", "the king", None),
    ],
)
def test_the_sentence_that_holds_the_answer_is_trained_on(question: str, answer: str, expected: str | None) -> None:
    assert answer_sentence(TEXT, question, answer) == expected


def test_of_several_the_one_with_most_words_of_the_question_is_trained_on() -> None:
    text = "It takes 9 days. Returns by post take 9 days. Stores need 9 days."
    assert answer_sentence(text, "How long do returns by post take?", "9 days") == "Returns by post take 9 days."


# --- documents ------------------------------------------------------------------------------------------


def test_a_document_with_what_it_answers_and_what_not(tokenizer: TrainingTokenizer) -> None:
    made = tokenizer.labelled_passage(row(4))
    assert made is not None
    assert (made.source, made.topic) == ("shop", "shop/T1")
    assert "Shelf 4 is it." in bytes(made.tokens).decode()
    (question, answer), (_, none) = made.questions
    assert b"What costs 4?" in bytes(question)
    assert bytes(answer or ()) == b"Shelf 4 is it."
    assert none is None


def test_what_is_too_long_or_has_no_questions_is_left_out(tokenizer: TrainingTokenizer) -> None:
    assert tokenizer.labelled_passage(row(1, context="word " * LONGEST_PASSAGE)) is None
    assert tokenizer.labelled_passage(row(1, qas=[])) is None
    long = "Shelf 1 is " + "very " * LONGEST_ANSWER + "full."
    assert tokenizer.labelled_passage(row(1, context=long, qas=[{"question": "What?", "answers": ["Shelf 1"]}])) is None


# --- examples --------------------------------------------------------------------------------------------


def examples_of(tokenizer: TrainingTokenizer) -> list[TrainingExample]:
    passages = [made for number in range(12) if (made := tokenizer.labelled_passage(row(number))) is not None]
    examples = data_of(tokenizer, passages)
    assert [examples.example_at(step) for step in range(30)] == [examples.example_at(step) for step in range(30)]
    return [examples.example_at(step) for step in range(30)]


def test_examples_are_made_of_passages_questions_and_refusals(tokenizer: TrainingTokenizer) -> None:
    found = examples_of(tokenizer)
    assert {len(example.modules) for example in found} == set(LABELLED.passages)
    refusal = tuple(REFUSAL.encode())
    for example in found:
        wholly, *more = refused = [query for query in example.queries if query.refused]
        assert wholly.answer[:-1] == refusal
        assert all(query.answer == refusal[:1] for query in more), "only that they are refused, not again how"
        assert 1 < len(refused) <= LABELLED.misleading + LABELLED.absent
        answered = [query for query in example.queries if not query.refused]
        assert len(answered) <= LABELLED.answered
        assert {len(query.answer) for query in answered[LABELLED.whole_answers :]} <= {1}
        texts = b"".join(map(bytes, example.modules)).decode()
        for query in answered:
            assert bytes(query.answer).decode().split(" is it.")[0] in texts
        for query in answered[: LABELLED.whole_answers]:
            assert bytes(query.answer[:-1]).decode().endswith("is it.")
    assert any(any(example.gaps) for example in found)
    assert not all(any(example.gaps) for example in found)


def test_own_passages_have_no_refusals_and_whole_answers(tokenizer: TrainingTokenizer) -> None:
    passages = [made for number in range(12) if (made := tokenizer.labelled_passage(row(number))) is not None]
    examples = data_of(tokenizer, passages, OWN)
    for step in range(9):
        example = examples.example_at(step)
        assert len(example.modules) > 1, "one alone is read as with full attention"
        assert not any(query.refused for query in example.queries)
        assert all(bytes(query.answer[:-1]).decode().endswith("is it.") for query in example.queries)


def test_questions_about_documents_that_are_not_there_are_refused(tokenizer: TrainingTokenizer) -> None:
    answered = [{"question": "What?", "answers": ["Shelf"]}]
    passages = [
        made for n in range(12) if (made := tokenizer.labelled_passage(row(n, title="T", qas=answered))) is not None
    ]
    examples = data_of(tokenizer, passages)
    for step in range(9):
        assert sum(query.refused for query in examples.example_at(step).queries) == LABELLED.absent


def test_most_questions_are_about_the_last_passage(tokenizer: TrainingTokenizer) -> None:
    qas = [{"question": f"What is {q}?", "answers": ["Shelf"]} for q in range(8)]
    passages = [made for n in range(12) if (made := tokenizer.labelled_passage(row(n, title="T", qas=qas))) is not None]
    of_last, of_all = 0, 0
    examples = data_of(tokenizer, passages, replace(LABELLED, passages=(2, 5)))
    for step in range(60):
        example = examples.example_at(step)
        whole = [bytes(query.answer[:-1]) for query in example.queries if len(query.answer) > 1 and not query.refused]
        of_last += sum(answer in bytes(example.modules[-1]) for answer in whole)
        of_all += len(whole)
    assert 0.7 < of_last / of_all < 0.9


@pytest.mark.parametrize("count", [0, 1, 2])
def test_passages_are_read_behind_others_of_the_example_or_its_topic(tokenizer: TrainingTokenizer, count: int) -> None:
    passages = [made for number in range(12) if (made := tokenizer.labelled_passage(row(number))) is not None]
    topics = {one.tokens: one.topic for one in passages}
    left_contexts = set()
    for step in range(20):
        example = data_of(tokenizer, passages, neighbours=count).example_at(step)
        topic = [one.tokens for one in passages if one.topic == topics[example.modules[-1]]]
        for module, left_context in zip(example.modules, example.left_contexts, strict=True):
            beside = [one.tokens for one in passages if bytes(one.tokens) in bytes(left_context)]
            assert len(beside) == count == bytes(left_context).count(b"Help page")
            assert set(beside) <= {*topic, *example.modules} - {module}
            left_contexts.add(left_context)
        assert len(set(example.left_contexts)) <= count + 1, "those that are shared are read once"
    assert len(left_contexts) > count * 6, "not the same ones every time"


def test_the_longest_words_of_a_sentence_ask_for_it() -> None:
    assert key_words("Download and install an authentication app to your device.") == "Download install authentication"
    assert key_words("So is it.") == "So is it"


def test_small_sources_are_heard(tokenizer: TrainingTokenizer) -> None:
    big = [made for n in range(0, 300, 3) if (made := tokenizer.labelled_passage(row(n))) is not None]
    small = [made for n in (1,) if (made := tokenizer.labelled_passage(row(n, src="other"))) is not None]
    of_big, of_small = topic_weights([big, small])
    assert of_big / of_small == pytest.approx((200**0.5) / (2**0.5))


def test_the_same_topics_are_held_out_every_time() -> None:
    def topics(first: int, last: int) -> list[TrainingPassage]:
        return [TrainingPassage(source="", topic=f"shop/{n}", tokens=(n,), questions=()) for n in range(first, last)]

    train, test = split_topics(topics(0, 3000))
    assert 50 < len(test) < 130
    assert len(train) + len(test) == 3000
    _, fewer = split_topics(topics(1000, 3000))
    assert fewer == [ones for ones in test if ones[0].tokens[0] >= 1000], "whatever else there is"
    assert max(topic_hash(ones[0].topic) for ones in test) < min(topic_hash(ones[0].topic) for ones in train)


@pytest.mark.parametrize(
    ("documents", "held"), [([1], 0), ([1] * 5, 0), ([1] * 6, 2), ([1] * 12, 4), ([1] * 60, 8), ([40], 0), ([9, 1], 0)]
)
def test_of_few_documents_some_are_held_out(documents: list[int], held: int) -> None:
    passages = [
        TrainingPassage(source="", topic=str(topic), tokens=(topic, n), questions=())
        for topic, count in enumerate(documents)
        for n in range(count)
    ]
    train, test = split_topics(passages)
    assert sum(map(len, test)) == held
    assert not {ones[0].topic for ones in train} & {ones[0].topic for ones in test}
    assert len(train) + len(test) == len(documents)


def test_an_example_has_no_passage_twice_and_refuses_nothing_it_answers(tokenizer: TrainingTokenizer) -> None:
    for count in (1, 2, 4):
        passages = [
            made for n in range(count) if (made := tokenizer.labelled_passage(row(n, title=f"Only {n}"))) is not None
        ]
        examples = data_of(tokenizer, passages)
        assert examples.held_out_documents == 0
        for example in (*(examples.example_at(step) for step in range(20)), *examples.held_out(3)):
            assert len(set(example.modules)) == len(example.modules) <= count
            texts = b"".join(map(bytes, example.modules)).decode()
            refused = [bytes(query.question).decode() for query in example.queries if query.refused]
            asked = [question.split("costs ")[1][0] for question in refused if "costs" in question]
            assert all(f"Shelf {number} is it." not in texts for number in asked)


def test_training_data_has_an_identity(tokenizer: TrainingTokenizer) -> None:
    passages = [made for number in range(6) if (made := tokenizer.labelled_passage(row(number))) is not None]
    same = data_of(tokenizer, passages).identity
    assert same == data_of(tokenizer, list(passages)).identity
    assert same != data_of(tokenizer, passages[1:]).identity != data_of(tokenizer, passages, OWN).identity != same


# --- files ----------------------------------------------------------------------------------------------


def test_rows_of_plain_and_compressed_files(tmp_path: Path) -> None:
    text = "\n".join(json.dumps(row(number)) for number in range(3)) + "\n\n"
    (tmp_path / "a.jsonl").write_text(text)
    with gzip.open(tmp_path / "b.jsonl.gz", "wt") as file:
        file.write(text)
    assert list(read_rows([tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz"])) == [row(n) for n in (0, 1, 2, 0, 1, 2)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"title": "x"}', "line 1: title, context and qas"),
        ("[1]", "line 1: title, context and qas"),
        ('{"title": "x", "context": "y", "qas": ["z"]}', "line 1: qas is a list of objects with a question"),
        (
            '{"title": "x", "context": "y", "qas": [{"question": "z", "answers": {"text": ["y"]}}]}',
            "line 1: answers of a question are a list of texts",
        ),
        ('{"title": "x", "context": "y", "qas": [{"question": "z"}]}', "line 1: answers of a question"),
        ("{", "cannot be read"),
    ],
)
def test_rows_that_cannot_be_trained_on_are_named(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(text)
    with pytest.raises(DeskError, match=says) as caught:
        list(read_rows([file]))
    assert str(file) in str(caught.value)
    with pytest.raises(DeskError, match="cannot be read"):
        list(read_rows([tmp_path / "none.jsonl"]))


def test_a_cut_file_is_named(tmp_path: Path) -> None:
    whole = gzip.compress("\n".join(json.dumps(row(number)) for number in range(300)).encode())
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DeskError, match=r"cut\.jsonl\.gz cannot be read"):
        list(read_rows([tmp_path / "cut.jsonl.gz"]))
