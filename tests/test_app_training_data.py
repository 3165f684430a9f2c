"""`adapt`, a tiny model trained, and what it is trained on: documents, refusals, and the examples made of them."""

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from desks import small_desk, write_pages
from tiny import ByteTokenizer, build, stock
from tiny_desk import small_settings

import app.training
from app.domain.errors import DeskError
from app.domain.settings import Settings
from app.knowledge.prompts import PromptBuilder
from app.training import (
    LABELLED,
    LONGEST_ANSWER,
    LONGEST_PASSAGE,
    MINUTES,
    OWN,
    STEPS,
    QueryMix,
    TrainingData,
    TrainingPassage,
    TrainingTokenizer,
    adapt,
    answer_sentence,
    read_rows,
    schedule_of,
    split_topics,
    topic_hash,
)
from cache.errors import ModelError
from cache.model.loading import merge_adapter
from cache.training.examples import TrainingExample

REFUSAL = "I do not know."
TEXT = "Labels are free. They last 30 days, in stores 9 days. Ask in a store."


@pytest.fixture(scope="module")
def tokenizer():
    tokenizer = build().tokenizer
    return TrainingTokenizer(PromptBuilder(tokenizer.template, "Answer."), tokenizer, REFUSAL)


def data_of(
    tokenizer: TrainingTokenizer, passages: list[TrainingPassage], mix: QueryMix = LABELLED, neighbours: int = 1
) -> TrainingData:
    return TrainingData(passages, tokenizer, mix, neighbours=neighbours, seed=0)


def row(number: int, **more: Any) -> dict[str, Any]:
    qas = [{"question": f"What costs {number}?", "answers": [f"Shelf {number}"]}, {"question": "Why?", "answers": []}]
    return {"src": "shop", "title": f"T{number % 3}", "context": f"Shelf {number} is it.", "qas": qas, **more}


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
def test_the_sentence_that_holds_the_answer_is_trained_on(question, answer, expected):
    assert answer_sentence(TEXT, question, answer) == expected


def test_a_document_with_what_it_answers_and_what_not(tokenizer):
    made = tokenizer.labelled_passage(row(4))
    assert made is not None
    assert (made.source, made.topic) == ("shop", "shop/T1")
    assert "Shelf 4 is it." in bytes(made.tokens).decode()
    (question, answer), (_, none) = made.questions
    assert b"What costs 4?" in bytes(question)
    assert bytes(answer or ()) == b"Shelf 4 is it."
    assert none is None


def test_what_is_too_long_or_has_no_questions_is_left_out(tokenizer):
    assert tokenizer.labelled_passage(row(1, context="word " * LONGEST_PASSAGE)) is None
    assert tokenizer.labelled_passage(row(1, qas=[])) is None
    long = "Shelf 1 is " + "very " * LONGEST_ANSWER + "full."
    assert tokenizer.labelled_passage(row(1, context=long, qas=[{"question": "What?", "answers": ["Shelf 1"]}])) is None


def examples_of(tokenizer: TrainingTokenizer) -> list[TrainingExample]:
    passages = [made for number in range(12) if (made := tokenizer.labelled_passage(row(number))) is not None]
    examples = data_of(tokenizer, passages)
    assert [examples.example_at(step) for step in range(30)] == [examples.example_at(step) for step in range(30)]
    return [examples.example_at(step) for step in range(30)]


def test_examples_are_made_of_passages_questions_and_refusals(tokenizer):
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


@pytest.mark.parametrize("count", [0, 1, 2])
def test_passages_are_read_behind_others_of_the_example_or_its_topic(tokenizer, count):
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


def test_the_same_topics_are_held_out_every_time():
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
def test_of_few_documents_some_are_held_out(documents, held):
    passages = [
        TrainingPassage(source="", topic=str(topic), tokens=(topic, n), questions=())
        for topic, count in enumerate(documents)
        for n in range(count)
    ]
    train, test = split_topics(passages)
    assert sum(map(len, test)) == held
    assert not {ones[0].topic for ones in train} & {ones[0].topic for ones in test}
    assert len(train) + len(test) == len(documents)


def test_an_example_has_no_passage_twice_and_refuses_nothing_it_answers(tokenizer):
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


def test_training_data_has_an_identity(tokenizer):
    passages = [made for number in range(6) if (made := tokenizer.labelled_passage(row(number))) is not None]
    same = data_of(tokenizer, passages).identity
    assert same == data_of(tokenizer, list(passages)).identity
    assert same != data_of(tokenizer, passages[1:]).identity != data_of(tokenizer, passages, OWN).identity != same


def test_rows_of_plain_and_compressed_files(tmp_path):
    text = "\n".join(json.dumps(row(number)) for number in range(3)) + "\n\n"
    (tmp_path / "a.jsonl").write_text(text)
    with gzip.open(tmp_path / "b.jsonl.gz", "wt") as file:
        file.write(text)
    assert list(read_rows([tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz"])) == [row(n) for n in (0, 1, 2, 0, 1, 2)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"title": "x"}', "line 1 is not a document .*title, context and qas"),
        ('{"title": "x", "context": "y", "qas": ["z"]}', "line 1 is .*qas must be a list of objects with a question"),
        (
            '{"title": "x", "context": "y", "qas": [{"question": "z", "answers": {"text": ["y"]}}]}',
            "line 1 is not a document .*answers must be a list of texts",
        ),
        ("{", "line 1 is not a document"),
    ],
)
def test_rows_that_cannot_be_trained_on_are_named(tmp_path, text, says):
    file = tmp_path / "bad.jsonl"
    file.write_text(text)
    with pytest.raises(DeskError, match=says) as caught:
        list(read_rows([file]))
    assert str(file) in str(caught.value)
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(random.Random(0).randbytes(999).hex().encode())[:500])
    for name, why in (("none.jsonl", "No such file"), ("cut.jsonl.gz", "cannot be read")):
        with pytest.raises(DeskError, match=f"{name}.*{why}"):
            list(read_rows([tmp_path / name]))


@pytest.fixture
def trained_on(monkeypatch):
    """The tiny model in place of the one that the settings name; the examples that were trained on."""
    examples: list[TrainingExample] = []

    class Training(app.training.AdapterTraining):
        def __init__(self, hf: Any, example_at: Any, *more: Any, **named: Any) -> None:
            super().__init__(hf, lambda step: examples.append(example_at(step)) or examples[-1], *more, **named)  # type: ignore[func-returns-value]

    monkeypatch.setattr(app.training, "load_stock", lambda *_, **__: (stock(), None, "tiny"))
    monkeypatch.setattr(app.training, "ModelTokenizer", lambda _: ByteTokenizer())
    monkeypatch.setattr(app.training, "AdapterTraining", Training)
    return examples


def test_a_desk_trains_on_its_own_passages(tmp_path, trained_on):
    with small_desk(tmp_path / "desk") as desk:
        desk.ingest([write_pages(tmp_path / "pages")])
    settings = small_settings(tmp_path / "desk")
    result = adapt(settings, [], tmp_path / "adapter", steps=3, minutes=None, seed=0, report=lambda progress: None)
    assert (result["steps"], result["documents"], result["files"]) == (3, 4, [])
    assert result["schedule"]["objective"] == "distil"
    written = json.loads((tmp_path / "adapter" / "training.json").read_text())["schedule"]
    assert written == result["schedule"]
    assert written["lessons"] == written["batch_size"] == 2, "the key has an older name"
    assert result["held_out_moved"] >= 0
    asked = {bytes(query.question).decode() for example in trained_on for query in example.queries}
    assert any("repair" in question for question in asked)
    assert len(trained_on) == 6, "two a step"
    assert all(example.queries and all(len(query.answer) > 5 for query in example.queries) for example in trained_on)
    texts = [b" ".join(map(bytes, example.modules)) for example in trained_on]
    said = [
        (bytes(query.answer[:-1]), text)
        for example, text in zip(trained_on, texts, strict=True)
        for query in example.queries
    ]
    assert all(answer in text for answer, text in said), "beginnings of sentences"
    assert any(left_context for example in trained_on for left_context in example.left_contexts)
    assert all(len(example.modules) > 1 for example in trained_on), "one alone is read as with full attention"
    merge_adapter(stock(), tmp_path / "adapter")


def test_files_bring_their_answers(tmp_path, trained_on):
    file = tmp_path / "qa.jsonl"
    file.write_text(
        '{"title": "T", "context": "Cups cost 4.", "qas": [{"question": "What do cups cost?", "answers": ["4"]}]}\n'
    )
    settings = small_settings(tmp_path / "desk")
    result = adapt(settings, [file], tmp_path / "adapter", steps=2, minutes=None, seed=0, report=lambda progress: None)
    assert result["schedule"]["objective"] == "answers"
    assert result["held_out_moved"] is None, "full attention is held to nothing"
    answers = {bytes(query.answer[:-1]).decode() for example in trained_on for query in example.queries}
    assert "Cups cost 4." in answers


def test_how_long_it_takes_unless_told():
    own, labelled = (schedule_of(labelled=labelled, steps=None, minutes=None, seed=0) for labelled in (False, True))
    assert (own.steps, own.minutes, labelled.steps, labelled.minutes) == (None, MINUTES, STEPS, None)
    for is_labelled in (False, True):
        told = schedule_of(labelled=is_labelled, steps=None, minutes=5.0, seed=0)
        assert (told.steps, told.minutes) == (None, 5.0)
        told = schedule_of(labelled=is_labelled, steps=7, minutes=None, seed=0)
        assert (told.steps, told.minutes) == (7, None)


def test_without_documents_there_is_nothing_to_learn(tmp_path, trained_on):
    settings = small_settings(tmp_path / "desk")
    for match in ("ingest documents first, or set --data", "does not exist or is empty: ingest documents first"):
        with pytest.raises(DeskError, match=match):
            adapt(settings, [], tmp_path / "adapter", steps=1, minutes=None, seed=0, report=lambda progress: None)
        settings.data_dir.mkdir(exist_ok=True)
    assert not list(settings.data_dir.iterdir())
    assert not trained_on


def test_files_without_anything_to_train_on_are_no_desk(tmp_path, trained_on):
    long, good = (
        {"title": "T", "context": text, "qas": [{"question": "What do cups cost?", "answers": ["4"]}]}
        for text in ("Cups cost 4. " * 200, "Cups cost 4.")
    )
    file = tmp_path / "qa.jsonl"
    file.write_text(json.dumps(long))
    settings = small_settings(tmp_path / "desk")
    with pytest.raises(DeskError, match=r"of the 1 documents can be used for training: each .* at most 300 tokens"):
        adapt(settings, [file], tmp_path / "adapter", steps=1, minutes=None, seed=0, report=lambda progress: None)
    file.write_text(json.dumps(long) + "\n" + json.dumps(good))
    result = adapt(settings, [file], tmp_path / "adapter", steps=1, minutes=None, seed=0, report=lambda progress: None)
    assert (result["documents"], result["left_out"], result["held_out_documents"]) == (1, 1, 0)


def test_the_adapter_in_use_is_not_trained_over(tmp_path, trained_on):
    with small_desk(tmp_path / "desk") as desk:
        desk.ingest([write_pages(tmp_path / "pages")])
    settings, folder = small_settings(tmp_path / "desk"), tmp_path / "adapter"

    def run(settings: Settings, folder: Path) -> dict[str, Any]:
        return adapt(settings, [], folder, steps=1, minutes=None, seed=0, report=lambda progress: None)

    run(settings, folder)
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    using = small_settings(tmp_path / "desk", adapter=str(folder))
    with pytest.raises(DeskError, match="holds the adapter in use: to train a second adapter"):
        run(using, folder)
    run(using, tmp_path / "next")
    on_top = small_settings(tmp_path / "desk", adapter=str(tmp_path / "next"))
    with pytest.raises(ModelError, match="of another model or adapter"):
        run(on_top, folder)
    base = small_settings(tmp_path / "desk", adapter=str(tmp_path / "next" / "base"))
    with pytest.raises(DeskError, match="holds the adapter in use"):
        run(base, tmp_path / "next")
    assert before == {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    assert run(settings, folder)["steps"] == 1, "its own training is over"
