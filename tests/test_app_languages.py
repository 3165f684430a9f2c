"""The languages of the pages: who gets which, that every text of the pages has its translation, and that none stands
untranslated in a template or a script.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest
from babel.messages.catalog import Catalog
from babel.messages.extract import extract_from_dir
from babel.messages.pofile import read_po
from bs4 import BeautifulSoup
from bs4.element import Doctype
from fake_answers import make_answer
from fake_desk import NOW, FakeDesk
from fake_overview import make_overview, make_savings, make_usage
from jinja2 import nodes
from page_check import check

from app.domain.callers import QUOTED, Caller
from app.domain.quality import ENDED_WORDS
from app.domain.statistics import UsageSpan
from app.domain.words import ago, counted, gettext, speaking
from app.web import rendering
from app.web.admin_pages import links_for
from app.web.chat_page import FRAME
from app.web.dashboard import RANGES, Axis, charts, outcomes
from app.web.rendering import CATALOGUES, ENGLISH, LANGUAGES, page_language, render, translations

APP = CATALOGUES.parent.parent
TEMPLATES, SCRIPTS = sorted((APP / "web" / "templates").rglob("*.html")), sorted((APP / "web" / "static").glob("*.js"))
OTHERS = sorted(set(LANGUAGES) - {ENGLISH})
METHODS = [("**.py", "python"), ("**/templates/**.html", "jinja2")]
KEYWORDS = {"gettext": None, "_": None, "translatable": None, "ngettext": (1, 2), "counted": (2, 3)}
FIELDS = re.compile(r"%\(\w+\)s|\{\w+\}|%%")
SHOWN_ATTRIBUTES = ("alt", "title", "placeholder", "aria-label", "aria-description")
KEYS = ("Enter", "Escape")  # of a keyboard, as browsers call them
NAMES = {"Warmdesk"}  # visible words that are the same in every language
ENGLISH_TEXT = re.compile(r"[A-Z][a-z]+(?: |$)|[a-z]+ [a-z]+ [a-z]+")
"""What a string of a program looks like if it is meant for people: a capitalised word, or three words."""


def texts() -> dict[str, str]:
    """Every text that the pages may show, by its English; with its plural form where it has one, else ""."""
    found = extract_from_dir(APP, method_map=METHODS, keywords=KEYWORDS)
    pairs = (message if isinstance(message, tuple) else (message, "") for _, _, message, _, _ in found)
    return dict(pairs)


def catalogue(language: str) -> Catalog:
    with (CATALOGUES / language / "LC_MESSAGES" / "warmdesk.po").open("rb") as file:
        return read_po(file, locale=language)


@pytest.mark.parametrize("language", OTHERS)
def test_every_text_is_translated_and_nothing_else_is(language):
    used = texts()
    translated = {}
    for message in catalogue(language):
        if message.id:
            one, several = message.id if isinstance(message.id, tuple) else (message.id, "")
            translated[one] = several
            forms = message.string if isinstance(message.string, tuple) else (message.string,)
            assert all(forms), f"no translation of {one!r}"
            assert not message.fuzzy, one
            for form in forms:
                assert sorted(FIELDS.findall(form)) == sorted(FIELDS.findall(several or one)), one
    missing = "\n\n".join(f'msgid "{text}"\nmsgstr ""' for text in used if text not in translated)
    assert not missing, f"without an entry in warmdesk.po of {language}:\n\n{missing}"
    assert set(translated) - set(used) == set(), "entries that no page uses any more"
    assert translated == used


def test_templates_hold_no_untranslated_text():
    found = {path.name: list(untranslated(path.read_text(encoding="utf-8"))) for path in TEMPLATES}
    assert not any(found.values()), found
    assert list(untranslated('<p>Good</p><input placeholder="Name">{{ tile("Good answers", 3) }}')) != []


def untranslated(source: str) -> Iterator[str]:
    """Visible text of a template that is not given to a function of translation."""
    environment = rendering._environment()
    written = "".join(value if kind == "data" else "\x00" for _, kind, value in environment.lex(source))
    page = BeautifulSoup(written, "html.parser")
    for text in page.find_all(string=True):
        if not isinstance(text, Doctype) and text.parent is not None and text.parent.name not in ("script", "code"):
            yield from words_of(str(text))
    for tag in page.find_all(True):
        for name in SHOWN_ATTRIBUTES:
            yield from words_of(str(tag.get(name, "")))
    tree = environment.parse(source)
    translated = {
        id(argument)
        for call in tree.find_all(nodes.Call)
        if isinstance(call.node, nodes.Name) and call.node.name in KEYWORDS
        for argument in call.args
    }
    for constant in tree.find_all(nodes.Const):
        if isinstance(constant.value, str) and id(constant) not in translated and ENGLISH_TEXT.match(constant.value):
            yield constant.value


def words_of(text: str) -> list[str]:
    return [word for word in re.findall(r"[^\W\d_]{2,}", text) if word not in NAMES]


def test_scripts_hold_no_text():
    for script in SCRIPTS:
        code = re.sub(r"^\s*//.*$|(?<=[;{}]) //.*$", "", script.read_text(encoding="utf-8"), flags=re.MULTILINE)
        strings = re.findall(r'"([^"\n]*)"|`([^`]*)`', code)
        shown = [text for pair in strings for text in pair if ENGLISH_TEXT.match(text) and text not in KEYS]
        assert shown == [], script.name


@pytest.mark.parametrize(
    ("accepted", "language"),
    [
        ("zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        ("ZH-hans-CN", "zh"),
        ("fr;q=0.5, zh-CN; q=0.9, en;q=0.4", "zh"),
        ("zh;q=0, en", "en"),
        ("", "en"),
        (";;q=x,,zh;q=high", "en"),
    ],
)
def test_a_page_has_the_language_that_its_reader_prefers(accepted, language):
    assert page_language({"accept-language": accepted}) == language


def test_words_follow_the_page_and_end_with_it():
    with speaking(translations("zh")):
        assert ago(NOW - timedelta(minutes=3), NOW) == "3 分钟前"
        assert ago(NOW - timedelta(days=90), NOW) == "2025 年 12 月 12 日"
        assert counted(1200, "%(count)s document", "%(count)s documents") == "1,200 篇文档"
        assert gettext("") == ""
    assert ago(NOW - timedelta(minutes=3), NOW) == "3 min ago"
    assert counted(1, "%(count)s document", "%(count)s documents") == "1 document"


def main_of(page: str) -> str:
    return page[page.index("<main") : page.index("</main>") + 7]


def test_chinese_pages_hold_no_english_words_of_ours():
    """With names of documents, answers and settings in Chinese characters, no Latin word is left but known ones."""
    desk = FakeDesk()
    answer = make_answer("c", "m", "returns")
    answer = replace(
        answer,
        answer="三十天内可以退货。",
        policy="策略",
        notice=QUOTED,
        citations=tuple(replace(one, document="甲", title="乙", passage="丙", quote="丁") for one in answer.citations),
        modules=tuple(replace(one, id="戊", document="己") for one in answer.modules),
    )
    desk.store("可以退货吗？", answer)
    overview = make_overview(NOW)
    overview = replace(
        overview,
        model="模型",
        device="设备",
        policy="策略",
        answer_mode="模式",
        calibration="结果",
        prefixes=tuple(replace(row, text="文字") for row in overview.prefixes),
        weak=tuple(replace(row, question="问", shown="答") for row in overview.weak),
        misses=tuple(replace(row, document="甲", passage="乙", question="丙") for row in overview.misses),
    )
    summary = replace(desk.conversations()[0], title="会话", updated=NOW)
    listing: dict[str, object] = {"open_id": "", "query": "", "deleted": "c", "now": NOW}
    axis = Axis.ending(NOW, "week")
    with speaking(translations("zh")):
        spans = make_usage(axis.since, axis.until, axis.range.step)
        drawn = [outcomes(axis, spans), *charts(axis, spans, False)]
    caller = Caller(role="admin")
    admin = {"now": NOW, "caller": caller, "links": links_for(caller), "load": desk.load(), "charts": drawn}
    admin |= {"axis": axis, "savings": make_savings(), "usage": UsageSpan(start=NOW, answers={"answered": 3})}
    admin |= {"ranges": RANGES, "here": "", "request_path": "", "did": None}
    admin |= {"ended_words": ENDED_WORDS, "numbers": dict.fromkeys(ENDED_WORDS, 3)}
    shown = {"contacts": {}, "technical": True, "has_older": True}
    pages = [
        render("chat/transcript.html", language="zh", turns=desk.turns("c"), **shown),
        render("chat/live.html", language="zh", question="问", text=""),
        render("chat/empty.html", language="zh", examples=["问"], ready=False, greeting=None),
        render("chat/conversations.html", language="zh", summaries=[summary], **listing),
        render("chat/conversations.html", language="zh", summaries=[], **listing),
        *(render(f"chat/{part}.html", language="zh", name="客服", prefetch=True, is_known=True) for part in FRAME),
        *(
            main_of(render(f"admin/{name}.html", language="zh", overview=one, **admin))
            for name in ("support", "engine")
            for one in (overview, replace(overview, answers=0), replace(overview, answers=0, documents=0))
        ),
    ]
    known = "API device memory disk placement contiguous fast balanced token ms s MiB GiB"
    known += " KiB B Enter Shift Warmdesk Cookie md csv json"
    for page in pages:
        assert set(re.findall("[A-Za-z]+", check(page))) <= set(known.split())
