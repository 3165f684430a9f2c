"""The pages in a real browser: ask, read, open a source, reload, stop, hostile text, keyboard, admin. Needs
Chromium.

One server in a thread and one headless browser for all tests; most begin a new conversation on the page that is open.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from browser import NEEDS_BROWSER, Elements, Site, problems, until
from quick_account import quick_account
from selenium.webdriver import Keys as Key
from selenium.webdriver.support.expected_conditions import alert_is_present

from app.access.identity import Keys
from app.storage.people import Accounts

pytestmark = NEEDS_BROWSER
TYPE = """
const [field, text] = arguments;
for (let end = 1; end <= text.length; end++) {
  field.value = text.slice(0, end);
  field.dispatchEvent(new Event("input", { bubbles: true }));
}
"""


class Page(Elements):
    def __init__(self, driver: Any, site: Site) -> None:
        super().__init__(driver)
        self.site = site

    def go(self, path: str = "/") -> None:
        self.driver.get("about:blank")
        self.driver.get(self.site.url + path)

    def begin(self) -> None:
        """A new conversation. To open the page takes two seconds."""
        if self.all(".wd-new"):
            self.press(".wd-new")
        else:
            self.go()
        self.one(".wd-empty")

    def text(self, selector: str) -> str:
        return str(self.one(selector).text)

    def script(self, code: str) -> Any:
        return self.driver.execute_script(code)

    @contextmanager
    def held(self, words: int) -> Iterator[None]:
        """Answers stop behind so many words, until the block ends."""
        self.site.desk.held_at = words
        try:
            yield
        finally:
            self.site.desk.held_at = None


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    site = Site(tmp_path_factory.mktemp("admin"))
    yield site
    site.close()


@pytest.fixture(scope="module")
def driver(chromium, site):
    yield chromium.driver
    chromium.forget()


@pytest.fixture
def page(driver, site):
    driver.get_log("browser")
    yield Page(driver, site)
    assert problems(driver) == []  # no script error, nothing blocked by the content security policy, nothing missing


def test_the_desk_in_chinese(page):
    """Every word of the pages, Gradio's own included; the documents and answers keep their language."""
    agent = page.script("return navigator.userAgent")
    override = "Network.setUserAgentOverride"
    page.driver.execute_cdp_cmd(override, {"userAgent": agent, "acceptLanguage": "zh-CN,zh;q=0.9,en;q=0.8"})
    try:
        page.go()
        assert "有什么可以帮您？" in page.text(".wd-empty")
        until(lambda: page.script("return document.documentElement.lang") == "zh-CN")
        box = page.one("#wd-box textarea")
        assert (box.get_attribute("placeholder"), box.get_attribute("aria-label")) == ("请输入您的问题", "您的问题")
        assert page.one("#wd-box .submit-button").get_attribute("title") == "发送问题"
        page.ask("Can I send a lamp back?")
        assert "（3 篇文档）" in page.text(".wd-reuse-line")
        page.all("[data-act=feedback]")[0].click()
        assert "感谢您的反馈" in until(lambda: page.text(".wd-said"))
        page.script("document.querySelector('.wd-delete').click()")
        assert "会话已删除。" in page.text(".wd-undo")
        page.go("/admin/")
        page.one("#password").send_keys(page.site.password + "\n")
        until(lambda: page.driver.title == "仪表盘 · Warmdesk")
        page.press(".wd-admin-head button")
        page.one("#password")
    finally:
        page.driver.execute_cdp_cmd(override, {"userAgent": agent, "acceptLanguage": "en"})


def test_ask_read_open_a_source_and_find_it_again_after_a_reload(page):
    page.begin()
    assert "How can we help?" in page.text(".wd-empty")
    with page.held(20):
        page.ask("Can I send a lamp back?")
        until(lambda: 0 < len(page.text("#wd-live .wd-text")) < 200)  # it grows
    assert "Returning in any of our stores is free" in until(
        lambda: page.all("#wd-transcript .wd-citation") and page.text("#wd-transcript .wd-text")
    )
    assert "1,201 of 1,451 prompt tokens reused from 3 documents" in page.text(".wd-reuse-line")
    assert page.all(".wd-citation blockquote") == []
    page.all(".wd-citation summary")[0].click()
    assert "Changed your mind?" in page.text(".wd-citation blockquote")
    page.press(".wd-reuse summary")
    assert "The document changed" in page.text(".wd-reuse-body")
    until(lambda: "#" in page.driver.current_url)
    page.driver.refresh()
    assert page.text("#wd-transcript .wd-bubble") == "Can I send a lamp back?"
    assert page.text(".wd-open[aria-current=true]").startswith("Can I send a lamp back?")
    assert len(page.all(".wd-citation")) == 3


def test_stop_keeps_the_part_and_the_next_question_works(page):
    page.begin()
    with page.held(12):
        page.ask("Can I stop this?")
        until(lambda: "30 days" in page.text("#wd-live .wd-text"))
        page.press("#wd-box .stop-button")
        assert "Stopped before the end" in page.text("#wd-transcript .wd-notice")
    assert page.all("#wd-box .submit-button")
    page.ask("And now?")
    until(lambda: len(page.all("#wd-transcript .wd-bubble")) == 2)


def test_hostile_text_does_nothing(page):
    page.begin()
    page.ask("html <img src=x onerror=window.owned=9><script>window.owned=9</script>")
    page.press("#wd-transcript .wd-citation summary")
    assert "<script>window.owned=1</script>" in page.text(".wd-citation blockquote")
    assert "onerror=window.owned=9" in page.text("#wd-transcript .wd-bubble")
    assert page.script("return window.owned") is None
    inside = "#wd-transcript :is(img, script, iframe, .wd-text a, object, embed), #wd-list :is(img, script, iframe)"
    assert page.script(f"return document.querySelectorAll('{inside}').length") == 0


def test_example_feedback_new_and_delete(page):
    desk = page.site.desk
    page.begin()
    page.press("[data-act=example]")
    page.press("#wd-transcript [data-value=up]")
    until(lambda: desk.said and desk.said[-1][1] == "up")
    page.press("#wd-transcript [data-value=down]")
    page.one(".wd-reason input").send_keys("too long\n")
    until(lambda: desk.said[-1][1:] == ("down", "too long"))
    page.press("#wd-transcript [data-value=down]")
    page.press("#wd-transcript [data-value=down]")
    page.press(".wd-reason button[value='Out of date']")
    until(lambda: desk.said[-1][1:] == ("down", "Out of date: too long"))
    page.driver.refresh()
    until(lambda: page.one("[data-value=down]").get_attribute("aria-pressed") == "true")
    page.press(".wd-new")
    page.one(".wd-empty")
    until(lambda: "#" not in page.driver.current_url)


def test_a_conversation_is_found_renamed_deleted_and_brought_back(page):
    desk = page.site.desk

    def titles() -> list[str]:
        return [one.title for one in desk.conversations(desk.first)]

    page.begin()
    page.ask("Where is my lamp?")
    page.one("#wd-transcript .wd-citation")
    page.begin()
    page.ask("Where is my zeppelin?")
    until(lambda: page.text("#wd-transcript .wd-bubble") == "Where is my zeppelin?")  # the answer is over
    until(lambda: len(page.all("#wd-list li")) > 1)
    page.script(  # in one piece: each pause while typing would have the list drawn again
        "const box = document.querySelector('.wd-find input'); box.value = 'zeppelin';"
        "box.dispatchEvent(new Event('input', { bubbles: true }))"
    )
    until(lambda: len(page.all("#wd-list li")) == 1)
    page.script("document.querySelector('#wd-list .wd-more').open = true")
    page.press("#wd-list [data-act=rename]")
    name = page.one(".wd-rename input")
    name.send_keys("The airship\n")  # in place of the old name, which is selected
    until(lambda: "The airship" in titles())
    page.script("document.querySelector('#wd-list .wd-delete').click()")
    until(lambda: "The airship" not in titles())
    page.one(".wd-empty")
    page.press(".wd-undo button")
    assert page.text("#wd-transcript .wd-bubble") == "Where is my zeppelin?"
    assert "The airship" in titles()


def test_the_text_is_sent_after_a_pause_with_its_conversation_and_taken_back_when_it_is_cleared(page):
    def type_at_once(text: str) -> None:
        page.driver.execute_script(TYPE, page.one("#wd-box textarea"), text)

    page.begin()
    typed = page.site.desk.typed
    typed.clear()
    type_at_once("How long do returns")
    until(lambda: typed)
    page.one("#wd-box textarea").send_keys(Key.CONTROL, "a", Key.NULL, Key.BACKSPACE)
    until(lambda: len(typed) == 2)
    assert typed == [("How long do returns", None), ("", None)]
    page.ask("Can I send a lamp back?")
    page.one("#wd-transcript .wd-citation")
    until(lambda: "#" in page.driver.current_url)
    conversation = page.driver.current_url.partition("#")[2]
    typed.clear()
    type_at_once("And the shade of it")
    until(lambda: typed)
    assert page.one("#wd-box textarea").get_property("value") == "And the shade of it", "the answer is not disturbed"
    assert [bubble.text for bubble in page.all("#wd-transcript .wd-bubble")] == ["Can I send a lamp back?"]
    page.driver.get("about:blank")
    until(lambda: len(typed) == 2)
    assert typed == [("And the shade of it", conversation), ("", conversation)]


def test_asking_again_and_changing_the_question(page):
    page.begin()
    page.ask("Can I send a lamp back?")
    page.one("#wd-transcript [data-act=retry]")
    with page.held(12):
        page.press("#wd-transcript [data-act=retry]")
        page.one("#wd-live .wd-text")
    page.press("#wd-transcript [data-act=edit]")
    box = page.one("#wd-box textarea")
    until(lambda: box.get_attribute("value") == "Can I send a lamp back?")
    box.clear()
    box.send_keys("Can I send a duvet back?\n")
    until(lambda: [one.text for one in page.all("#wd-transcript .wd-bubble")] == ["Can I send a duvet back?"])


def test_the_beginning_of_an_answer_stays_in_view(page):
    top = "return document.querySelector({}).getBoundingClientRect().top"
    page.begin()
    with page.on_a_phone(height=480):  # an answer is taller than that
        for question in ("Can I send a lamp back?", "Can I send a duvet back?"):
            with page.held(45):
                page.ask(question)
                until(lambda: page.text("#wd-live .wd-text").count(" ") > 40)
                began = page.script(top.format("'#wd-live .wd-question'"))
            asked = ("#wd-transcript .wd-bubble", question)
            until(lambda asked=asked: [one.text for one in page.all(asked[0])][-1:] == [asked[1]])
            last = "'#wd-transcript .wd-question:last-of-type, #wd-transcript article:nth-last-of-type(2)'"
            assert 0 < began < 120
            until(lambda began=began, last=last: abs(page.script(top.format(last)) - began) < 4)


def test_on_a_phone_nothing_is_wider_than_the_screen_and_the_list_is_a_drawer(page):
    with page.on_a_phone():
        page.go("/#" + page.site.desk.conversations(page.site.desk.first)[-1].id)
        page.one("#wd-transcript .wd-citation")
        assert page.script("return document.documentElement.scrollWidth") <= 390
        assert page.script("return document.querySelector('#wd-scroll').scrollWidth") <= 390
        assert page.all(".wd-new") == []
        page.press(".wd-header button")
        page.one(".wd-new")


def test_many_conversations_are_one_column(page, monkeypatch):
    [one, *_] = page.site.desk.conversations(page.site.desk.first)
    monkeypatch.setattr(page.site.desk, "conversations", lambda *_, **__: [replace(one, id=f"c{n}") for n in range(50)])
    page.go()
    page.one("#wd-list li")
    assert page.script("const side = document.querySelector('#wd-side'); return side.scrollWidth <= side.clientWidth")
    assert page.script("return document.querySelectorAll('#wd-list li').length") == 50


def test_admin_needs_the_password_and_shows_the_numbers(page):
    page.go("/admin/")
    page.one("#password").send_keys(page.site.password + "\n")
    until(lambda: page.driver.title == "Dashboard · Warmdesk")
    days = page.text(".wd-ticks")
    page.all(".wd-chips a")[-1].click()
    until(lambda: page.text(".wd-ticks") != days)
    assert page.driver.current_url.endswith("?range=month"), "it can be sent to a colleague"
    page.press(".wd-chart summary")
    assert page.text(".wd-chart td.wd-num") == "9"  # for readers of no picture
    page.script("window.kept = document.querySelector('.wd-chart')")
    page.script("redrawLive()")
    assert page.script("return window.kept.isConnected"), "what has not changed is not drawn again"
    page.press(".wd-support a")
    until(lambda: page.driver.current_url.endswith("/admin/conversations?ended=asked&range=month"))
    page.go("/admin/engine")
    assert "78%" in page.text(".wd-tile-wide")
    assert len(page.all(".wd-chart svg")) == 3
    page.go("/admin/modules")
    page.one("#q").send_keys("warranty\n")
    until(lambda: "payments/" not in page.text(".wd-modules"))
    page.press("[formaction$=keep]")
    assert "pinned" in page.text(".wd-done")
    assert page.site.desk.cared[-1][0] == "keep"
    page.go("/admin/api")
    page.one("#key").send_keys(Keys(page.site.database).create("tried out", ["chat"]))
    form = "form[data-path='/v1/models/{model}']"
    page.script(f"document.querySelector(`{form}`).parentElement.open = true")
    page.one(f"{form} input").send_keys("fake\n")
    assert "200 OK" in page.text(f"{form} pre")
    quick_account(Accounts(page.site.database), "Ben", "agent")
    page.go("/admin/accounts")
    page.press("[aria-label='Delete: Ben']")
    alert = until(lambda: alert_is_present()(page.driver))
    assert "Delete the account Ben?" in alert.text
    alert.dismiss()
    page.go("/admin/accounts")
    assert "Ben" in page.text("tbody")
    page.go("/admin/api")
    page.press("[aria-label='Revoke: tried out']")
    alert = until(lambda: alert_is_present()(page.driver))
    assert "This cannot be undone" in alert.text
    alert.accept()
    assert "no longer works" in page.text(".wd-done")
    page.press(".wd-admin-head button")
    page.one("#password")
