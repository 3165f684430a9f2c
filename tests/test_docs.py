"""Documents that cannot go stale: settings, commands and files that the pages name."""

import re
from pathlib import Path

import pytest
from typer.main import get_command

from app.cli.main import app
from app.domain.settings import GROUPS
from app.web.settings_routes import words_of
from cache.pml.binding import bind
from cache.pml.layout import Layout, lay_out
from cache.pml.parser import parse_prompt, parse_schema
from cache.prompt.tokenizer import NAMED, WordTokenizer

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "README.zh-CN.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "data" / "README.md",
]


def test_every_setting_is_documented_in_its_group_with_its_own_words_and_default():
    page = (ROOT / "docs" / "configuration.md").read_text()
    for group in GROUPS:
        table = page.partition(f"\n## {group.title}\n")[2].partition("\n## ")[0]
        rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*) \|$", table, re.MULTILINE)
        fields = group.model_fields
        meanings = [(key, " ".join((field.description or "").split())) for key, field in fields.items()]
        assert [(key, meaning) for key, _, meaning in rows] == meanings
        for key, default, _ in rows:
            if not fields[key].default_factory:
                words = words_of(key, fields[key].default).replace("\n", ", ")
                assert default == (words or ("unset" if fields[key].default is None else "none")), key


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_commands_a_page_names_exist(page):
    text = page.read_text()
    for path in re.findall(r"`((?:app|cache|retrieval|evals|tests|data|docs)/[\w./-]+)`", text):
        assert "NAME" in path or (ROOT / path).exists(), path
    for path in re.findall(r"\]\(((?!https?:)[\w./-]+)\)", text):
        assert (page.parent / path).exists(), path
    known = get_command(app).commands  # type: ignore[attr-defined]
    for name in re.findall(r"warmdesk ([a-z-]+)", text):
        assert name in known, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pml_on_a_page_is_accepted(page):
    """Schemas parse, and prompts too; a prompt for a schema that stands above it on the page can be bound."""
    layouts: dict[str, Layout] = {}
    for block in re.findall(r"^```xml\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        if block.startswith("<schema"):
            schema = parse_schema(block, folder=ROOT / "data" / "schemas")
            layouts[schema.name] = lay_out(schema, WordTokenizer(), roles=NAMED["chatml"])
        else:
            prompt = parse_prompt(block)
            if prompt.schema in layouts:
                bind(prompt, layouts[prompt.schema])


def test_the_chinese_readme_says_the_same_as_the_english_one():
    """Sections, commands, files, pictures and every number of a table; what stands between them cannot be compared."""
    english, chinese = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh-CN.md"))
    for pattern in (
        r"^## ",
        r"^    (warmdesk [a-z-]+)",
        r"^```\n(.*?)^```$",
        r"\]\(((?!README)[\w./-]+)\)",
        r"^    ([a-z]+/) ",
    ):
        flags = re.MULTILINE | re.DOTALL
        assert re.findall(pattern, chinese, flags) == re.findall(pattern, english, flags), pattern
    assert table_numbers(chinese) == table_numbers(english)


def table_numbers(page: str) -> list[list[str]]:
    return [re.findall(r"[\d.,]*\d", row) for row in re.findall(r"^\|.*\|$", page, re.MULTILINE)]
