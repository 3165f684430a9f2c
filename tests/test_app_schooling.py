"""What adapters are taught: answers out of documents, refusals, and which lessons are made of them."""

from __future__ import annotations

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
    Material,
    School,
    key_words,
    part,
    rank,
    read_rows,
    taught_answer,
    weights,
)
from cache.training.examples import Lesson

REFUSAL = "I do not know."
TEXT = "Labels are free. They last 30 days, in stores 9 days. Ask in a store."


@pytest.fixture(scope="module")
def school() -> School:
    tokenizer = build().tokenizer
    return School(PromptBuilder(tokenizer.template, "Answer."), tokenizer, REFUSAL, neighbours=1, seed=0)


def row(number: int, **more: Any) -> dict[str, Any]:
    qas = [{"question": f"What costs {number}?", "answers": [f"Shelf {number}"]}, {"question": "Why?", "answers": []}]
    return {"src": "shop", "title": f"T{number % 3}", "context": f"Shelf {number} is it.", "qas": qas, **more}


# --- answers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "answer", "taught"),
    [
        ("How long do they last?", "30 days", "They last 30 days, in stores 9 days."),
        ("How long in a store?", "a store", "Ask in a store."),
        ("What about labels?", "labels are FREE", "Labels are free."),
        ("And labels?", "They are free and last 30 days", "They are free and last 30 days"),
        ("Who?", "Nobody said anything of the kind", None),
        ("Who?", "the king", None),
    ],
)
def test_the_sentence_that_holds_the_answer_is_taught(question: str, answer: str, taught: str | None) -> None:
    assert taught_answer(TEXT, question, answer) == taught


def test_of_several_the_one_with_most_words_of_the_question_is_taught() -> None:
    text = "It takes 9 days. Returns by post take 9 days. Stores need 9 days."
    assert taught_answer(text, "How long do returns by post take?", "9 days") == "Returns by post take 9 days."


# --- documents ------------------------------------------------------------------------------------------


def test_a_document_with_what_it_answers_and_what_not(school: School) -> None:
    made = school.material(row(4))
    assert made is not None
    assert (made.source, made.topic) == ("shop", "shop/T1")
    assert "Shelf 4 is it." in bytes(made.module).decode()
    (question, answer), (_, none) = made.pairs
    assert b"What costs 4?" in bytes(question)
    assert bytes(answer or ()) == b"Shelf 4 is it."
    assert none is None


def test_what_is_too_long_or_teaches_nothing_is_left_out(school: School) -> None:
    assert school.material(row(1, context="word " * LONGEST_PASSAGE)) is None
    assert school.material(row(1, qas=[])) is None
    long = "Shelf 1 is " + "very " * LONGEST_ANSWER + "full."
    assert school.material(row(1, context=long, qas=[{"question": "What?", "answers": ["Shelf 1"]}])) is None


# --- lessons --------------------------------------------------------------------------------------------


def lessons_of(school: School) -> list[Lesson]:
    material = [made for number in range(12) if (made := school.material(row(number))) is not None]
    lessons = school.lessons(material)
    assert [lessons.lesson_at(step) for step in range(30)] == [lessons.lesson_at(step) for step in range(30)]
    return [lessons.lesson_at(step) for step in range(30)]


def test_lessons_are_made_of_passages_questions_and_refusals(school: School) -> None:
    found = lessons_of(school)
    assert {len(lesson.modules) for lesson in found} == set(LABELLED.passages)
    refusal = tuple(REFUSAL.encode())
    for lesson in found:
        wholly, *more = refused = [branch for branch in lesson.branches if branch.refused]
        assert wholly.answer[:-1] == refusal
        assert all(branch.answer == refusal[:1] for branch in more), "only that they are refused, not again how"
        assert 1 < len(refused) <= LABELLED.misleading + LABELLED.absent
        answered = [branch for branch in lesson.branches if not branch.refused]
        assert len(answered) <= LABELLED.answered
        assert {len(branch.answer) for branch in answered[LABELLED.spoken :]} <= {1}
        texts = b"".join(map(bytes, lesson.modules)).decode()
        for branch in answered:
            assert bytes(branch.answer).decode().split(" is it.")[0] in texts
        for branch in answered[: LABELLED.spoken]:
            assert bytes(branch.answer[:-1]).decode().endswith("is it.")
    assert any(any(lesson.gaps) for lesson in found)
    assert not all(any(lesson.gaps) for lesson in found)


def test_own_passages_have_no_refusals_and_whole_answers(school: School) -> None:
    material = [made for number in range(12) if (made := school.material(row(number))) is not None]
    lessons = school.lessons(material, OWN)
    for step in range(9):
        lesson = lessons.lesson_at(step)
        assert len(lesson.modules) > 1, "one alone is read as with full attention"
        assert not any(branch.refused for branch in lesson.branches)
        assert all(bytes(branch.answer[:-1]).decode().endswith("is it.") for branch in lesson.branches)


def test_questions_about_documents_that_are_not_there_are_refused(school: School) -> None:
    answered = [{"question": "What?", "answers": ["Shelf"]}]
    material = [made for n in range(12) if (made := school.material(row(n, title="T", qas=answered))) is not None]
    lessons = school.lessons(material)
    for step in range(9):
        assert sum(branch.refused for branch in lessons.lesson_at(step).branches) == LABELLED.absent


def test_most_questions_are_about_the_last_passage(school: School) -> None:
    qas = [{"question": f"What is {q}?", "answers": ["Shelf"]} for q in range(8)]
    material = [made for n in range(12) if (made := school.material(row(n, title="T", qas=qas))) is not None]
    of_last, of_all = 0, 0
    lessons = school.lessons(material, replace(LABELLED, passages=(2, 5)))
    for step in range(60):
        lesson = lessons.lesson_at(step)
        taught = [bytes(b.answer[:-1]) for b in lesson.branches if len(b.answer) > 1 and not b.refused]
        of_last += sum(answer in bytes(lesson.modules[-1]) for answer in taught)
        of_all += len(taught)
    assert 0.7 < of_last / of_all < 0.9


@pytest.mark.parametrize("count", [0, 1, 2])
def test_passages_are_read_behind_others_of_the_lesson_or_its_topic(school: School, count: int) -> None:
    school = School(school._prompts, school._tokenizer, REFUSAL, neighbours=count, seed=0)
    material = [made for number in range(12) if (made := school.material(row(number))) is not None]
    topics = {one.module: one.topic for one in material}
    left_contexts = set()
    for step in range(20):
        lesson = school.lessons(material).lesson_at(step)
        topic = [one.module for one in material if one.topic == topics[lesson.modules[-1]]]
        for module, left_context in zip(lesson.modules, lesson.left_contexts, strict=True):
            beside = [one.module for one in material if bytes(one.module) in bytes(left_context)]
            assert len(beside) == count == bytes(left_context).count(b"Help page")
            assert set(beside) <= {*topic, *lesson.modules} - {module}
            left_contexts.add(left_context)
        assert len(set(lesson.left_contexts)) <= count + 1, "those that are shared are read once"
    assert len(left_contexts) > count * 6, "not the same ones every time"


def test_the_longest_words_of_a_sentence_ask_for_it() -> None:
    assert key_words("Download and install an authentication app to your device.") == "Download install authentication"
    assert key_words("So is it.") == "So is it"


def test_small_sources_are_heard(school: School) -> None:
    big = [made for n in range(0, 300, 3) if (made := school.material(row(n))) is not None]
    small = [made for n in (1,) if (made := school.material(row(n, src="other"))) is not None]
    of_big, of_small = weights([big, small])
    assert of_big / of_small == pytest.approx((200**0.5) / (2**0.5))


def test_the_same_topics_are_held_out_every_time() -> None:
    def topics(first: int, last: int) -> dict[str, list[Material]]:
        return {f"shop/{n}": [Material(source="", topic=str(n), module=(n,), pairs=())] for n in range(first, last)}

    train, test = part(topics(0, 3000))
    assert 50 < len(test) < 130
    assert len(train) + len(test) == 3000
    _, fewer = part(topics(1000, 3000))
    assert fewer == [ones for ones in test if ones[0].module[0] >= 1000], "whatever else there is"
    assert max(rank(f"shop/{ones[0].topic}") for ones in test) < min(rank(f"shop/{ones[0].topic}") for ones in train)


@pytest.mark.parametrize(
    ("documents", "held"), [([1], 0), ([1] * 5, 0), ([1] * 6, 2), ([1] * 12, 4), ([1] * 60, 8), ([40], 0), ([9, 1], 0)]
)
def test_of_few_documents_some_are_held_out(documents: list[int], held: int) -> None:
    topics = {
        str(topic): [Material(source="", topic=str(topic), module=(topic, n), pairs=()) for n in range(count)]
        for topic, count in enumerate(documents)
    }
    train, test = part(topics)
    assert sum(map(len, test)) == held
    assert not {ones[0].topic for ones in train} & {ones[0].topic for ones in test}
    assert len(train) + len(test) == len(documents)


def test_a_lesson_has_no_passage_twice_and_refuses_nothing_it_answers(school: School) -> None:
    for count in (1, 2, 4):
        material = [made for n in range(count) if (made := school.material(row(n, title=f"Only {n}"))) is not None]
        lessons = school.lessons(material)
        assert lessons.held_out_documents == 0
        for lesson in (*(lessons.lesson_at(step) for step in range(20)), *lessons.held_out(3)):
            assert len(set(lesson.modules)) == len(lesson.modules) <= count
            texts = b"".join(map(bytes, lesson.modules)).decode()
            refused = [bytes(branch.question).decode() for branch in lesson.branches if branch.refused]
            asked = [question.split("costs ")[1][0] for question in refused if "costs" in question]
            assert all(f"Shelf {number} is it." not in texts for number in asked)


def test_what_is_taught_has_an_identity(school: School) -> None:
    material = [made for number in range(6) if (made := school.material(row(number))) is not None]
    same = school.lessons(material).identity
    assert same == school.lessons(list(material)).identity
    assert same != school.lessons(material[1:]).identity != school.lessons(material, OWN).identity != same


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
def test_rows_that_cannot_be_taught_are_named(tmp_path: Path, text: str, says: str) -> None:
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
