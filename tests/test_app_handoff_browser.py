"""A customer and the people of a new desk side by side, each in a browser of their own. Needs Chromium."""

import pytest
from browser import NEEDS_BROWSER, WRITE, Browser, RealSite, until
from desks import small_desk, write_pages

pytestmark = NEEDS_BROWSER


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A new desk, which Ann looks after."""
    with pytest.MonkeyPatch.context() as patch, small_desk(tmp_path_factory.mktemp("desk"), office_hours=None) as desk:
        patch.setattr("app.web.chat_page.PERIOD_S", 1.0)
        desk.prepare()
        site = RealSite(desk, "admin")
        yield site
        site.close()


@pytest.fixture(scope="module")
def another(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("agent"))
    yield browser
    browser.driver.quit()


@pytest.fixture
def browsers(chromium, another, site):
    """A customer's and an agent's, who have never been here."""
    yield chromium, another
    chromium.forget()
    another.forget()


def test_the_first_day(site, browsers, tmp_path):
    """With nobody's help: documents, a question, its outcome, a second account, a person, an FAQ that answers."""
    customer, agent = browsers
    agent.driver.get(site.url + "/admin/")
    agent.enter("Ann", site.password)
    agent.press(".wd-welcome a")  # nothing is measured yet
    files = sorted(write_pages(tmp_path).iterdir())
    agent.one("#files").send_keys("\n".join(map(str, files)))
    agent.press("#upload button")
    assert agent.sees("#uploaded", "4 of 4 files were added. Search finds them now.")

    customer.driver.get(site.url + "/")
    customer.ask("Can gift cards be returned?")
    customer.one("#wd-transcript .wd-answer")
    agent.driver.get(site.url + "/admin/")
    assert [one.text for one in agent.all(".wd-tile dd > b")][:3] == ["1", "1 100%", "1 100%"]  # answered, resolved
    agent.press(".wd-tile a")
    assert agent.sees("#documents td", "Can gift cards be returned?")
    customer.press("[data-person=ask]")
    assert customer.sees("#wd-handoff", "You are number 1 in the queue.")
    agent.driver.get(site.url + "/admin/accounts")
    assert agent.sees("#wd-waiting", "1")  # on every page
    until(lambda: agent.driver.title == "(1) Accounts · Warmdesk")
    agent.one("#name").send_keys("Ben")
    agent.press("main form button[type=submit]:not([aria-label])")
    password = agent.one(".wd-once code").text
    agent.press(".wd-admin-head button")

    agent.enter("Ben", password)
    until(lambda: agent.driver.current_url.endswith("/admin/queue"))  # where an agent lands
    until(lambda: agent.driver.execute_script("arguments[0].focus()", agent.one("#wd-rows a")) or True)
    customer.ask("It was a present.")
    assert agent.sees("#wd-rows", "It was a present.")
    assert agent.driver.execute_script("return document.activeElement.matches('#wd-rows a')")
    assert agent.driver.find_element("id", "wd-news").get_attribute("textContent").startswith("(1) ")
    assert "ago" in agent.one("#wd-rows time").text or "minute" in agent.one("#wd-rows time").text
    agent.press("#wd-rows a")
    assert agent.sees("#wd-turns", "Can gift cards be returned?")
    agent.press("#wd-turns summary")
    assert agent.sees("#wd-turns blockquote", "Gift cards cannot be returned.")
    agent.press("[data-act=take]")
    assert customer.sees("#wd-handoff", "Ben has joined")  # without anything pressed
    agent.one("#wd-answer").send_keys("Presents may be <b>exchanged</b>.\n")
    assert customer.sees("#wd-transcript .wd-agent", "Presents may be <b>exchanged</b>.")
    assert customer.sees("#wd-transcript .wd-agent h3", "Ben")
    assert customer.one("#wd-transcript .wd-agent time").text
    assert agent.one("#wd-turns details[open]")  # what the agent opened stays open
    box = customer.one("#wd-box textarea")
    box.send_keys("Thank")
    agent.one("#wd-answer").send_keys("Anything else?\n")
    assert customer.sees("#wd-transcript", "Anything else?")
    assert customer.one("#wd-box textarea").get_attribute("value") == "Thank"  # half a message is not lost
    customer.one("#wd-box textarea").send_keys("s, no.\n")
    assert agent.sees("#wd-turns", "Thanks, no.")
    answers = len(customer.driver.find_elements("css selector", "#wd-transcript .wd-answer:not(.wd-agent)"))
    assert answers == 1  # the machine kept silent
    agent.one("#wd-answer").send_keys("Half a")
    agent.driver.delete_all_cookies()  # as after twelve hours
    until(lambda: "/admin/login?next=" in agent.driver.current_url)
    assert all("401" in problem for problem in agent.problems())
    agent.enter("Ben", password)
    until(lambda: agent.one("#wd-answer").get_attribute("value") == "Half a")
    agent.press("[data-act=close]")
    until(lambda: agent.driver.switch_to.alert.accept() or True)
    until(lambda: agent.one("#wd-unsent").get_attribute("value") == "Half a")
    assert customer.sees("#wd-handoff", "You are talking to our assistant again.")
    customer.ask("What does shipping cost?")
    until(lambda: len(customer.driver.find_elements("css selector", "#wd-transcript .wd-answer:not(.wd-agent)")) == 2)
    agent.press("[data-act=reopen]")
    agent.press("[data-act=suggest]")
    suggested = until(lambda: agent.one("#wd-answer").get_attribute("value"))
    agent.press("#wd-controls [type=submit]")
    assert agent.sees("#wd-turns", suggested.partition("\n")[0])
    customer.driver.execute_script("document.dispatchEvent(new Event('visibilitychange'))")  # its tab is seen again
    assert customer.sees("#wd-transcript", suggested.partition("\n")[0])
    customer.press("[data-person=end]")
    until(lambda: agent.all("#wd-turns a")[-1].click() or True)
    assert agent.one("#question").get_attribute("value") == "What does shipping cost?"
    answer = agent.one("#answer")
    answer.clear()
    answer.send_keys("Nothing from 50 euros.")
    agent.press("#faq button")
    assert agent.sees("#outcome", "The FAQ now answers this question:")
    customer.ask("What does shipping cost?")
    assert customer.sees("#wd-transcript article:last-of-type .wd-text", "Nothing from 50 euros.")
    assert customer.problems() == []

    customer.press("[data-person=ask]")
    agent.driver.get(site.url + "/admin/queue")
    agent.press("#wd-rows a")
    agent.press("[data-act=take]")

    def taken_from_the_faq() -> bool:
        """The box is drawn anew a moment after the page was opened."""
        agent.driver.execute_script(WRITE, agent.one("#wd-answer"), "/shipping")
        for found in agent.all("#wd-faq button"):
            found.click()
        return bool(agent.one("#wd-answer").get_attribute("value") == "Nothing from 50 euros.")

    until(taken_from_the_faq)
    assert agent.problems() == []


def test_pages_fit_a_phone_in_the_dark_and_are_translated(site, browsers):
    """Nothing is wider than the screen, and every control has a name."""
    customer, agent = browsers
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": False}
    for browser in browsers:
        browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.speak("zh-CN")
        dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    customer.driver.get(site.url + "/")
    customer.press("[data-person=ask]")
    customer.one("[data-person=end]")
    agent.sign_in(site)
    agent.driver.get(site.url + "/admin/queue")
    agent.press("#wd-rows a")
    agent.press("[data-act=take]")
    agent.one("#wd-answer")
    unnamed = (
        "return [...document.querySelectorAll('button, textarea, input, summary')]"
        ".filter(e => e.checkVisibility({visibilityProperty: true}))"
        ".filter(e => !(e.ariaLabel || e.innerText.trim() || e.labels?.length)).map(e => e.outerHTML)"
    )
    for browser in browsers:
        assert browser.driver.execute_script("return document.documentElement.scrollWidth") <= 390
        assert browser.driver.execute_script(unnamed) == []
    background = agent.driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert background == "rgb(27, 26, 24)"
    assert agent.sees("#wd-controls", "交还给自动助手")
    assert customer.sees("#wd-handoff", "Ann 已加入会话")
