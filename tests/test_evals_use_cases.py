"""Evidence by command: sections of a page, and the use cases on a tiny model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
from tiny import build

from app.domain.errors import DeskError
from cache.engine.engine import Engine
from cache.prompt.parts import Text
from cache.prompt.tokenizer import NAMED, ChatTemplate
from evals.report import cell, read_section, table, write_section
from evals.speed.use_cases import UseCaseRow, markdown, measure_case, measure_model

PAGE = "# Evidence\n\n<!-- begin: speed -->\nold\n<!-- end: speed -->\n\nbehind\n"
SCHEMAS = Path(__file__).parent.parent / "data" / "schemas"


def test_a_section_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "evidence.md"
    page.write_text(PAGE)
    write_section(page, "speed", "new\n")
    write_section(page, "speed", "newer")
    assert page.read_text() == PAGE.replace("old", "newer")
    assert [path.name for path in tmp_path.iterdir()] == ["evidence.md"]


@pytest.mark.parametrize(
    "content", ["", "<!-- begin: speed -->", "<!-- end: speed --><!-- begin: speed -->", PAGE + PAGE]
)
def test_a_page_without_the_section_is_left_alone(content: str, tmp_path: Path) -> None:
    page = tmp_path / "evidence.md"
    page.write_text(content)
    with pytest.raises(DeskError, match="no section between"):
        write_section(page, "speed", "new")
    assert page.read_text() == content
    with pytest.raises(DeskError, match=r"nowhere\.md"):
        read_section(tmp_path / "nowhere.md", "speed")


def test_tables_are_readable() -> None:
    rows = [{"a": 12345, "b": 1.25}, {"a": "x", "b": None}]
    assert table(rows, {"a": "A", "b": "B"}) == "| A | B |\n|---|---|\n| 12,345 | 1.2 |\n| x |  |"
    assert cell(0) == "0"


def test_a_use_case_counts_what_it_computes(tmp_path: Path) -> None:
    (tmp_path / "s.pml").write_text('<schema name="s">Root.<module name="a">Some words.</module></schema>')
    (tmp_path / "p.pml").write_text('<prompt schema="s"><a/>Why?</prompt>')
    engine = Engine(build(), memory=4 << 20).start()
    try:
        row = measure_case(engine, "words", tmp_path / "s.pml", tmp_path / "p.pml", 1, 2)
    finally:
        engine.close()
    assert (row.prompt_tokens, row.computed_tokens) == (len("Root.Some words.Why?"), len("Why?"))
    assert row.ratio == pytest.approx(row.computed_ms_min / row.reused_ms_min, rel=0.2)


class Words:
    """One token for a word: its length."""

    template = ChatTemplate(open="", to_user="", to_answer="", to_next="", roles=NAMED["chatml"])
    filler = 0
    sink_prefix: tuple[int, ...] = ()

    def encode(self, run: Sequence[Text]) -> list[int]:
        return [min(len(word), 255) for word in "".join(piece.text for piece in run).split()]

    def decode(self, tokens: Sequence[int]) -> str:
        return "x" * len(tokens)


def test_the_three_use_cases_of_the_paper_are_measured() -> None:
    model = build()
    model.tokenizer = Words()
    rows: list[UseCaseRow] = list(measure_model(model, SCHEMAS, threads=1, repeats=1))
    assert [row.use_case for row in rows] == ["code generation", "personalisation", "parameters"]
    assert all(0 < row.computed_tokens < row.prompt_tokens / 2 for row in rows)
    result = {"machine": "m", "dtype": "float32", "repeats": 1, "rows": [asdict(row) for row in rows]}
    page = markdown(result, "warmdesk bench prompt-cache")
    assert page.count("\n|") == 5
    assert "`warmdesk bench prompt-cache` on m" in page
