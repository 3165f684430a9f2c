"""A customer and an agent side by side, each in a browser of their own. Needs Chromium."""

import pytest
from browser import NEEDS_BROWSER, WRITE, Browser, RealSite, until
from desks import small_desk, write_pages

pytestmark = NEEDS_BROWSER


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setattr("app.web.chat_page.PERIOD_S", 1.0)
    with small_desk(tmp_path / "desk", pages=write_pages(tmp_path / "pages"), office_hours=None) as desk:
        desk.prepare()
        site = RealSite(desk)
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


def test_a_customer_and_an_agent_talk_and_the_machine_takes_over_again(site, browsers):
    customer, agent = browsers
    agent.sign_in(site)
    agent.driver.get(site.url + "/admin/")
    assert agent.sees("#wd-rows", "No one is waiting.")  # where an agent lands
    customer.driver.get(site.url + "/")
    customer.ask("Can gift cards be returned?")
    customer.one("#wd-transcript .wd-citation, #wd-transcript .wd-answer")
    customer.press("[data-person=ask]")
    assert customer.sees("#wd-handoff", "You are number 1 in the queue.")
    agent.driver.execute_script("arguments[0].focus()", agent.one("#wd-rows a"))
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
    assert customer.sees("#wd-handoff", "Ann has joined")  # without anything pressed
    agent.one("#wd-answer").send_keys("Presents may be <b>exchanged</b>.\n")
    assert customer.sees("#wd-transcript .wd-agent", "Presents may be <b>exchanged</b>.")
    assert customer.sees("#wd-transcript .wd-agent h3", "Ann")
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
    case = agent.driver.current_url
    agent.driver.delete_all_cookies()  # as after twelve hours
    until(lambda: "/admin/login?next=" in agent.driver.current_url)
    assert all("401" in problem for problem in agent.problems())
    agent.sign_in(site)
    agent.driver.get(case)
    until(lambda: agent.one("#wd-answer").get_attribute("value") == "Half a")
    agent.press("[data-act=close]")
    until(lambda: agent.driver.switch_to.alert.accept() or True)
    until(lambda: agent.one("#wd-unsent").get_attribute("value") == "Half a")
    assert customer.sees("#wd-handoff", "You are talking to our assistant again.")
    customer.ask("What does shipping cost?")
    until(lambda: len(customer.driver.find_elements("css selector", "#wd-transcript .wd-answer:not(.wd-agent)")) == 2)
    assert customer.problems() == []
    agent.press("[data-act=reopen]")
    agent.press("[data-act=suggest]")
    suggested = until(lambda: agent.one("#wd-answer").get_attribute("value"))
    agent.press("#wd-controls [type=submit]")
    assert agent.sees("#wd-turns", suggested.partition("\n")[0])
    customer.driver.refresh()  # it looks for messages only while a person has the conversation
    assert customer.sees("#wd-transcript", suggested.partition("\n")[0])
    until(lambda: agent.all("#wd-turns a")[-1].click() or True)
    assert agent.one("#question").get_attribute("value") == "What does shipping cost?"
    agent.press("#faq button")
    assert agent.sees("#outcome", "The FAQ now answers this question:")
    agent.driver.get(site.url + "/admin/queue")
    agent.press("#wd-rows a")

    def taken_from_the_faq() -> bool:
        """The box is drawn anew a moment after the page was opened."""
        agent.driver.execute_script(WRITE, agent.one("#wd-answer"), "/shipping")
        for found in agent.all("#wd-faq button"):
            found.click()
        return bool(agent.one("#wd-answer").get_attribute("value") == suggested)

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
