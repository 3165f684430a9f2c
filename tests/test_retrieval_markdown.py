"""Markdown pages as site generators know them, also those that are nothing but front matter."""

from pathlib import Path

import pytest
from made_files import put, reason, shown

from retrieval.documents import Document
from retrieval.loaders.load import document_of


def read(text: str) -> Document:
    return document_of(text.encode(), Path("some-page.md"))


def blocks(text: str) -> list[tuple[str, str]]:
    return shown(read(text))


def test_structure_and_inline_markup():
    document = read(
        "# Refunds & *returns*\n\nWithin **30 days**, see [the `policy`](/policy) or <https://x.example/a>.\n"
        "Next line\\\nafter a break ~~old~~ ![an image](a.png).\n\n"
        "* one\n  more\n* two\n   1. inner\n   2. inner too\n\n3. three\n4. four\n\n> Quoted.\n\n"
        "```sh\nrun  <this>\n\n  now\n```\n\nHeading two\n---\n"
    )
    assert document.title == "Refunds & returns"
    assert [(block.kind, block.text, block.level) for block in document.blocks] == [
        ("heading", "Refunds & returns", 1),
        ("text", "Within 30 days, see the policy or https://x.example/a. Next line\nafter a break old .", 0),
        ("list", "- one more\n- two\n  1. inner\n  2. inner too", 0),
        ("list", "3. three\n4. four", 0),
        ("text", "Quoted.", 0),
        ("code", "run  <this>\n\n  now", 0),
        ("heading", "Heading two", 2),
    ]


def test_tables_are_rows_that_say_what_they_mean():
    assert blocks(
        "| Service | Price | |\n|---|---|---|\n| *Standard* | EUR 4.95 | free from 60 |\n| Pick up | | |\n"
    ) == [("table", "Service: Standard; Price: EUR 4.95; free from 60\nService: Pick up")]


def test_front_matter_gives_the_title_and_is_not_text():
    document = read("---\nlayout: help\ntitle: >-\n  Reset my\n  password\norder: 6\n---\nText.")
    assert (document.title, [block.text for block in document.blocks]) == ("Reset my password", ["Text."])
    assert read("---\ntitle: On\n---\nText.").title == "On"
    assert read("---\ntitle: Hours: when we open\n---\nText.").title == "Hours: when we open"
    assert read("---\nlayout: x\n...\n# Heading\nText.").title == "Heading"
    assert read("---\ntitle: [a, b]\n---\nText.").title == "- a - b"
    assert blocks("---\n---\nText.") == [("text", "Text.")]
    assert blocks("---\n# nothing set\n---\nText.") == [("text", "Text.")]


@pytest.mark.parametrize("text", ["---\nNot yaml, only a rule\n\n---\nText.", "---\ntitle: never closed\n\nText."])
def test_rules_at_the_top_are_not_front_matter(text):
    assert "Text." in blocks(text)[-1][1]
    assert len(blocks(text)) == 2


def test_hostile_front_matter_is_survived():
    assert blocks("---\na: " + "[" * 1200 + "\n---\nText.")
    assert blocks("---\na: !!python/object/apply:os.system ['false']\n---\nText.") == [("text", "Text.")]


def test_liquid_is_removed_only_where_a_site_generator_would_see_it():
    page = (
        "{% comment %}hidden{% endcomment %}See {{ site.name }}[us]({{ site.baseurl }}{% link a b.md %}).\n"
        "{%\n  include alert.html\n  text='x'\n%}\n{% raw %}Use {{ code }}.{% endraw %}\n"
        "{% capture note %}Kept.{% endcapture %}\n"
    )
    assert blocks("---\nlayout: x\n---\n" + page) == [("text", "See us.\n"[:-1]), ("text", "Use {{ code }}. Kept.")]
    assert blocks("Write `{{ name }}` or {{ name }}.") == [("text", "Write {{ name }} or {{ name }}.")]


def test_fields_of_the_page_stand_where_the_page_puts_them():
    page = (
        '---\nids:\n  - "**Passports**"\n  - Driver\'s licences\nn: 3\n---\n'
        "We take:\n{% include list.html items=page.ids %}\n{{ page.n }} days. {% if page.n %}x{% endif %}"
    )
    assert blocks(page) == [("text", "We take:"), ("list", "- Passports\n- Driver's licences"), ("text", "3 days. x")]


def test_attribute_lists_are_removed_but_not_from_code():
    page = '## Terms ## {#terms}\n\n{: .number-list}\n\n1. [Go](x){:class="external"} on `{:ok, x}`\n'
    assert blocks(page) == [("heading", "Terms"), ("list", "1. Go on {:ok, x}")]


def test_what_other_markdown_programs_accept():
    assert blocks("**警告：**我们不建议") == [("text", "警告：我们不建议")]
    assert blocks('![a shot](/a/at 7.09 pm.png "Shot")\n\nText.') == [("text", "Text.")]
    bare = "---\nlayout: x\n---\nCodes:\n\n| Code | Do |\n|5001 | Sign in|\n|6000 | Wait |\n"
    assert blocks(bare)[1:] == [("table", "Code: 5001; Do: Sign in\nCode: 6000; Do: Wait")]


@pytest.mark.parametrize(("page", "texts"), [
    ("::: tip\nHold it.\n:::\nWait.", ["Hold it.", "Wait."]),
    (":::note[Before you start]\nCharge it.\n:::", ["Before you start", "Charge it."]),
    ("import Tabs from '@theme/Tabs';\nexport const x = 3;\n\nHello.{/* no */}", ["Hello."]),
    ('<Tabs>\n<TabItem value="mac" label="macOS">\n\nPress *it*.\n\n</TabItem>\n</Tabs>', ["macOS:", "Press it."]),
    ('!!! note "Mind"\n    Save it.\n\n    - one\n\nAfter.', ["Mind", "Save it.", "- one", "After."]),
    ('??? question "How long?"\n    Five minutes.', ["How long?", "Five minutes."]),
    ('=== "macOS"\n\n    Press.\n\n=== "Windows"\n\n    Hold.', ["macOS:", "Press.", "Windows:", "Hold."]),
    ("> [!WARNING]\n> Do not unplug.", ["Do not unplug."]),
    ("{{< note >}}\nKeep it dry.\n{{< /note >}}", ["Keep it dry."]),
    ("```js\nimport a from 'b'\n:::tip\n```", ["import a from 'b'\n:::tip"]),
    ("import the list from your phone", ["import the list from your phone"]),
])  # fmt: skip
def test_boxes_tabs_and_components_become_text(page, texts):
    assert [text for _, text in blocks(page)] == texts


def test_html_inside_markdown_is_read_like_markdown():
    page = (
        '<div class="x">\n  <ol>\n    <li>\n      <p>Place your <b>ID</b>.</p>\n\n'
        "      <div><script>alert(1)</script></div>\n"
        "    </li>\n    <li>Hold\n\n     still.</li>\n  </ol>\n</div>\n"
        "\n<!-- note -->\n<h3><button>Why?</button></h3>\nBecause.\n"
    )
    assert blocks(page) == [("list", "1. Place your ID.\n2. Hold still."), ("heading", "Why?"), ("text", "Because.")]


def test_placeholders_are_not_tags():
    assert blocks("Text STOP <order number> to us<br>now, <b>please</b>.") == [
        ("text", "Text STOP <order number> to us\nnow, please.")
    ]


def test_indented_code_is_code_unless_the_page_is_html():
    assert blocks("Run:\n\n    a  b\n    c\n") == [("text", "Run:"), ("code", "a  b\nc")]


@pytest.mark.parametrize("piece", ["> ", "[", "*a ", "{% ", "{{ ", "<div>\n\n", "`", "![](", "- "])
def test_hostile_repetition_ends_soon(piece):
    read("---\na: b\n---\nStart.\n\n" + piece * 3000)


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


def test_sentences_with_the_headings_beside_them_if_the_page_has_no_text():
    document = read(FAQ.replace("## 何", '"## 何').replace("款?", '款?"'))
    assert document.title == "Questions"
    assert shown(document) == [
        ("heading", "Who are you?"),
        ("text", "We are a shop, see our story."),
        ("heading", "何时退款?"),
        ("text", "退款将在五个工作日内退回。"),
        ("text", "Written at the end. Twice."),
    ]
    (block,) = read(FAQ.replace("{% include accordion.html %}", "Text.")).blocks
    assert block.text == "Text."


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("---\ntitle: Contact us\nlayout: x\n---\n", "only front matter and template tags, no text"),
        ("---\ntitle: A\nsummary: too short.\n---\n![x](y.png)\n", "only front matter and template tags, no text"),
        ("![smile](smile.png) ![smile](smile.png)\n", "only pictures, no text in it"),
        ("\n\n", "no text in it"),
    ],
)
def test_what_is_said_of_pages_without_text(tmp_path, page, expected):
    assert reason(put(tmp_path / "a.md", page.encode())) == expected


def test_a_bomb_of_yaml_aliases_is_read_once():
    levels = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 12))
    (block,) = read(f"---\nl0: &l0 [This is one sentence.]\n{levels}---\n").blocks
    assert block.text == "This is one sentence."
