"""The files of `warmdesk batch`: the questions, and the answers that an earlier run wrote.

Not covered: answering (`batch`), the JSON of an answer (`json_output`).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from app.desk.text_file import read_text
from app.domain.errors import DeskError
from app.storage.history import PastMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchQuestion:
    """A line of the file. past: earlier questions and answers of its conversation."""

    id: str
    question: str
    past: tuple[PastMessage, ...]


def read_questions(file: Path) -> list[BatchQuestion]:
    """JSON lines with `question`, and optionally `id` and `history` ([[question, answer], ...]). Raises DeskError."""
    lines = read_text(file).split("\n")  # not splitlines: a JSON string may contain other line separators
    questions = [_read_question(line, number, file) for number, line in enumerate(lines, start=1) if line.strip()]
    if not questions:
        raise DeskError(f"{file} has no questions: write one JSON object a line", code="batch-empty")
    return questions


def _read_question(line: str, number: int, file: Path) -> BatchQuestion:
    try:
        row = json.loads(line)
        row = {"question": row} if isinstance(row, str) else row
        question, turns = row["question"], row.get("history") or []
        if not isinstance(question, str) or not isinstance(turns, list) or not all(map(_is_turn, turns)):
            raise TypeError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DeskError(
            f'{file}, line {number}: each line is {{"question": text}}, with "id" and "history" '
            "([[question, answer], ...]) if wanted",
            code="bad-question-line",
        ) from error
    roles = ("user", "assistant")
    past = (PastMessage(role=role, text=text) for turn in turns for role, text in zip(roles, turn, strict=True))
    return BatchQuestion(id=str(row.get("id", number)), question=question, past=tuple(past))


def _is_turn(entry: object) -> bool:
    return isinstance(entry, list) and len(entry) == 2 and all(isinstance(text, str) for text in entry)


def still_to_answer(questions: Sequence[BatchQuestion], output: Path) -> list[BatchQuestion]:
    """The questions that have no answer in the file of an earlier run. If that run was killed while it wrote the last
    line, the line is removed from the file. Raises DeskError if two questions have the same id, or the file contains
    something else than answers to these questions.
    """
    asked = {question.id: question.question for question in questions}
    if len(asked) < len(questions):
        raise DeskError("two questions have the same id: with --output every id must be another", code="same-id")
    if not output.exists():
        return list(questions)
    *lines, rest = read_text(output).split("\n")
    done = set()
    for number, line in enumerate(lines, start=1):
        where = f"{output}, line {number}"
        try:
            row = json.loads(line)
            id_, question, _ = row["id"], row["question"], row["answer"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DeskError(f"{where} is no answer of a batch: name another file", code="output") from error
        if asked.get(id_, question) != question:
            raise DeskError(f"{where} answers another question {id_!r}: name another file", code="output")
        done.add(id_)
    if rest:
        if not rest.startswith('{"id": '):
            raise DeskError(f"{output} holds something else than answers: name another file", code="output")
        output.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return [question for question in questions if question.id not in done]
