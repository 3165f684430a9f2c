"""An admin closes a gap in the documents: from a question that was not answered to an FAQ that answers it. Needs
Chromium.
"""

import pytest
from browser import NEEDS_BROWSER, Browser, RealSite, until
from desks import finish, small_desk, write_pages

pytestmark = NEEDS_BROWSER
GAP, OTHER_WORDS = "Which paint suits a cellar?", "Which cellar paint suits?"
ANSWER = "Lime paint. <b>Not</b> oil."


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("desk")
    with small_desk(
        folder / "desk",
        pages=write_pages(folder / "pages"),
        refuse_below=0.2,
        answer_above=2.0,
        answer_mode="quote",
    ) as desk:
        desk.prepare()
        yield desk


@pytest.fixture(scope="module")
def browser(desk, chromium):
    site = chromium.site = RealSite(desk, "admin")
    yield chromium
    chromium.forget()
    site.close()


def go(browser: Browser, path: str) -> None:
    browser.driver.get(browser.site.url + path)


def test_a_question_that_was_not_answered_becomes_an_faq(desk, browser):
    for question in (GAP, OTHER_WORDS):
        assert finish(desk, question).outcome == "nothing"
    browser.sign_in(browser.site)
    go(browser, "/admin/quality")
    assert browser.sees(".wd-group summary", "Not found 2")  # both wordings are one group
    browser.press(".wd-group summary")
    assert browser.sees(".wd-group ul", GAP)
    assert browser.sees(".wd-group ul", OTHER_WORDS)
    browser.press(".wd-group a[href^='/admin/search']")
    assert browser.sees("#decision", "below the lower threshold")
    go(browser, "/admin/quality")
    browser.press(".wd-group summary")
    browser.press(".wd-group a[href^='/admin/faq']")

    assert {browser.one(f"#{name}").get_attribute("value") for name in ("question", "wordings")} == {GAP, OTHER_WORDS}
    browser.one("#answer").send_keys(ANSWER)
    browser.press("#faq button")
    assert browser.sees("#outcome", "The FAQ now answers this question:")
    assert browser.one("#outcome blockquote").text == ANSWER
    assert browser.sees("#pairs", ANSWER)

    assert finish(desk, OTHER_WORDS).answer == ANSWER
    go(browser, "/")
    browser.one(".wd-empty")
    browser.ask(GAP)
    assert browser.sees("#wd-transcript .wd-text", ANSWER)
    go(browser, f"/admin/search?question={GAP}")
    assert browser.sees("#decision", "The FAQ answers alone.")

    go(browser, "/admin/faq")
    assert browser.one("#documents td.wd-num").text.startswith("2")  # answers by itself are counted
    browser.press("[data-delete]")
    until(lambda: browser.driver.switch_to.alert.accept() or True)
    assert browser.sees("main", "No FAQ yet.")
    assert finish(desk, GAP).outcome == "nothing"
    assert browser.problems() == []


def test_an_answer_is_pinned_and_corrected(desk, browser):
    asked = "returns take how many days from delivery"
    said = finish(desk, asked, owner="v-ann")
    browser.sign_in(browser.site)
    go(browser, "/admin/search?question=" + asked)
    assert browser.sees("#decision", "between the two thresholds")
    assert browser.sees("main", "Returns take thirty days from delivery.")  # which statement was shown

    go(browser, f"/admin/conversations/{said.conversation_id}")
    browser.press("[data-pin]")
    assert browser.sees(".wd-replied [role=status]", "Pinned as an FAQ")
    [pinned] = desk.quality.faq()
    assert (pinned.question, pinned.answer) == (asked, "\n\n".join(said.statements))

    browser.press(".wd-replied a[href^='/admin/faq']")  # the FAQ that was just made
    assert browser.one("#question").get_attribute("value") == asked
    answer = browser.one("#answer")
    answer.clear()
    answer.send_keys("Thirty days.")
    browser.press("#faq button")
    assert browser.sees("#outcome blockquote", "Thirty days.")
    assert finish(desk, asked).answer == "Thirty days."
    assert browser.problems() == []
