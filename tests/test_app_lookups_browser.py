"""Dialogues of look-ups in a real browser, in the chat and in the widget on another site. Needs Chromium."""

from types import SimpleNamespace

import pytest
from browser import NEEDS_BROWSER, RealSite, until
from desks import small_desk, write_pages
from order_endpoint import TOKEN, order_endpoint
from test_app_widget_browser import Shop, ShopPage, Widget

pytestmark = NEEDS_BROWSER
EMAIL = "ann@example.com"
ORDER = "Where is my order?"
NUMBER, MAIL = "What is your order number?", "Which e-mail address did you order with?"
SHOWN = "Order AB-123456 is on its way. Delivery day: 1 December 2026."
MISFIT = "That does not look right. It looks like this: AB-123456"
DIALOGUES = {
    "takes and confirms": [("Where is AB-123456?", MAIL), (EMAIL, "Is this right? AB-123456, •••"), ("[Yes]", SHOWN)],
    "question between": [(ORDER, NUMBER), ("Can gift cards be returned?", f"Back to Order status: {NUMBER}")],
    "cancel zh": [("我的订单到哪了", "您的订单号是多少？"), ("算了", "好的，不查了。")],
    "misfits": [(ORDER, NUMBER), ("12", MISFIT), ("12", MISFIT), ("12", "Would you like to talk to a person?")],
    "two numbers": [
        ("Where are my orders AB-123456 and AB-222222?", "I see more than one. Which one do you mean?"),
        ("[AB-123456]", MAIL),
    ],
}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder, shop = tmp_path_factory.mktemp("lookups"), Shop()
    with pytest.MonkeyPatch.context() as patch, order_endpoint() as endpoint:
        patch.setenv("SHOP_TOKEN", TOKEN)
        (folder / "desk").mkdir()
        (folder / "desk" / "lookups.toml").write_text(endpoint.definitions(), "utf-8")
        settings = {"private_hosts": (f"127.0.0.1:{endpoint.port}",), "widget_origins": (shop.url,)}
        with small_desk(
            folder / "desk", pages=write_pages(folder / "pages"), questions_per_minute=1000, **settings
        ) as desk:
            desk.prepare()
            site = RealSite(desk)
            ShopPage.desk = site.url
            yield SimpleNamespace(site=site, shop=shop, endpoint=endpoint)
            site.close()
    shop.close()


def say(page, message, answer, number):
    """message: what is typed, or in brackets the button that is pressed. number: of the answers then."""
    if message.startswith("["):
        until(lambda: next(one for one in page.all(".wd-choices button") if one.text == message[1:-1]).click() or True)
    else:
        page.ask(message)
    until(lambda: len(page.all("#wd-transcript .wd-answer")) == number)
    until(lambda: answer in page.all("#wd-transcript .wd-answer")[-1].text)


@pytest.mark.parametrize("dialogue", DIALOGUES)
def test_a_dialogue_in_the_chat(served, chromium, dialogue):
    chromium.driver.get(served.site.url + "/")
    for number, (message, answer) in enumerate(DIALOGUES[dialogue], 1):
        say(chromium, message, answer, number)
    page = chromium.driver.find_element("css selector", "body").text
    assert EMAIL not in page, "a private value is masked in what is kept"
    assert (NUMBER in page) == any(NUMBER in answer for _, answer in DIALOGUES[dialogue])
    assert chromium.problems() == []
    chromium.forget()


def test_a_dialogue_in_the_widget(served, chromium):
    widget = Widget(chromium.driver, served.shop)
    widget.open()
    widget.one(".wd-examples, #wd-box")
    for number, (message, answer) in enumerate([(ORDER, NUMBER), ("AB-123456", MAIL), (EMAIL, SHOWN)], 1):
        widget.one("#wd-send")
        Widget.ask(widget, message)
        until(lambda number=number: len(widget.all("#wd-transcript .wd-answer")) == number)
        widget.said("#wd-transcript .wd-answer", answer)
    link = widget.one("#wd-transcript .wd-answer a")
    assert link.get_attribute("href") == "https://track.shop.example/1"
    widget.leave()
    chromium.forget()
