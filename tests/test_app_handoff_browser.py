"""A customer and an agent side by side, each in a browser of their own. Needs Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import NEEDS_BROWSER, Served, start_browser, until
from desks import small_desk, write_pages

from app.access.passwords import new_account
from app.storage.accounts import Accounts
from app.web.server import create_app

pytestmark = NEEDS_BROWSER


class Site(Served):
    """A real desk with the tiny model, and the agent's password."""

    def __init__(self, desk: Any) -> None:
        self.password = new_account(Accounts(desk.database), "Ann", "agent")
        super().__init__(create_app(desk, desk.database, desk.settings))


class Browser:
    """What the test does with one browser."""

    def __init__(self, folder: Path) -> None:
        self.driver = start_browser(folder)

    def one(self, selector: str) -> Any:
        return until(
            lambda: next((e for e in self.driver.find_elements("css selector", selector) if e.is_displayed()), None)
        )

    def sees(self, selector: str, text: str) -> bool:
        return bool(until(lambda: text in self.one(selector).text))

    def press(self, selector: str) -> None:
        until(lambda: self.one(selector).click() or True)

    def problems(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with small_desk(tmp_path / "desk", office_hours=None) as desk:
        desk.ingest([write_pages(tmp_path / "pages")])
        desk.prepare()
        site = Site(desk)
        yield site
        site.close()


@pytest.fixture
def browsers(tmp_path: Path) -> Iterator[tuple[Browser, Browser]]:
    customer, agent = Browser(tmp_path / "customer"), Browser(tmp_path / "agent")
    yield customer, agent
    for browser in (customer, agent):
        browser.driver.quit()


def test_a_customer_and_an_agent_talk_and_the_machine_takes_over_again(
    site: Site, browsers: tuple[Browser, Browser]
) -> None:
    customer, agent = browsers
    agent.driver.get(site.url + "/admin/login")
    name = agent.one("#name")
    name.clear()
    name.send_keys("Ann")
    agent.one("#password").send_keys(site.password + "\n")
    assert agent.sees("#wd-rows", "Nobody waits.")  # where an agent lands
    customer.driver.get(site.url + "/")
    customer.one("#wd-box textarea").send_keys("Can gift cards be returned?\n")
    customer.one("#wd-transcript .wd-citation, #wd-transcript .wd-answer")
    customer.press("[data-person=ask]")
    assert customer.sees("#wd-handoff", "You are number 1 in the queue.")
    customer.one("#wd-box textarea").send_keys("It was a present.\n")
    assert agent.sees("#wd-rows", "It was a present.")
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
    agent.press("[data-act=close]")
    assert customer.sees("#wd-handoff", "You are talking to our assistant again.")
    customer.one("#wd-box textarea").send_keys("What does shipping cost?\n")
    until(lambda: len(customer.driver.find_elements("css selector", "#wd-transcript .wd-answer:not(.wd-agent)")) == 2)
    assert customer.problems() == []
    assert agent.problems() == []


@pytest.mark.parametrize("language", ["en", "zh-CN"])
def test_pages_fit_a_phone_in_the_dark(site: Site, browsers: tuple[Browser, Browser], language: str) -> None:
    """Nothing is wider than the screen, and every control has a name."""
    customer, agent = browsers
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": False}
    for browser in browsers:
        user_agent = browser.driver.execute_script("return navigator.userAgent")
        browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.driver.execute_cdp_cmd(
            "Network.setUserAgentOverride", {"userAgent": user_agent, "acceptLanguage": language}
        )
        dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    customer.driver.get(site.url + "/")
    customer.press("[data-person=ask]")
    customer.one("[data-person=end]")
    agent.driver.get(site.url + "/admin/login")
    name = agent.one("#name")
    name.clear()
    name.send_keys("Ann")
    agent.one("#password").send_keys(site.password + "\n")
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
    if language == "zh-CN":
        assert agent.sees("#wd-controls", "交还给自动助手")
        assert customer.sees("#wd-handoff", "Ann 已加入会话")
