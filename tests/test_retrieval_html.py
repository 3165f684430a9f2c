"""HTML pages: the content and not what surrounds it. reStructuredText: nothing is inserted from elsewhere."""

from pathlib import Path

import pytest
from made_files import put, shown

from retrieval.documents import Document
from retrieval.loaders.load import document_of, load


def read(page: str) -> Document:
    return document_of(page.encode(), Path("some-page.html"))


def blocks(page: str) -> list[tuple[str, str]]:
    return shown(read(page))


def test_the_main_content_without_the_menus():
    document = read(
        "<html><head><title>Refunds - Larkmoor help</title><style>p{}</style></head><body>"
        "<header>Logo</header><nav><ul><li>Home</li></ul></nav><main><header><h1>Refunds</h1></header>"
        "<p>Within <b>5</b> days.</p><aside>Never cash.</aside><nav>Next page</nav><form>Search</form>"
        "<script>document.write('x')</script><noscript>Enable it</noscript><footer>Updated</footer></main>"
        "<aside>Also read</aside><footer>Terms</footer></body></html>"
    )
    assert document.title == "Refunds"
    assert [block.text for block in document.blocks] == ["Refunds", "Within 5 days.", "Never cash."]


def test_pages_without_a_main_element():
    around = "<nav>Menu</nav><aside>More</aside><div role=navigation>Crumbs</div>"
    assert blocks(f"<body>{around}<div>Text<p>more</div>") == [("text", "Text"), ("text", "more")]
    assert blocks(f"{around}<p>Teaser</p><article><p>Story</article>") == [("text", "Story")]
    assert blocks(f"{around}<article>One</article><article>Two</article>") == [("text", "One"), ("text", "Two")]
    assert blocks("<main> </main><p>Text") == [("text", "Text")]
    assert blocks("<form><h1>Whole page</h1><p>in a form</form><form>Search</form>")[-1] == ("text", "in a form")
    assert blocks("just text,\n no tags") == [("text", "just text, no tags")]


def test_titles():
    assert read("<title>Help</title><h1>Refunds</h1>").title == "Help"
    assert read("<title> Refunds |\n Shop</title><h1><b>Refunds</b></h1>").title == "Refunds"
    assert read("<h1>Refunds</h1>").title == "Refunds"
    assert read("<h3>Small</h3>").title == "Small"
    assert read("<p>x").title == "Some page"


def test_lists():
    assert blocks(
        "<ol start=3><li><p>Three</p><p>more</p><li>Four<ul><li>a<br>b</li><li></li></ul>after</ol>"
        "<dl><dt>Term<dd>Meaning<dt>Other:<dd>1<dd>2</dl>"
    ) == [("list", "3. Three more\n4. Four\n  - a\nb\n  after"), ("list", "- Term: Meaning\n- Other: 1 2")]


def test_lists_around_sections_are_layout():
    page = "<ul><li><h3>Question</h3><div hidden>Answer<ul><li>x</ul></div><li><h3>Second</h3>Reply</ul>"
    assert blocks(page) == [
        ("heading", "Question"),
        ("text", "Answer"),
        ("list", "- x"),
        ("heading", "Second"),
        ("text", "Reply"),
    ]


def test_tables():
    page = (
        "<table><caption>Refunds</caption><thead><tr><th>Paid with<th>Takes<th>Note</thead>"
        "<tr><td rowspan=2>Card<td>2 days<td>see <b>E</b>4<tr><td colspan=2>at once"
        "<tr><td colspan=3>Others<tr><td>PayPal<td><ul><li>same day<li>ten days</ul><td></table>"
    )
    assert blocks(page) == [
        (
            "table",
            "Refunds\nPaid with: Card; Takes: 2 days; Note: see E4\n"
            "Paid with: Card; Takes: at once; Note: at once\n"
            "Others; Paid with: PayPal; Takes: same day, ten days",
        )
    ]
    assert blocks("<table><tr><td>Weight<td>4 kg<tr><td>Colour<td>red</table>") == [
        ("table", "Weight: 4 kg\nColour: red")
    ]
    assert blocks(
        "<table><tr><td colspan=2>Pump<tr><td>Weight<td>4 kg<tr><td colspan=2>Hose<tr><td>Weight<td>1 kg</table>"
    ) == [("table", "Pump; Weight: 4 kg\nHose; Weight: 1 kg")]
    two = "<tr><th rowspan=2>Shop<th colspan=2>Hours<tr><th>Weekdays<th>Saturday<tr><td>Sligo<td>9-17<td>closed"
    assert blocks(f"<table>{two}</table>") == [("table", "Shop: Sligo; Hours, Weekdays: 9-17; Hours, Saturday: closed")]
    assert blocks("<table><tr><td>a<td>b<td>c</table>") == [("table", "a; b; c")]
    assert blocks("<table><tr><th>Only</table>") == [("table", "Only")]
    assert blocks("<table><tr><td><h2>Layout</h2><td>Text</table>") == [("heading", "Layout"), ("text", "Text")]


def test_code_keeps_its_lines_and_buttons_are_not_text():
    page = "<pre>\n  a  b\n\n c&lt;\n</pre><button>Copy</button><button aria-expanded=true>Menu</button>"
    page += "<p>A <a href=x>link</a><img alt=no> &amp;&nbsp;m&shy;"
    assert blocks(page) == [("code", "  a  b\n\n c<"), ("text", "A link & m")]


def test_a_button_that_opens_an_answer_is_its_question():
    page = "<div><button>Is it free?</button><p>Yes.</div><button aria-controls=a>Returning a parcel</button><p>Free."
    assert [text for _, text in blocks(page)] == ["Is it free?", "Yes.", "Returning a parcel", "Free."]


@pytest.mark.parametrize("tag", ["div", "ul><li", "b", "table><tr><td", "blockquote"])
def test_deep_nesting_keeps_the_text(tag):
    page = f"<{tag}>" * 10_000 + "the text" + "<p>after"
    assert [text.removeprefix("- ").strip() for _, text in blocks(page)] in (
        ["the text", "after"],
        ["- the text after"],
        ["the text, after"],
    )


def test_enormous_spans_are_bounded():
    page = "<table>" + "<tr><td rowspan=99999 colspan=99999>x<td>y" * 20 + "</table>"
    assert len(blocks(page)[0][1]) < 100_000


def test_numbers_of_thousands_of_digits_are_ignored():
    endless = "9" * 5000
    assert blocks(f"<table><tr><td colspan={endless}>x<td>y</table>") == [("table", "x: y")]
    assert blocks(f"<ol start={endless}><li>x</ol>") == [("list", "1. x")]


RST = """
Returns
=======

You have **30 days**, see :doc:`the rules </rules>` and :ref:`refunds`.

- Keep the box
- Keep the bill

Prices
------

======= =====
Country Price
======= =====
Norway  9.50
======= =====

.. note:: Only with a bill.

.. code-block:: python

   x = 1
"""


def read_rst(tmp_path: Path, text: str) -> Document:
    return load(put(tmp_path / "a.rst", text.encode()))


def test_the_structure_of_restructured_text(tmp_path):
    document = read_rst(tmp_path, RST)
    assert document.title == "Returns"
    assert shown(document) == [
        ("heading", "Returns"),
        ("text", "You have 30 days, see the rules and refunds."),
        ("list", "- Keep the box\n- Keep the bill"),
        ("heading", "Prices"),
        ("table", "Country: Norway; Price: 9.50"),
        ("text", "Note"),
        ("text", "Only with a bill."),
        ("code", "x = 1"),
    ]


def test_nothing_is_inserted_and_no_messages_are_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)  # where docutils looks for its settings
    secret = put(tmp_path / "secret.txt", b"secret words")
    put(tmp_path / "docutils.conf", b"[general]\nfile_insertion_enabled: yes\nraw_enabled: yes\n")
    for directive in ("include", "literalinclude", "raw:: html\n   :file", "csv-table:: x\n   :file"):
        text = f"Text.\n\n.. {directive}:: {secret}\n\n.. unknown::\n\n   x\n\nHeading\n=\n\n*open |never| `x`_\n"
        text_shown = "\n".join(block.text for block in read_rst(tmp_path, text).blocks)
        assert text_shown.startswith("Text.")
        assert "secret words" not in text_shown
        assert "WARNING" not in text_shown
        assert "ERROR" not in text_shown
    (block,) = read_rst(tmp_path, "Text.\n\n.. raw:: html\n\n   <b>raw</b>\n").blocks
    assert block.text == "Text."
    assert capsys.readouterr() == ("", "")


def test_a_megabyte_on_one_line(tmp_path):
    (block,) = read_rst(tmp_path, "word " * 2**18).blocks
    assert block.text.count("word") == 2**18
