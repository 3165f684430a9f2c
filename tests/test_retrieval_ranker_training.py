"""Training of the ranker: examples read from files, batches, the loss, and what is written."""

import gzip
import itertools
import json
import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from app.desk.calibration import find_ranker
from app.domain.errors import DeskError
from app.domain.settings import Settings
from app.training import make_ranker
from retrieval.ranking import training
from retrieval.ranking.encoder import CARD, WEIGHTS, RankerTokens, StatementEncoder
from retrieval.ranking.training import (
    FIRST,
    MADE,
    MOST_WORDS,
    PASSAGES,
    QUESTIONS,
    ExamplePassage,
    RankerCard,
    RankerModel,
    TrainingQuestion,
    all_scores,
    as_asked,
    batches,
    best_matches,
    question_tensors,
    read_examples,
    save_ranker,
    train_ranker,
)
from retrieval.search.network import padded

THINGS = ("lamp", "shoe", "cup", "bag", "chair", "table", "clock", "scarf")


def row(thing: str, number: int) -> dict[str, Any]:
    return {
        "src": "toys",
        "title": f"The {thing}",
        "context": f"A {thing} costs {number} euros. Every {thing} is blue. Wash it at {number + 20} degrees.",
        "qas": [
            {"question": f"What is the price of a {thing}?", "answers": [f"A {thing} costs {number} euros."]},
            {"question": f"How warm do I wash the {thing}?", "answers": [f"{number + 20} degrees"]},
            {"question": f"Who made the {thing}?", "answers": []},
        ],
    }


TOYS = [row(thing, number) for number, thing in enumerate(THINGS, start=1)]


def write_rows(file: Path, rows: Sequence[object]) -> Path:
    lines = "".join(json.dumps(one) + "\n" for one in rows).encode()
    file.write_bytes(gzip.compress(lines) if file.suffix == ".gz" else lines)
    return file


def read(
    folder: Path, *rows: object, left_out: Sequence[str] = (), local: Sequence[str] = ()
) -> list[list[ExamplePassage]]:
    file = write_rows(folder / "questions.jsonl", rows)
    return read_examples([file], frozenset(left_out), frozenset(local), seed=0)


def test_the_statements_that_hold_an_answer_are_right(tmp_path):
    both = {"question": "Tell me more", "answers": ["Every lamp is blue.", "21 degrees"]}
    ((passage,),) = read(tmp_path, {**TOYS[0], "qas": [*TOYS[0]["qas"], both]})
    text = passage.read.text
    assert [text[first:end] for first, end in passage.read.spans] == [
        "A lamp costs 1 euros.",
        "Every lamp is blue.",
        "Wash it at 21 degrees.",
    ]
    assert (passage.read.headings, passage.is_local) == (("The lamp",), False)
    assert [(one.right, one.weight, one.earlier) for one in passage.questions] == [
        ((0,), 1.0, ""),
        ((2,), 1.0, ""),
        ((), 1.0, ""),
        ((1, 2), 1.0, ""),
    ]


def test_files_may_be_packed_and_sources_left_out_or_local(tmp_path):
    packed = write_rows(tmp_path / "a.jsonl.gz", TOYS[:2])
    other = write_rows(tmp_path / "b.jsonl", [{**TOYS[2], "src": "own"}, {**TOYS[3], "src": "kept"}])
    found = read_examples([packed, other], frozenset(["kept"]), frozenset(["own"]), seed=0)
    assert [(one.read.headings[0], one.document, one.is_local) for (one,) in found] == [
        ("The lamp", 0, False),
        ("The shoe", 1, False),
        ("The cup", 2, True),
    ]


def test_a_long_text_is_cut_at_lines_and_a_question_goes_where_its_answer_is(tmp_path):
    lines = [f"Line {n} is about things. " + " ".join(f"Thing {n}{k} is red." for k in range(20)) for n in range(12)]
    context = "\n".join(lines) + "\nThe end is red."
    qas = [
        {"question": "What is the end?", "answers": ["The end is red."]},
        {"question": "Where is line 2?", "answers": ["Line 2 is about things."]},
        {"question": "Is there any zebra?", "answers": []},
        {"question": "What stands nowhere?", "answers": ["It stands nowhere."]},
        {"question": "All?", "answers": [context[: context.index("Line 1")]]},
    ]
    (passages,) = read(tmp_path, {"src": "s", "title": "t", "context": context, "qas": qas})
    assert len(passages) > 2
    assert max(len(one.read.text.split()) for one in passages) <= MOST_WORDS
    assert "".join(one.read.text for one in passages) == context
    by_text = {question.text: (passage, question) for passage in passages for question in passage.questions}
    assert "What stands nowhere?" not in by_text, "it is unknown which statement answers"
    for asked, answer in (("What is the end?", "The end is red."), ("Where is line 2?", "Line 2 is about things.")):
        passage, question = by_text[asked]
        (right,) = question.right
        first, end = passage.read.spans[right]
        assert passage.read.text[first:end] == answer
    assert by_text["Is there any zebra?"][1].right == ()
    assert by_text["All?"][1].right == tuple(range(FIRST))


def test_made_questions_count_less_and_half_of_their_headings_are_taken_out(tmp_path):
    rows = [
        {
            "src": "s",
            "title": f"Page {n}",
            "context": f"Care\nHow to wash\nWash it at {n} degrees.",
            "qas": [
                {"question": "How to wash?", "answers": [f"{n} degrees"], "from": "heading", "heading": "How to wash"}
            ],
        }
        for n in range(60)
    ]
    passages = [passage for (passage,) in read(tmp_path, *rows)]
    assert {one.questions[0].weight for one in passages} == {MADE}
    assert 15 < sum("How to wash" in one.read.text for one in passages) < 45
    for one in passages:
        (right,) = one.questions[0].right
        first, end = one.read.spans[right]
        assert "degrees" in one.read.text[first:end]


def test_the_customer_s_last_turn_is_the_earlier_one(tmp_path):
    history = [["user", "first"], ["agent", "yes"], ["User", " ".join(map(str, range(40)))], ["agent", "no"]]
    qa = {"question": "And?", "answers": [], "history": history}
    ((passage,),) = read(tmp_path, {**TOYS[0], "qas": [qa]})
    assert passage.questions[0].earlier.split() == [str(n) for n in range(18, 40)]


def test_documents_without_questions_are_left_out(tmp_path):
    assert read(tmp_path, {**TOYS[0], "qas": []}, {**TOYS[1], "context": ""}) == []


def test_batches_have_their_questions_beside_their_passages(tmp_path):
    documents = read(tmp_path, *TOYS)
    first = list(itertools.islice(batches(documents, random.Random(0)), 20))
    for batch in first:
        assert len(batch.passages) <= PASSAGES + 2
        assert 0 < len(batch.questions) <= QUESTIONS
        assert len({id(passage) for passage in batch.passages}) == len(batch.passages)
        assert all(
            any(question is one for one in batch.passages[place].questions) for place, question in batch.questions
        )
    again = list(itertools.islice(batches(documents, random.Random(0)), 20))
    assert [[q.text for _, q in one.questions] for one in first] == [
        [q.text for _, q in one.questions] for one in again
    ]


def test_questions_are_asked_as_customers_write():
    question = TrainingQuestion(text="How long do vouchers last?", earlier="I have a card.", right=(), weight=1.0)
    generator = random.Random(0)
    asked = [as_asked(question, generator) for _ in range(300)]
    assert question.text in asked
    assert "How long do vouchers last" in asked
    assert 0.5 < sum(one.startswith("I have a card. ") for one in asked) / 300 < 0.9
    slips = {one.removeprefix("I have a card. ").rstrip("?") for one in asked} - {"How long do vouchers last"}
    assert slips
    assert all(abs(len(slip) - len("How long do vouchers last")) <= 1 for slip in slips)
    blank = TrainingQuestion(text="?", earlier="", right=(), weight=1.0)
    assert {as_asked(blank, generator) for _ in range(50)} == {"?", ""}


EMPTY_CARD = RankerCard(data=("questions.jsonl",), left_out=(), questions=24, steps=0, minutes=0.0, seed=1, loss=0.0)


@pytest.fixture
def by_steps(monkeypatch):
    """Makes training count steps instead of time; gives the minutes for so many steps."""
    clock = itertools.count()
    monkeypatch.setattr(training, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    monkeypatch.setattr(training, "WARM_UP", 1)
    return lambda steps: (2 * steps + 0.5) / 60  # the clock is read twice in a step


def test_the_best_match_of_a_token_is_inside_the_span(monkeypatch):
    monkeypatch.setattr(training, "TOGETHER", 2)
    generator = torch.Generator().manual_seed(1)
    asked, tokens = torch.randn(4, 8, generator=generator), torch.randn(15, 8, generator=generator)
    lengths = [3, 1, 6, 1, 4]
    expected = torch.stack([(asked @ part.T).amax(1) for part in tokens.split(lengths)], 1)
    assert torch.allclose(best_matches(asked, tokens, torch.tensor(lengths)), expected)


def test_training_scores_as_the_desk_does(tmp_path):
    """Up to half precision of the wholes and one byte for a number of the tokens."""
    documents = read(tmp_path, *TOYS)
    torch.manual_seed(2)
    model = RankerModel().eval()
    torch.nn.init.normal_(model.weigh.weight, std=0.1)
    torch.nn.init.normal_(model.bar.weight, std=0.5)
    save_ranker(model, tmp_path / "ranker", EMPTY_CARD)
    encoder, tokens = StatementEncoder(tmp_path / "ranker"), RankerTokens()
    read_passages = [passage.read for (passage,) in documents]
    rows, spans = tokens.passages(read_passages, training.LONGEST)
    asked = ["What is the price of a lamp?", "How warm?", "Blue?"]
    with torch.inference_mode():
        scores, bars = all_scores(model, question_tensors(tokens, asked), model.statements(*padded(rows), spans), spans)
    vectors = encoder.read(read_passages)
    for place, text in enumerate(asked):
        found = encoder.mixture.scores(encoder.question(text), vectors)[0]
        assert np.abs(found - (scores[place] - bars[place]).numpy()).max() < 0.15
        assert found.argmax() == scores[place].argmax()


def test_some_steps_lower_the_loss_and_write_ranker_and_card(tmp_path, by_steps):
    documents, told = read(tmp_path, *TOYS[:4]), list[tuple[int, float, float]]()
    card = train_ranker(
        documents,
        tmp_path / "ranker",
        EMPTY_CARD,
        minutes=by_steps(7),
        start=None,
        report=lambda *step: told.append(step),
    )
    losses = [loss for _, _, loss in told]
    assert [step for step, _, _ in told] == list(range(1, 8))
    assert np.mean(losses[-2:]) < 0.8 * np.mean(losses[:2])
    assert (card.steps, card.questions, card.seed) == (7, 24, 1)
    assert card.loss == pytest.approx(np.mean(losses), abs=1e-3)
    written = json.loads((tmp_path / "ranker" / CARD).read_text())
    assert RankerCard(**{**written, "data": tuple(written["data"]), "left_out": ()}) == card
    assert sorted(file.name for file in (tmp_path / "ranker").iterdir()) == [CARD, WEIGHTS]
    weights = load_file(tmp_path / "ranker" / WEIGHTS)
    assert {weight.dtype for weight in weights.values()} == {torch.float16}
    assert not any(".embeddings." in name or "layer.0." in name or "layer.1." in name for name in weights)
    assert StatementEncoder(tmp_path / "ranker").name == card.name != ""


def test_a_question_is_compared_with_its_own_document_only_where_it_does_not_name_it(tmp_path):
    """Ten other documents with the very answer are no competition for a local question."""
    rows = [{**TOYS[0], "title": f"Shop {n}"} for n in range(11)]
    model, tokens = RankerModel().eval(), RankerTokens()

    def loss(local: Sequence[str]) -> float:
        passages = [passage for (passage,) in read(tmp_path, *rows, local=local)]
        question = passages[0].questions[0]
        batch = training.TrainingBatch(passages=passages, questions=[(0, question)])
        with torch.inference_mode():
            return float(training.loss_of(model, tokens, batch, random.Random(0)))

    assert loss(["toys"]) + 1.0 < loss([])


def test_an_unanswerable_question_costs_what_its_statements_lie_above_the_bar(tmp_path):
    ((passage,),) = read(tmp_path, TOYS[0])
    batch = training.TrainingBatch(passages=[passage], questions=[(0, passage.questions[2])])
    model, tokens = RankerModel().eval(), RankerTokens()
    losses = []
    for bar in (-50.0, 0.0, 50.0):
        torch.nn.init.constant_(model.bar.bias, bar)
        with torch.inference_mode():
            losses.append(float(training.loss_of(model, tokens, batch, random.Random(0))))
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] == pytest.approx(0, abs=1e-4)


def trained(folder: Path, file: Path, minutes: float = 1.0, **changes: Any) -> dict[str, Any]:
    options: dict[str, Any] = {"go_on": False, "left_out": frozenset(), "local": frozenset(), "seed": 0}
    settings = Settings(data_dir=folder)
    options |= changes
    return make_ranker(settings, [file], folder / "ranker", minutes=minutes, report=lambda _: None, **options)


def test_the_desk_uses_what_it_trained_and_goes_on_from_it(tmp_path, by_steps):
    file = write_rows(tmp_path / "toys.jsonl", TOYS[:2])
    card = trained(tmp_path, file, by_steps(1))
    assert find_ranker(Settings(data_dir=tmp_path)) == tmp_path / "ranker"
    assert (card["data"], card["questions"], card["steps"]) == (("toys.jsonl",), 6, 1)
    first = load_file(tmp_path / "ranker" / WEIGHTS)
    more = trained(tmp_path, file, by_steps(1), go_on=True)
    assert more["name"] != card["name"], "its vectors are others"
    second = load_file(tmp_path / "ranker" / WEIGHTS)
    assert any(not torch.equal(first[name], second[name]) for name in first)
    assert max(float((first[name].float() - second[name].float()).abs().max()) for name in first) < 0.2


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "too-few-questions"),
        (json.dumps({**TOYS[0], "qas": TOYS[0]["qas"][2:]}), "too-few-questions"),
        ("{", "bad-questions"),
        ('{"src": "x"}', "bad-questions"),
        ("5", "bad-questions"),
        (json.dumps({**TOYS[0], "qas": [{"answers": []}]}), "bad-questions"),
    ],
)
def test_files_without_answers_are_one_clear_error(tmp_path, text, code):
    (tmp_path / "q.jsonl").write_text(text + "\n" * bool(text))
    with pytest.raises(DeskError) as caught:
        trained(tmp_path, tmp_path / "q.jsonl")
    assert caught.value.code == code
    assert "\n" not in str(caught.value)
    with pytest.raises(DeskError, match="cannot be read"):
        trained(tmp_path, tmp_path / "none.jsonl")
