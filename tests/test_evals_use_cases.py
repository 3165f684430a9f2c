"""Evidence by command: sections of a page, and the use cases on a tiny model."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from tiny import build

from app.domain.errors import DeskError
from cache.prompt.parts import Text
from cache.prompt.tokenizer import NAMED, ChatTemplate
from evals.report import read_section, write_section
from evals.speed.use_cases import markdown, measure_model

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
    rows = [*measure_model(model, SCHEMAS, threads=1, repeats=1)]
    assert [row["use_case"] for row in rows] == ["code generation", "personalisation", "parameters"]
    assert all(0 < row["computed_tokens"] < row["prompt_tokens"] / 2 for row in rows)
    result = {"machine": "m", "dtype": "float32", "repeats": 1, "rows": rows}
    page = markdown(result, "warmdesk bench prompt-cache")
    assert page.count("\n|") == 5
    assert "`warmdesk bench prompt-cache` on m" in page
