"""Answers for lessons that have none, and the next lesson answered ahead."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tiny import build, stock

from cache.engine import Engine
from cache.errors import PromptError
from cache.lesson_answers import ANSWER_TOKENS, AnsweredLessons, with_answers
from cache.lesson_model import LessonModel
from cache.lessons import Branch, Lesson

LESSON = Lesson(
    prefix=tuple(b"You answer. "),
    modules=(tuple(b"Returns take 30 days."), tuple(b"Gift cards stay."), tuple(b"Shipping is free.")),
    leads=(tuple(b"Cards stay."), (), ()),
    gaps=(0, 7, 0),
    branches=tuple(Branch(question=tuple(q), answer=(1, 2)) for q in (b"How long?", b"And cards?", b"What is free?")),
)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    started = Engine(build(), memory=4 << 20).start()
    yield started
    started.close()


def test_answers_are_what_full_attention_says(engine: Engine) -> None:
    """Read again in one pass, every token of an answer is the likeliest one."""
    answered = with_answers(LESSON, engine)
    assert replace(answered, branches=LESSON.branches) == LESSON
    assert [branch.question for branch in answered.branches] == [branch.question for branch in LESSON.branches]
    tokens = [token for branch in answered.branches for token in branch.answer]
    assert len(tokens) == 3 * ANSWER_TOKENS
    reader = LessonModel(stock())
    assert reader.logits(answered, modular=False).argmax(-1).tolist() == tokens
    assert reader.logits(answered, modular=True).argmax(-1).tolist() != tokens, "passages read one by one say another"


def test_an_answer_that_ends_has_the_token_that_ends_it(engine: Engine) -> None:
    first = with_answers(LESSON, engine).branches[0].answer[0]
    model = build()
    model.info = replace(model.info, stop_tokens=frozenset({first}))
    ending = Engine(model, memory=4 << 20).start()
    try:
        ended = with_answers(LESSON, ending).branches[0]
    finally:
        ending.close()
    assert ended.answer == (2,)


def test_the_next_lessons_are_answered_while_one_is_taught(engine: Engine) -> None:
    made = threading.Event()
    asked: list[int] = []

    def lesson_at(step: int) -> Lesson:
        asked.append(step)
        if step == 5:
            made.set()
        return replace(LESSON, branches=LESSON.branches[step % 3 :])

    lessons = AnsweredLessons(lesson_at, engine)
    try:
        third = lessons.lesson_at(3)
        assert made.wait(timeout=60)
        fourth, seventh = lessons.lesson_at(4), lessons.lesson_at(7)
    finally:
        lessons.close()
    whole = with_answers(LESSON, engine)
    assert third == whole
    assert fourth.branches == seventh.branches == whole.branches[1:]
    assert [asked.count(step) for step in (3, 4, 7)] == [1, 1, 1]


def test_what_goes_wrong_ahead_is_raised_at_its_step(engine: Engine) -> None:
    def lesson_at(step: int) -> Lesson:
        if step == 1:
            raise PromptError("no lesson")
        return LESSON

    lessons = AnsweredLessons(lesson_at, engine)
    try:
        assert lessons.lesson_at(0) == with_answers(LESSON, engine)
        with pytest.raises(PromptError, match="no lesson"):
            lessons.lesson_at(1)
    finally:
        lessons.close()
