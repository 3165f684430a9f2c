"""The quality measurement on a tiny model: its arms are what they say, and so are its figures."""

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
from hashed_search import HashEmbedder
from tiny import build

import evals.answers.quality_run
from app.desk.calibration import (
    FILE,
    ModeMetrics,
    best_mode,
    best_policy,
    find_calibration,
    read_calibration,
    refusal_bias,
)
from app.domain.errors import DeskError
from app.domain.setting_types import AnswerMode
from app.domain.settings import Settings
from app.knowledge.prompts import PromptBuilder
from cache.engine.engine import Engine
from evals.answers.cases import Case, CaseReader, holds, read_list
from evals.answers.quality import ARMS, FULL, NOISE, Bench, is_right, quality_row
from evals.answers.quality_run import read_outcomes, run_missing

OTHERS = [name for name in ARMS if name != FULL]


@pytest.fixture
def data(tmp_path):
    rows = [
        {
            "src": "squad",
            "title": "Shop",
            "context": f"Shelf {n} holds {n * n} cups.",
            "qas": [{"question": f"What is on shelf {n}?", "answers": [f"{n * n} cups"] if n % 3 else []}],
        }
        for n in range(6)
    ]
    long = "word " * 400
    rows.append({"src": "long", "title": "Shop", "context": long, "qas": [{"question": "Who?", "answers": ["word"]}]})
    file = tmp_path / "qa.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    return file


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setattr("evals.answers.quality.ANSWER_TOKENS", 12)
    settings = Settings(data_dir=tmp_path, repetition_penalty=1.0)
    engine = Engine(build(), memory=8 << 20).start()
    made = Bench(settings, engine, tuple(b"Answer. "))
    yield made
    engine.close()


@pytest.fixture
def reader(bench):
    tokenizer = bench.engine.model.tokenizer
    return CaseReader(PromptBuilder(tokenizer.template, "Answer."), tokenizer, HashEmbedder(), neighbours=1)


def text_of(tokens: tuple[int, ...]) -> str:
    return bytes(tokens).decode()


def test_cases_are_the_same_every_time_and_hold_their_document(reader, data):
    cases = reader.read(data, 3, 8)
    assert cases == reader.read(data, 3, 8)
    assert reader.read(data, 3, 4) == cases[:4]
    assert len(cases) == len({case.question for case in cases}) == 6, "every question once"
    assert all(len(case.modules) == 3 for case in cases)
    assert {bool(case.answers) for case in cases} == {True, False}
    for case in cases:
        shelf = text_of(case.question).split("shelf ")[1][0]
        assert f"Shelf {shelf} " in text_of(case.modules[case.right])
        assert all("word" not in text_of(module) for module in case.modules), "long documents are no passage"
    with pytest.raises(DeskError, match="no title has questions and 9 documents"):
        reader.read(data, 9, 1)


def test_several_passages_may_be_needed(reader, tmp_path):
    file = tmp_path / "hops.json"
    rows = [
        {"question": "Who?", "answers": ["Ann"], "ctxs": [{"title": "", "text": t} for t in ("Ann.", "Bo.", "Cy.")]}
    ]
    file.write_text(json.dumps(rows))
    (case,) = reader.read(file, 5, 10)
    assert sorted(map(text_of, case.modules)) == [f"Help page: \n{name}.\n\n" for name in ("Ann", "Bo", "Cy")]
    assert (case.right, case.answers) == (None, ("Ann",))
    filler = "\n".join("Nothing is told here at all." for _ in range(30))
    long = f"Who is who, and who is it?\n{filler}\nAnn is she."
    texts = [{"title": "", "text": text} for text in (long, f"{filler}\nWho is Bo? Bo.\n{filler}", " ")]
    file.write_text(json.dumps([{"question": "Who is it?", "answers": ["Ann"], "ctxs": texts}]))
    (case,) = reader.read(file, 5, 10)
    read = [text_of(module) for module in case.modules]
    assert all(len(text.split()) < 130 for text in read)
    assert sorted(["Ann is she." in text for text in read]) == [False, True], "the stretch that holds the answer"
    assert any("Who is Bo?" in text for text in read), "the stretch nearest to the question"
    file.write_text("{}")
    with pytest.raises(DeskError, match="must be a JSON list of"):
        read_list(file)


def test_conversations_bring_their_earlier_turns(reader, tmp_path):
    row = {
        "src": "talk",
        "title": "",
        "context": "\n".join(f"Line {n} says {'x ' * 100}." for n in range(6)),
        "qas": [
            {"question": "And 4?", "answers": ["x"], "history": [["user", "What is 3?"], ["agent", "x"]]},
            {"question": "Alone?", "answers": ["x"]},
        ],
    }
    file = tmp_path / "talk.jsonl"
    file.write_text(json.dumps(row))
    (case,) = reader.conversations(file, 3, 10)
    (turn,) = case.earlier
    assert "What is 3?" in text_of(turn.question)
    assert len(turn.modules) == 2
    assert not set(turn.modules) & set(case.modules), "a passage is brought in once"
    assert all(len(left_context) > 100 for left_context in (*turn.left_contexts, *case.left_contexts))
    row["qas"].insert(1, row["qas"][0] | {"history": [["user", "What is 3?"], ["agent", "y"]]})
    file.write_text(json.dumps(row))
    first, second = reader.conversations(file, 3, 10)
    assert (first.question, first.modules) == (second.question, second.modules)
    assert first.id == case.id != second.id, "it goes on from another answer"
    assert reader.conversations(file, 3, 1) == [first]


def test_sample_questions_are_asked_among_the_nearest_others(reader):
    root = Path(__file__).parent.parent / "data"
    cases = reader.knowledge(root / "questions.jsonl", root / "knowledge", 5, 6)
    assert len(cases) == 6
    for case in cases:
        assert len(case.modules) == 5
        assert holds(text_of(case.modules[case.right]), case.facts)
        assert is_right(case, " and ".join(case.facts))
        assert not is_right(case, case.facts[0][:-1])


def a_case(**more: object) -> Case:
    modules = (tuple(b"Cups cost 4. "), tuple(b"Lamps cost 30 and glow. "), tuple(b"Chairs cost 99. "))
    values = {
        "id": "x",
        "source": "s",
        "modules": modules,
        "left_contexts": (modules[1], modules[2], modules[0]),
        "right": 2,
        "question": tuple(b"What do chairs cost?"),
        "answers": ("99",),
        "gold": tuple(b"99"),
    }
    return Case(**{**values, **more})


def test_the_page_of_evidence_names_every_arm():
    page = (Path(__file__).parent.parent / "docs" / "evidence.md").read_text()
    assert [name for name in [*ARMS, NOISE] if f"`{name}`" not in page] == []


def test_full_attention_has_no_distance_from_itself_and_others_have(bench):
    cases = [a_case(), a_case(id="y", question=tuple(b"What do cups cost?"), answers=(), gold=())]
    outcomes = [bench.run(case, OTHERS) for case in cases]
    rows = {name: quality_row(name, cases, outcomes) for name in [FULL, *OTHERS, NOISE]}
    for exact in ("full", "exact", NOISE):
        assert rows[exact]["kl"] < 1e-3, exact
        assert rows[exact]["top1"] == 1.0
    assert rows["full"]["gold_logp_delta"] == 0
    for name in set(OTHERS) - {"exact"}:
        row = rows[name]
        assert row["kl"] > 1e-4, name
        low, high = row["kl_interval"]
        assert low <= row["kl"] <= high
    assert rows["fast"]["recomputed_tokens"] == rows["prompt_cache"]["recomputed_tokens"] == 0
    assert 0 < rows["balanced"]["recomputed_share"] <= 0.16
    assert rows["balanced"]["recomputed_tokens"] == rows["random"]["recomputed_tokens"]
    assert (
        rows["full"]["recomputed_share"] == rows["exact"]["recomputed_share"] == rows[NOISE]["recomputed_share"] == 1.0
    )
    assert rows["fewer"]["recomputed_tokens"] == rows["gold"]["recomputed_tokens"] == len(cases[0].modules[2])
    assert rows["none"]["recomputed_tokens"] == 0
    noise = rows[NOISE]
    assert [noise[name] for name in ("agree", "gold_logp_delta", "contains_gold", "ttft_ms")] == [None] * 4, (
        "not measured"
    )


def test_a_run_goes_on_where_it_stopped(bench):
    cases, asked, run = [a_case(), a_case(id="y")], list[str](), bench.run
    kept = io.StringIO()
    kept.fileno = lambda: 1
    first = run_missing(bench, cases[:1], ["fast"], kept, lambda line: None)
    kept.write('{"case": "y", "outc')  # cut by an interruption
    bench.run = lambda case, names: asked.append(case.id) or run(case, names)
    again = run_missing(bench, cases, ["fast"], kept, lambda line: None)
    assert asked == ["y"]
    assert again[0] == first[0]
    assert set(read_outcomes(kept)) == {"x", "y"}


def row(policy: str, kl: float, gold: float, right: float) -> dict[str, object]:
    return {"policy": policy, "kl": kl, "gold_logp_delta": gold, "contains_gold": right}


@pytest.mark.parametrize(
    ("fast", "balanced", "expected"),
    [
        ((0.02, -0.01, 0.7), (0.01, 0.0, 0.7), "fast"),
        ((0.2, -0.01, 0.7), (0.01, 0.0, 0.7), "balanced"),
        ((0.02, -0.5, 0.7), (0.01, -0.3, 0.7), "exact"),
        ((0.02, -0.01, 0.5), (0.01, 0.0, 0.7), "balanced"),
    ],
)
def test_the_fastest_policy_that_keeps_the_answers_is_chosen(fast, balanced, expected):
    assert best_policy([row("full", 0, 0, 0.7), row("fast", *fast), row("balanced", *balanced)]) == expected


def answers(mode: AnswerMode, right: int, wrong: int, words: float | None) -> ModeMetrics:
    return ModeMetrics(mode=mode, questions=40, right=right, wrong=wrong, words=words)


@pytest.mark.parametrize(
    ("own_words", "expected"),
    [
        ((29, 2, 60), "checked"),
        ((28, 3, 30), "quote"),  # fewer right answers for each wrong one
        ((30, 4, 30), "checked"),  # as good and shorter
        ((30, 4, 50), "quote"),  # as good, not shorter
        ((0, 0, None), "quote"),
    ],
)
def test_own_words_serve_if_they_are_better_than_quotations(own_words, expected):
    assert best_mode(answers("checked", *own_words), answers("quote", 28, 2, 50)) == expected


def test_calibrate_finds_the_bias_first_and_measures_with_it(bench, reader, data, monkeypatch):
    @contextmanager
    def opened(settings: Settings) -> Iterator[tuple[Bench, CaseReader]]:
        bench.refusal_bias = None
        yield bench, reader

    settings = bench.settings
    said: list[tuple[str, float | None]] = []
    run = bench.run
    bench.run = lambda case, names: said.append((case.id, bench.refusal_bias)) or run(case, names)
    modes = answers("checked", 30, 1, 20), answers("quote", 28, 2, 50)
    monkeypatch.setattr(evals.answers.quality_run, "open_bench", opened)
    monkeypatch.setattr(evals.answers.quality_run, "Service", lambda settings: nullcontext(settings.answer_mode))
    monkeypatch.setattr(evals.answers.quality_run, "compare_modes", lambda mode, *_: modes * (mode == "checked"))
    (settings.data_dir / FILE).write_text('{"of": "another version"}')
    found = evals.answers.quality_run.calibrate(settings, data, limit=1, report=lambda line: None)
    assert [bias for _, bias in said] == [None] * 2, "nothing is refused too often"
    assert found == read_calibration(settings.data_dir / FILE), "in place of what could not be read"
    assert (found.questions, found.refusal_bias, found.answer_mode, found.modes) == (2, 0.0, "checked", modes)
    assert "KL " in found.line()
    assert "; own words 30 right, 1 wrong of 40, 20 words; quotations 28 right" in found.line()
    said.clear()
    monkeypatch.setattr(evals.answers.quality_run, "refusal_bias", lambda margins: -2.5)
    found = evals.answers.quality_run.calibrate(settings, data, limit=1, report=lambda line: None)
    assert [bias for _, bias in said] == [None] * 2 + [-2.5] * 2
    assert found.refusal_bias == -2.5


def test_the_refusal_is_held_back_until_few_answerable_questions_are_refused():
    margins = [3.0, 2.0, *[-1.0] * 18]
    assert refusal_bias(margins) == 0.0, "2 of 20 are no more than 10 %"
    for more in ([4.0, *margins[:-1]], [4.0, 3.0, 3.0, *margins[3:]], [0.0] * 20):
        bias = refusal_bias(more)
        assert bias < 0
        assert sum(margin + bias >= 0 for margin in more) <= 2, "of two equal logits either may be chosen"
    assert refusal_bias([]) == 0.0


def test_a_bias_is_of_the_refusal_it_was_measured_with(tmp_path):
    settings = Settings(data_dir=tmp_path)
    found = find_calibration(settings)
    assert found is not None
    assert found.bias_of(settings) == found.refusal_bias < 0
    assert found.bias_of(settings.model_copy(update={"refusal_text": "The answer is not in our pages."})) == 0
