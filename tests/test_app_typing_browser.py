"""What a real browser sends while somebody types, and that it is worth it. Needs Chromium."""

from contextlib import closing
from typing import Any

import pytest
from browser import NEEDS_BROWSER, Browser, RealSite, Site, until
from desks import small_desk, write_pages
from selenium.webdriver import Keys

pytestmark = NEEDS_BROWSER
BOX = "#wd-box textarea"
TYPE = """
const [field, text] = arguments;
for (let end = 1; end <= text.length; end++) {
  field.value = text.slice(0, end);
  field.dispatchEvent(new Event("input", { bubbles: true }));
}
"""


@pytest.fixture
def browser(chromium):
    yield chromium
    chromium.forget()


def type_at_once(browser: Browser, text: str) -> None:
    browser.driver.execute_script(TYPE, browser.one(BOX), text)


def opened(browser: Browser, site: Site | RealSite) -> None:
    browser.leave()
    browser.driver.get(site.url + "/")
    browser.one("#wd-box .submit-button")
    until(lambda: browser.driver.find_elements("css selector", ".wd-hint"))


def test_the_text_is_sent_after_a_pause_with_its_conversation_and_taken_back_when_it_is_cleared(browser, tmp_path):
    with closing(Site(tmp_path)) as site:
        typed = site.desk.typed
        opened(browser, site)
        type_at_once(browser, "How long do returns")
        until(lambda: typed)
        browser.one(BOX).send_keys(Keys.CONTROL, "a", Keys.NULL, Keys.BACKSPACE)
        until(lambda: len(typed) == 2)
        assert typed == [("How long do returns", None), ("", None)]
        browser.ask("Can I send a lamp back?")
        until(lambda: browser.all("#wd-transcript .wd-citation"))
        until(lambda: "#" in browser.driver.current_url)
        conversation = browser.driver.current_url.partition("#")[2]
        typed.clear()
        type_at_once(browser, "And the shade of it")
        until(lambda: typed)
        assert browser.one(BOX).get_property("value") == "And the shade of it", "the answer is not disturbed"
        assert [bubble.text for bubble in browser.all("#wd-transcript .wd-bubble")] == ["Can I send a lamp back?"]
        browser.leave()
        until(lambda: len(typed) == 2)
        assert typed == [("And the shade of it", conversation), ("", conversation)]
    assert browser.problems() == []


def test_typing_a_question_brings_its_passages_to_memory_before_it_is_sent(browser, tmp_path):
    with small_desk(tmp_path / "desk", show_technical=True) as desk:
        desk.ingest([write_pages(tmp_path / "pages")], warm=False)
        desk.prepare()
        with closing(RealSite(desk)) as site:
            opened(browser, site)
            assert not desk.engine.store.device.entries
            browser.one(BOX).send_keys("How long do returns take?")
            until(lambda: len(desk.engine.call(lambda store: [*store.device.entries])) == 3)
            assert desk.overview().answers == 0
            browser.one(BOX).send_keys("\n")
            until(lambda: browser.all("#wd-transcript .wd-reuse-line"))
            rows: Any = desk.overview().modules
            assert {row.misses for row in rows if row.hits} == {0}
            assert sum(row.hits for row in rows) >= 2
            browser.leave()
    assert browser.problems() == []
