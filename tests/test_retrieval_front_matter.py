"""Pages that are nothing but front matter: their sentences are the page, or the reason says what is there."""

from pathlib import Path

import pytest
from made_files import put

from retrieval.documents import Document
from retrieval.errors import UnreadableDocument
from retrieval.loaders.load import load

FAQ = """---
layout: faq
permalink: /faq/
title: Questions
description: Not shown. It is about the page.
sections:
  - id: a-1
    title: Who are you?
    content: >-
      We are a shop, see [our story](/story/){:class="link"}.
  - title: Only a title
    image: /a/b.png
  - question: ## 何时退款?
    content: 退款将在五个工作日内退回。
body: Written at the end. Twice.
---
{% include accordion.html %}
"""


def read(tmp_path: Path, text: str) -> Document:
    return load(put(tmp_path / "a.md", text.encode()))


def test_sentences_with_the_headings_beside_them(tmp_path: Path) -> None:
    document = read(tmp_path, FAQ.replace("## 何", '"## 何').replace("款?", '款?"'))
    assert document.title == "Questions"
    assert [(block.kind, block.text) for block in document.blocks] == [
        ("heading", "Who are you?"),
        ("text", "We are a shop, see our story."),
        ("heading", "何时退款?"),
        ("text", "退款将在五个工作日内退回。"),
        ("text", "Written at the end. Twice."),
    ]


def test_they_are_not_added_to_a_page_with_text(tmp_path: Path) -> None:
    (block,) = read(tmp_path, FAQ.replace("{% include accordion.html %}", "Text.")).blocks
    assert block.text == "Text."


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        ("---\ntitle: Contact us\nlayout: x\n---\n", "only front matter and template tags, no text"),
        ("---\ntitle: A\nsummary: too short.\n---\n![x](y.png)\n", "only front matter and template tags, no text"),
        ("![smile](smile.png) ![smile](smile.png)\n", "only pictures, no text in it"),
        ("\n\n", "no text in it"),
    ],
)
def test_what_is_said_of_pages_without_text(tmp_path: Path, page: str, reason: str) -> None:
    with pytest.raises(UnreadableDocument) as caught:
        read(tmp_path, page)
    assert caught.value.reason == reason


def test_a_bomb_of_yaml_aliases_is_read_once(tmp_path: Path) -> None:
    levels = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 12))
    (block,) = read(tmp_path, f"---\nl0: &l0 [This is one sentence.]\n{levels}---\n").blocks
    assert block.text == "This is one sentence."
