"""Tables of questions and answers: each pair one section, whose heading is the question.

Knows the usual names of such columns in several languages. Where the rows come from, and all other tables, are
not its business.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from retrieval.documents.document import Block
from retrieval.parsing.rows import one_line, row_line
from retrieval.text.characters import readable

_QUESTION = frozenset(
    (
        *("question", "questions", "q", "query", "faq", "frage", "fragen", "pregunta", "domanda", "pergunta"),
        *("问题", "標準問", "标准问", "問題", "质问", "質問"),
    )
)
_ANSWER = frozenset(
    (
        *("answer", "answers", "a", "response", "reply", "antwort", "antworten", "respuesta", "réponse", "risposta"),
        *("resposta", "答案", "回答", "答复", "答え"),
    )
)
_CATEGORY = frozenset(("category", "topic", "section", "kategorie", "分类", "类别", "分類", "カテゴリ"))
_NAMED_ROWS = 10  # a remark names so many of the rows that were left out


@dataclass(frozen=True, slots=True)
class FaqColumns:
    """The places of the question, the answer and, if there is one, the category in each row."""

    question: int
    answer: int
    category: int | None


def faq_columns(header: Sequence[str]) -> FaqColumns | None:
    """The columns that a header names, or None if it is not that of a table of questions and answers."""
    names = [unicodedata.normalize("NFKC", name).strip(" \t\n:*").casefold() for name in header]

    def place(known: frozenset[str]) -> int | None:
        return next((number for number, name in enumerate(names) if name in known), None)

    question, answer = place(_QUESTION), place(_ANSWER)
    return None if question is None or answer is None else FaqColumns(question, answer, place(_CATEGORY))


def faq_blocks(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    columns: FaqColumns,
    *,
    first: int = 2,
    level: int = 1,
    row_name: str = "row",
) -> tuple[list[Block], list[str]]:
    """(blocks, remarks). first: the number of the first of `rows`, for the remarks; level: that of the headings."""
    blocks: list[Block] = []
    left_out: list[int] = []
    open_category = ""
    special = {columns.question, columns.answer, columns.category}
    names = ["" if place in special else one_line(name) for place, name in enumerate(header)]
    for number, row in enumerate(rows, first):
        cells = [*row, *[""] * (len(header) - len(row))]
        question, answer = one_line(cells[columns.question]), readable(cells[columns.answer]).strip()
        if not question or not answer:
            if any(cells):
                left_out.append(number)
            continue
        category = "" if columns.category is None else one_line(cells[columns.category])
        if category and category != open_category:
            blocks.append(Block(kind="heading", text=category, level=level))
        open_category = category
        others = ["" if place in special else one_line(cell) for place, cell in enumerate(cells)]
        details = [row_line([name], [value]) for name, value in zip(names, others, strict=False) if value]
        blocks.append(Block(kind="heading", text=question, level=level + 1 if category else level))
        blocks.append(Block(kind="text", text="\n".join([answer, *details])))
    return blocks, _remarks(left_out, row_name)


def _remarks(left_out: list[int], row_name: str) -> list[str]:
    if not left_out:
        return []
    if len(left_out) == 1:
        return [f"{row_name} {left_out[0]} left out: no question or no answer"]
    numbers = ", ".join(map(str, left_out[:_NAMED_ROWS])) + (", …" if len(left_out) > _NAMED_ROWS else "")
    return [f"{len(left_out)} {row_name}s left out, without question or answer: {numbers}"]
