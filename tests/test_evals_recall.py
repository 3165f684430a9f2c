"""How well search finds, on a handful of documents where one can count."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hashed_search import HashEmbedder, HashRanker
from reading_here import ReaderHere

from app.domain.errors import DeskError
from app.domain.settings import Settings
from cache.prompt.tokenizer import WordTokenizer
from evals.answers.recall import measure_recall, read_questions


@pytest.fixture(autouse=True)
def _without_models(monkeypatch):
    """Passages are cut and ranked by words, files read in this process: all else takes seconds."""
    monkeypatch.setattr("evals.answers.recall.FileReader", ReaderHere)
    monkeypatch.setattr("evals.answers.recall.StatementEncoder", lambda _: HashRanker())
    monkeypatch.setattr("evals.answers.recall.load_tokenizer", lambda *_, **__: WordTokenizer())


def write_rows(file: Path, rows: Iterable[object]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def result(folder: Path, file: Path, leave_out: Sequence[str] = (), **options: Any) -> dict[str, Any]:
    settings = Settings(data_dir=folder / "data", passages=2)
    options = {"limit": None, "leave_out": frozenset(leave_out), "report": lambda _: None, **options}
    return measure_recall(settings, file, embedder=HashEmbedder(), **options)


def measured(*given: Any, **options: Any) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["source"], row["retriever"]): row for row in result(*given, **options)["rows"]}


def qa(question: str, answer: str | None, *history: Sequence[str]) -> dict[str, object]:
    answers = [] if answer is None else [answer]
    return {"question": question, "answers": answers, "history": list(history)}


CONTEXTS = [
    {
        "src": "faq",
        "title": "Labels",
        "context": "Parcel labels are printed free.",
        "qas": [
            qa("parcel labels printed free", "Parcel labels are printed free."),  # the first
            qa("vouchers last five years", None),  # not refused, though it should be
        ],
    },
    {
        "src": "faq",
        "title": "Delivery",
        "context": "Drivers deliver on weekdays.",
        "qas": [qa("parcel labels printed", "Drivers deliver on weekdays.")],  # the second, all others being equal
    },
    {
        "src": "more",
        "title": "Vouchers",
        "context": "Vouchers last five years.",
        "qas": [
            qa("parcel labels free", "Vouchers last five years."),  # the third
            qa("zebra giraffe quagga", "Vouchers last five years."),  # the third, and refused
            qa("zebra giraffe", None),  # refused, rightly
            qa("how long", "Vouchers last five years.", ["Do vouchers last years?", "Yes."]),  # the first
        ],
    },
    {"src": "left", "title": "Left", "context": "Left out.", "qas": [qa("left", "Left out.")]},
]


def test_contexts_are_counted_by_hand(tmp_path):
    rows = measured(tmp_path, write_rows(tmp_path / "contexts.jsonl", CONTEXTS), ["left"])
    assert {source for source, _ in rows} == {"faq", "more", "all"}
    assert {retriever for _, retriever in rows} >= {"dense", "keyword", "rrf", "fused"}
    fused = rows["all", "fused"]
    assert (fused["n"], fused["answerable"]) == (7, 5)
    assert fused["hit1"] == pytest.approx(2 / 5)
    assert fused["hit3"] == fused["hit5"] == 1.0
    assert fused["mrr"] == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 3 + 1) / 5, abs=1e-4)
    assert (fused["refusal_precision"], fused["refusal_recall"]) == (0.5, 0.5)
    faq = rows["faq", "fused"]
    assert (faq["n"], faq["hit1"], faq["mrr"]) == (3, 0.5, 0.75)
    assert (faq["refusal_precision"], faq["refusal_recall"]) == (None, 0.0)
    for retriever in ("dense", "keyword", "rrf"):
        row = rows["all", retriever]
        assert (row["hit1"], row["mrr"]) == (fused["hit1"], fused["mrr"])
        assert (row["refusal_precision"], row["refusal_recall"]) == (None, None)


def test_distractors_are_searched_and_not_asked(tmp_path):
    data = write_rows(tmp_path / "contexts.jsonl", CONTEXTS)
    other = {"src": "other", "title": "Zebras", "qas": [qa("?", None)]}
    better = {**other, "context": "Parcel labels printed: drivers printed parcel labels."}
    rows = [better, *({**other, "context": f"A giraffe has number {number}."} for number in range(5)), CONTEXTS[0]]
    file = write_rows(tmp_path / "others.jsonl", rows)

    given = (tmp_path, data, ["left"])
    alone, among = result(*given, limit=3), result(*given, limit=3, distractors=[file])
    two = result(*given, limit=3, distractors=[file], num_distractors=2)
    assert [found["passages"] for found in (alone, two, among)] == [3, 5, 9]  # what is asked about is there once
    hits = [{row["retriever"]: row["hit1"] for row in found["rows"]} for found in (alone, among)]
    assert hits[0]["fused"] == 0.5
    assert [row["n"] for row in among["rows"]] == [row["n"] for row in alone["rows"]]
    ranks = [next(row["mrr"] for row in found["rows"] if row["retriever"] == "fused") for found in (alone, two, among)]
    assert ranks[0] > ranks[1] == ranks[2], "the better document comes before the one asked for"


def test_articles_are_counted_by_hand_and_vectors_kept(tmp_path):
    folder = tmp_path / "knowledge" / "money"
    folder.mkdir(parents=True)
    (folder / "returns.md").write_text("# Returns\n\nReturns take thirty days from delivery.\n")
    (folder.parent / "gifts.md").write_text("# Gift cards\n\nGift cards last five years.\n")
    (folder.parent / "picture.bin").write_bytes(b"\0\1")
    questions = [
        {"question": "How many days do returns take?", "article": "money/returns.md", "kind": "paraphrase"},
        {"question": "Gift cards?", "article": "money/returns.md", "kind": "paraphrase"},
        {
            "question": "And how long?",
            "article": "gifts.md",
            "kind": "follow-up",
            "history": [["user", "Do gift cards last?"], ["agent", "Yes."]],
        },
        {"question": "zebra giraffe", "article": None, "kind": "unanswerable"},
    ]
    file = write_rows(tmp_path / "questions.jsonl", questions)
    rows = measured(tmp_path, file)
    fused = rows["all", "fused"]
    assert (fused["n"], fused["answerable"], fused["hit1"], fused["mrr"]) == (
        4,
        3,
        pytest.approx(2 / 3, abs=1e-4),
        pytest.approx(2.5 / 3, abs=1e-4),
    )
    assert (fused["refusal_precision"], fused["refusal_recall"]) == (1.0, 1.0)
    assert rows["follow-up", "fused"]["hit1"] == 1.0
    assert measured(tmp_path, file, limit=1)["all", "fused"]["n"] == 1

    kept = next((tmp_path / "data" / "evals" / "vectors").glob("*.npy"))
    vectors = np.load(kept)
    assert len(vectors) == 2
    np.save(kept, vectors[::-1])
    assert measured(tmp_path, file)["all", "dense"]["mrr"] != rows["all", "dense"]["mrr"], "kept vectors are used"
    (folder / "returns.md").write_text("# Returns\n\nReturns take forty days from delivery.\n")
    assert measured(tmp_path, file)["all", "dense"]["mrr"] == rows["all", "dense"]["mrr"], "others are made anew"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there are no questions in"),
        (
            '{"question": "x"}\n',
            "line 1 is not a question .*question and article are needed, or title, context and qas",
        ),
        ("{", "line 1 is not a question"),
        ("[1]\n", "line 1 is not a question"),
    ],
)
def test_files_that_hold_no_questions_are_refused(tmp_path, text, message):
    file = tmp_path / "q.jsonl"
    file.write_text(text)
    with pytest.raises(DeskError, match=message):
        read_questions(file, frozenset())
    with pytest.raises(DeskError, match="none"):
        read_questions(tmp_path / "none", frozenset())


def test_a_folder_without_documents_is_refused(tmp_path):
    (tmp_path / "knowledge").mkdir()
    file = write_rows(tmp_path / "q.jsonl", [{"question": "?", "article": None}])
    with pytest.raises(DeskError, match="there are no documents in"):
        measured(tmp_path, file)
