"""HTML pages: the content and not what surrounds it."""

from pathlib import Path

import pytest

from retrieval.documents import Document
from retrieval.loaders.load import document_of


def read(page: str) -> Document:
    return document_of(page.encode(), Path("some-page.html"))


def shown(page: str) -> list[tuple[str, str]]:
    return [(block.kind, block.text) for block in read(page).blocks]


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
    assert shown(f"<body>{around}<div>Text<p>more</div>") == [("text", "Text"), ("text", "more")]
    assert shown(f"{around}<p>Teaser</p><article><p>Story</article>") == [("text", "Story")]
    assert shown(f"{around}<article>One</article><article>Two</article>") == [
        ("text", "One"),
        ("text", "Two"),
    ]
    assert shown("<main> </main><p>Text") == [("text", "Text")]
    assert shown("<form><h1>Whole page</h1><p>in a form</form><form>Search</form>")[-1] == (
        "text",
        "in a form",
    )
    assert shown("just text,\n no tags") == [("text", "just text, no tags")]


def test_titles():
    assert read("<title>Help</title><h1>Refunds</h1>").title == "Help"
    assert read("<title> Refunds |\n Shop</title><h1><b>Refunds</b></h1>").title == "Refunds"
    assert read("<h1>Refunds</h1>").title == "Refunds"
    assert read("<h3>Small</h3>").title == "Small"
    assert read("<p>x").title == "Some page"


def test_lists():
    assert shown(
        "<ol start=3><li><p>Three</p><p>more</p><li>Four<ul><li>a<br>b</li><li></li></ul>after</ol>"
        "<dl><dt>Term<dd>Meaning<dt>Other:<dd>1<dd>2</dl>"
    ) == [("list", "3. Three more\n4. Four\n  - a\nb\n  after"), ("list", "- Term: Meaning\n- Other: 1 2")]


def test_lists_around_sections_are_layout():
    page = "<ul><li><h3>Question</h3><div hidden>Answer<ul><li>x</ul></div><li><h3>Second</h3>Reply</ul>"
    assert shown(page) == [
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
    assert shown(page) == [
        (
            "table",
            "Refunds\nPaid with: Card; Takes: 2 days; Note: see E4\n"
            "Paid with: Card; Takes: at once; Note: at once\nOthers\n"
            "Paid with: PayPal; Takes: same day, ten days",
        )
    ]
    assert shown("<table><tr><td>Weight<td>4 kg<tr><td>Colour<td>red</table>") == [
        ("table", "Weight: 4 kg\nColour: red")
    ]
    assert shown("<table><tr><td>a<td>b<td>c</table>") == [("table", "a; b; c")]
    assert shown("<table><tr><th>Only</table>") == [("table", "Only")]
    assert shown("<table><tr><td><h2>Layout</h2><td>Text</table>") == [
        ("heading", "Layout"),
        ("text", "Text"),
    ]


def test_code_keeps_its_lines_and_buttons_are_not_text():
    page = "<pre>\n  a  b\n\n c&lt;\n</pre><button>Copy</button><p>A <a href=x>link</a><img alt=no> &amp;&nbsp;m&shy;"
    assert shown(page) == [("code", "  a  b\n\n c<"), ("text", "A link & m")]


@pytest.mark.parametrize("tag", ["div", "ul><li", "b", "table><tr><td", "blockquote"])
def test_deep_nesting_keeps_the_text(tag):
    page = f"<{tag}>" * 10_000 + "the text" + "<p>after"
    assert [text.removeprefix("- ").strip() for _, text in shown(page)] in (
        ["the text", "after"],
        ["- the text after"],
        ["the text, after"],
    )


def test_enormous_spans_are_bounded():
    page = "<table>" + "<tr><td rowspan=99999 colspan=99999>x<td>y" * 20 + "</table>"
    assert len(shown(page)[0][1]) < 100_000


def test_numbers_of_thousands_of_digits_are_ignored():
    endless = "9" * 5000
    assert shown(f"<table><tr><td colspan={endless}>x<td>y</table>") == [("table", "x: y")]
    assert shown(f"<ol start={endless}><li>x</ol>") == [("list", "1. x")]
