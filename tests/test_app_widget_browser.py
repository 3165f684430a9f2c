"""The widget in a real browser: pages of other sites that show it, one that may and one that may not. Needs Chromium.

The desk is at 127.0.0.1 and the others at localhost: different sites for a browser, so the frame gets no cookies.
"""

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
import pytest
from browser import NEEDS_BROWSER, Elements, Site, until

pytestmark = NEEDS_BROWSER
SECRET = "s" * 32


class ShopPage(BaseHTTPRequestHandler):
    """A page with a strict policy of its own. /TOKEN hands a signed token over, /dark a theme. /night is black."""

    desk = ""

    def do_GET(self) -> None:
        theme = 'data-theme="dark"' if self.path == "/dark" else ""
        colour = "black" if self.path == "/night" else ""
        token = f'data-visitor="{self.path[1:]}"' if "." in self.path else ""
        page = (
            f'<!doctype html><html lang="en"><title>Shop</title><body bgcolor="{colour}">'
            f'<h1>Shop</h1><a href="#top">Top</a>'
            f'<script src="{self.desk}/widget.js" data-language="en" {token} {theme} async></script>'
        )
        self.send_response(200)
        self.send_header("content-type", "text/html; charset=utf-8")
        self.send_header(
            "content-security-policy", f"default-src 'none'; script-src {self.desk}; frame-src {self.desk}"
        )
        self.end_headers()
        self.wfile.write(page.encode())

    def log_message(self, *args: object) -> None:
        pass


class Shop:
    """Two sites: one that may show the widget (`url`) and one that may not (`other`)."""

    def __init__(self) -> None:
        self.servers = [ThreadingHTTPServer(("127.0.0.1", 0), ShopPage) for _ in range(2)]
        for server in self.servers:
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        self.url, self.other = (f"http://localhost:{server.server_address[1]}" for server in self.servers)

    def close(self) -> None:
        for server in self.servers:
            server.shutdown()
            server.server_close()


class Widget(Elements):
    """The few things the tests do with the page and the frame in it."""

    def __init__(self, driver: Any, shop: Shop) -> None:
        super().__init__(driver)
        self.shop = shop

    def go(self, address: str) -> None:
        self.driver.switch_to.default_content()
        self.driver.get(address)
        self.button()

    def within(self, selector: str) -> Any:
        host = until(lambda: next(iter(self.driver.find_elements("css selector", "#warmdesk-widget")), None))
        return host.shadow_root.find_element("css selector", selector)

    def button(self) -> Any:
        return self.within("button")

    def enter(self) -> None:
        self.driver.switch_to.frame(self.within("iframe"))

    def open(self, token: str = "") -> None:
        self.go(f"{self.shop.url}/{token}")
        self.button().click()
        self.enter()

    def leave(self) -> None:
        self.driver.switch_to.default_content()

    def ask(self, question: str, box: str = "#wd-box") -> None:
        self.one("#wd-send")
        super().ask(question, box)

    def said(self, selector: str, words: str) -> None:
        until(lambda: any(words in e.text for e in self.all(selector)))


@pytest.fixture(scope="module")
def shop():
    shop = Shop()
    yield shop
    shop.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory, shop):
    site = Site(tmp_path_factory.mktemp("desk"), widget_origins=(shop.url,), visitor_secret=SECRET)
    ShopPage.desk = site.url
    yield site
    site.close()


@pytest.fixture(scope="module")
def driver(chromium, site):
    yield chromium.driver
    chromium.forget()


@pytest.fixture
def widget(driver, site, shop):
    driver.get_log("browser")
    yield Widget(driver, shop)
    said = [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
    assert [message for message in said if "favicon" not in message] == []


def test_ask_in_a_page_of_another_site(widget, site):
    widget.go(widget.shop.url)
    assert widget.button().get_attribute("aria-label") == "Open the chat"
    widget.button().click()
    assert widget.button().get_attribute("aria-expanded") == "true"
    widget.enter()
    widget.one(".wd-examples button")
    until(lambda: widget.driver.execute_script("return document.activeElement.id") == "wd-box")
    site.desk.held_at = 12
    widget.ask("Can I return a lamp?")
    widget.one("#wd-stop")
    site.desk.held_at = None
    widget.said("#wd-transcript .wd-text", "without giving a reason")
    until(lambda: "30 days" in widget.driver.find_element("id", "wd-spoken").get_attribute("textContent"))
    widget.all("#wd-transcript .wd-ref")[0].click()
    assert "You have 30 days from delivery" in widget.one(".wd-citation[open] mark").text
    widget.press("[data-value=down]")
    widget.one(".wd-reason input").send_keys("too long\n")
    until(lambda: site.desk.said and site.desk.said[-1][1:] == ("down", "too long"))
    assert widget.driver.get_cookies() == []

    widget.open()  # another page of the shop, later
    widget.said("#wd-transcript .wd-bubble", "Can I return a lamp?")
    widget.press("[data-act=new]")
    widget.one(".wd-examples button")
    assert widget.all(".wd-bubble") == []
    widget.press("#wd-back")
    widget.said("#wd-transcript .wd-bubble", "Can I return a lamp?")
    assert not widget.driver.find_element("id", "wd-back").is_displayed()


def test_what_is_typed_is_sent_before_it_is_asked(widget, site):
    widget.open()
    until(lambda: widget.all("#wd-send"))
    widget.one("#wd-box").send_keys("Is the lid covered")
    until(lambda: site.desk.typed and site.desk.typed[-1][0] == "Is the lid covered")
    widget.go(widget.shop.other)
    until(lambda: site.desk.typed[-1][0] == "")


def test_stop_keeps_the_part_and_the_question_can_be_changed(widget, site, monkeypatch):
    widget.open()
    widget.press("[data-act=new]")
    widget.one(".wd-examples button")
    monkeypatch.setattr(site.desk, "held_at", 12)
    widget.ask("returns please")
    widget.said("#wd-live .wd-text", "You")
    widget.press("#wd-stop")
    widget.said("#wd-transcript .wd-notice", "Stopped before the end")
    monkeypatch.undo()
    widget.press("[data-act=edit]")
    assert widget.one("#wd-box").get_property("value") == "returns please"
    widget.one("#wd-box").send_keys(" and weather\n")
    widget.said("#wd-transcript .wd-outcome", "Not found")
    assert [bubble.text for bubble in widget.all(".wd-bubble")] == ["returns please and weather"]
    widget.ask("crash")
    widget.said("#wd-live .wd-error", "went wrong")
    assert widget.one("#wd-box").get_property("value") == "crash"


def test_a_person_is_asked_for_and_sent_away(widget):
    widget.open()
    widget.press("[data-person=ask]")
    widget.said("#wd-handoff", "A person will answer here")
    widget.press("[data-person=end]")
    widget.said("#wd-handoff", "our assistant again")


def test_a_message_that_comes_while_it_is_closed_is_seen_on_the_button(widget, site):
    widget.open()
    widget.press("[data-act=new]")
    widget.one(".wd-examples button")
    widget.press("[data-person=ask]")
    widget.said("#wd-handoff", "A person will answer here")
    conversation = next(reversed(site.desk.handed))
    owner = site.desk._owners[conversation]

    def hears() -> None:
        until(lambda: widget.button().get_attribute("aria-label") == "Open the chat, new message")

    widget.press("[data-act=close]")
    widget.leave()
    assert widget.button().get_attribute("aria-label") == "Open the chat"
    site.desk.say("It left today.", conversation, owner, "agent", "Ann")
    hears()
    widget.button().click()
    assert widget.button().get_attribute("aria-label") == "Close the chat"
    widget.go(widget.shop.url)  # another page of the shop, where the chat was not opened
    assert not widget.within("iframe").is_displayed()
    until(lambda: widget.within("iframe").get_attribute("src"))
    time.sleep(1)  # it looks for the first time
    site.desk.say("And it arrives tomorrow.", conversation, owner, "agent", "Ann")
    hears()
    widget.button().click()
    widget.enter()
    widget.said("#wd-transcript .wd-agent", "It left today.")
    widget.press("[data-person=end]")


def test_a_light_shop_has_a_light_chat_on_a_dark_system(widget):
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    widget.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    colours = {}
    for theme in ("", "dark", "night"):
        widget.open(theme)
        widget.one("#wd-box")
        colours[theme] = widget.driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    widget.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert colours == {"": "rgb(247, 245, 242)", "dark": "rgb(27, 26, 24)", "night": "rgb(27, 26, 24)"}


def test_what_is_kept_is_deleted_after_a_second_click(widget):
    widget.open()
    widget.ask("Can I return it?")
    widget.said("#wd-transcript", "30 days")
    widget.one(".wd-data summary").click()
    widget.press("[data-act=erase]")
    widget.said("#wd-transcript", "30 days")
    widget.press("[data-act=erased]")
    widget.said("#wd-transcript", "Do gift cards expire?")
    widget.open()
    widget.said("#wd-transcript", "Do gift cards expire?")


def test_escape_closes_and_gives_the_focus_back(widget):
    widget.go(widget.shop.url)
    widget.button().send_keys("\n")
    widget.enter()
    until(lambda: widget.driver.execute_script("return document.activeElement.id") == "wd-box")
    widget.one("#wd-box").send_keys("\ue00c")
    widget.leave()
    until(lambda: widget.button().get_attribute("aria-expanded") == "false")
    assert not widget.within("iframe").is_displayed()
    focused = "return document.activeElement.shadowRoot?.activeElement?.getAttribute('aria-label')"
    assert widget.driver.execute_script(focused) == "Open the chat"


def test_the_site_hands_its_customer_over(widget, site):
    token = jwt.encode({"sub": "customer-7", "exp": time.time() + 600}, SECRET, "HS256")
    widget.open(token)
    widget.one(".wd-examples button")
    widget.ask("Can I return a lamp?")
    widget.said("#wd-transcript .wd-text", "30 days")
    assert site.desk.streams[-1]._owner.startswith("u-")
    assert token not in str(widget.driver.execute_script("return Object.values(localStorage)"))
    ended = jwt.encode({"sub": "customer-7", "exp": time.time() - 600}, SECRET, "HS256")
    widget.open(ended)
    widget.said(".wd-error", "You were signed out")
    widget.driver.get_log("browser")  # the browser notes the 401


def test_a_link_to_the_chat_page_signs_in_and_there_is_a_way_out(widget, site):
    now = time.time()
    token = jwt.encode({"sub": "customer-7", "iat": now, "exp": now + 300}, SECRET, "HS256")
    widget.leave()
    widget.driver.get(f"{site.url}/?visitor={token}")
    widget.said(".wd-data summary", "Your data (signed in)")
    assert widget.driver.current_url == f"{site.url}/"
    widget.press(".wd-data summary")
    widget.press(".wd-data form button")
    until(lambda: [one.text for one in widget.all(".wd-data summary")] == ["Your data"])


def test_a_site_that_is_not_named_gets_no_frame(widget):
    widget.go(widget.shop.other)
    widget.button().click()
    until(lambda: "frame-ancestors" in str(widget.driver.get_log("browser")))
    widget.enter()
    assert widget.driver.find_elements("id", "wd-box") == []


def test_on_a_phone_it_fills_the_screen(widget):
    with widget.on_a_phone():
        widget.go(widget.shop.url)
        widget.button().click()
        assert widget.within("iframe").size == {"width": 390, "height": 844}
        assert not widget.button().is_displayed()
        widget.enter()
        widget.press("[data-act=close]")
        widget.leave()
        until(lambda: widget.button().is_displayed())
