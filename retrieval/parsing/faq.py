"""Tables of questions and answers: each pair becomes a section whose heading is the question.

Knows the usual names of such columns in several languages. Loaders find the rows; other tables are read by `rows`.
"""

import unicodedata
from collections.abc import Iterable, Sequence

from retrieval.documents.document import Block
from retrieval.parsing.rows import one_line, row_line
from retrieval.text.characters import readable

_QUESTION = frozenset(
    "question questions q query faq frage fragen pregunta domanda pergunta 问题 標準問 标准问 問題 质问 質問".split()  # noqa: SIM905
)
_ANSWER = frozenset(
    "answer answers a response reply antwort antworten respuesta réponse risposta resposta 答案 回答 答复 答え".split()  # noqa: SIM905
)
_CATEGORY = frozenset(("category", "topic", "section", "kategorie", "分类", "类别", "分類", "カテゴリ"))
_NAMED_ROWS = 10  # a remark gives the numbers of so many left-out rows


def faq_blocks(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, first: int = 2, level: int = 1, row_name: str = "row"
) -> tuple[list[Block], list[str]] | None:
    """(blocks, remarks), or None if the header names no question and answer.

    first: the number of the first of `rows`, for the remarks. level: of the headings. row_name: for the remarks.
    """
    names = [unicodedata.normalize("NFKC", name).strip(" \t\n:*").casefold() for name in header]
    question_at, answer_at, category_at = (
        next((place for place, name in enumerate(names) if name in known), None)
        for known in (_QUESTION, _ANSWER, _CATEGORY)
    )
    if question_at is None or answer_at is None:
        return None
    others = [place for place in range(len(header)) if place not in (question_at, answer_at, category_at)]
    blocks: list[Block] = []
    left_out: list[int] = []
    open_category = ""
    for number, row in enumerate(rows, first):
        cells = [*row, *[""] * (len(header) - len(row))]
        question, answer = one_line(cells[question_at]), readable(cells[answer_at]).strip()
        if not question or not answer:
            if any(cells):
                left_out.append(number)
            continue
        category = "" if category_at is None else one_line(cells[category_at])
        if category and category != open_category:
            blocks.append(Block(kind="heading", text=category, level=level))
        open_category = category
        details = [row_line([one_line(header[place])], [one_line(cells[place])]) for place in others]
        blocks.append(Block(kind="heading", text=question, level=level + 1 if category else level))
        blocks.append(Block(kind="text", text="\n".join([answer, *filter(None, details)])))
    return blocks, _remarks(left_out, row_name)


def _remarks(left_out: list[int], row_name: str) -> list[str]:
    if len(left_out) == 1:
        return [f"{row_name} {left_out[0]} left out: no question or no answer"]
    numbers = ", ".join(map(str, left_out[:_NAMED_ROWS])) + (", …" if len(left_out) > _NAMED_ROWS else "")
    return [f"{len(left_out)} {row_name}s left out, without question or answer: {numbers}"] if left_out else []
