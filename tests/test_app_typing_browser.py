"""That it is worth what a real browser sends while somebody types. Needs Chromium."""

from contextlib import closing
from typing import Any

import pytest
from browser import NEEDS_BROWSER, RealSite, until
from desks import small_desk, write_pages

pytestmark = NEEDS_BROWSER
BOX = "#wd-box textarea"


@pytest.fixture
def browser(chromium):
    yield chromium
    chromium.forget()


def test_typing_a_question_brings_its_passages_to_memory_before_it_is_sent(browser, tmp_path):
    with small_desk(tmp_path / "desk", show_technical=True) as desk:
        desk.ingest([write_pages(tmp_path / "pages")], warm=False)
        desk.prepare()
        with closing(RealSite(desk)) as site:
            browser.driver.get(site.url + "/")
            browser.one("#wd-box .submit-button")
            until(lambda: browser.driver.find_elements("css selector", ".wd-hint"))
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
