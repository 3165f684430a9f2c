"""`make screenshots`: every page as an image in docs/images, with a desk of fixed answers and Chromium: light and dark,
on a desktop and on a phone.

Look at them before a release, in Chinese, too (LANG_PAGES=zh-CN), which needs a font (Debian: fonts-noto-cjk). Pages
and what is done on them are those of the tests of accessibility; a state of the chat is a line of CHAT.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from browser import Browser, Served, until
from test_app_accessibility import GO_DARK, PAGES, STILL, filled, look
from test_app_browser import Page

from app.domain.answers import HandoffState, LookUpTurn
from app.domain.progress import DocumentsRead
from app.web import event_gate, pacing
from app.web.middleware import Opening

FOLDER = Path(__file__).parent.parent / "docs" / "images"
AGENT = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0 Safari/537.36"
QUESTION = "Can I send a lamp back?"


def asked(question: str, wanted: str = "#wd-transcript .wd-actions") -> Callable[[Page], object]:
    """A question, and something to wait for."""

    def show(page: Page) -> object:
        page.one(".wd-empty")
        page.ask(question)
        return page.one(wanted)

    return show


def streaming(page: Page) -> None:
    page.site.desk.held_at = 26
    asked(QUESTION, "#wd-live .wd-text")(page)
    until(lambda: page.text("#wd-live .wd-text").count(" ") > 24)


def with_source(page: Page) -> None:
    asked(QUESTION)(page)
    page.press("#wd-transcript .wd-ref")
    time.sleep(0.5)  # it scrolls


def judged(page: Page) -> None:
    asked(QUESTION)(page)
    page.press("#wd-transcript [data-value=down]")


def long_conversation(page: Page) -> None:
    asked("Is this the first of many?")(page)
    for number in range(2, 5):
        page.ask(f"Question {number}: how long do I have to send an item back?")
        until(lambda number=number: len(page.all("#wd-transcript .wd-question")) == number)


def with_list(page: Page) -> None:
    """On a phone it is closed at first."""
    until(lambda: page.script("return document.querySelector('#wd-list li') !== null"))
    if not page.all("#wd-list li"):
        page.press("[data-act=menu]")
    page.one("#wd-list li")


def with_menu(page: Page) -> None:
    with_list(page)
    page.script("document.querySelector('.wd-more').open = true")


def deleted(page: Page) -> None:
    with_list(page)
    page.script("document.querySelector('.wd-delete').click()")
    page.one(".wd-undo")


def talked(page: Page, state: HandoffState) -> None:
    """A customer who asked for a person, and how that went on."""
    asked("weather in Galway?")(page)
    page.press("[data-person=ask]")
    page.one("[data-person=end]")
    desk = page.site.desk
    conversation, handoff = list(desk.handed.items())[-1]
    desk.handed[conversation] = replace(handoff, state=state, agent="Ann", fresh=True)
    desk.say("Ann here. Which lamp is it, please?", conversation, desk.first, "agent", "Ann")
    page.driver.refresh()
    page.one(".wd-agent")


def many(page: Page) -> None:
    """A thousand conversations, of which the list shows the latest."""
    desk, first = page.site.desk, page.site.desk.first
    turns = (turn for one in desk.conversations(first) for turn in desk.turns(one.id, first))
    answer = next(turn.answer for turn in turns if turn.answer is not None)
    for number in range(1000):
        when = datetime.now(UTC) - timedelta(hours=number)
        desk.store(f"Question {number} of a busy customer", replace(answer, conversation_id=desk.new_id()), when, first)
    page.driver.refresh()
    with_list(page)
    until(lambda: len(page.all("#wd-list li")) > 20)


def reading(page: Page) -> None:
    """A new desk that reads its documents."""
    desk = page.site.desk
    desk.read = DocumentsRead(read=12, total=48, is_most=True)
    page.driver.refresh()
    until(lambda: any("12" in one.text for one in page.all(".wd-notice")))
    desk.read = None


def starting(page: Page) -> None:
    """The page of a desk that is not open yet."""
    opening = Opening(page.site.desk.missing)
    site = Served(opening)
    try:
        page.driver.get(site.url)
        page.one("main")
        page.driver.execute_cdp_cmd("Page.stopLoading", {})
    finally:
        site.close()


def looked_up(page: Page) -> None:
    """A dialogue of a look-up: asked, confirmed, shown, and another one that waits for a choice."""
    asked(QUESTION)(page)
    desk, first = page.site.desk, page.site.desk.streams[-1].answer
    link = "https://track.shop.example/AB-123456"
    dialogue = [
        ("Where is AB-123456?", "Which e-mail address did you order with?", {"state": "asking", "asks": "email"}),
        ("•••", "Is this right? AB-123456, •••", {"state": "confirming", "choices": ("Yes", "No", "Cancel")}),
        (
            "Yes",
            f"Order AB-123456 is on its way. Delivery day: 1 December 2026. {link}",
            {"state": "shown", "outcome": "found", "links": (link,)},
        ),
        (
            "And any news about my kettle?",
            "What shall I look up?",
            {"state": "offered", "choices": ("Order status", "Refund status")},
        ),
    ]
    for question, says, state in dialogue:
        lookup = LookUpTurn(name="order-status", **state)
        answer = replace(first, answer=says, outcome="lookup", citations=(), lookup=lookup)
        desk.store(question, replace(answer, message_id=desk.new_id()), datetime.now(UTC), desk.first)
    page.driver.refresh()
    page.one(".wd-choices")
    page.script("document.querySelector('.wd-choices').scrollIntoView({block: 'end'})")


CHAT: dict[str, Callable[[Page], object]] = {
    "chat-streaming": streaming,
    "chat-source": with_source,
    "chat-judged": judged,
    "chat-long": long_conversation,
    "chat-menu": with_menu,
    "chat-deleted": deleted,
    "chat-agent": lambda page: talked(page, "taken"),
    "chat-agent-left": lambda page: talked(page, "closed"),
    "chat-starting": starting,
    "chat-reading": reading,
    "chat-thousand": many,
    "chat-lookup": looked_up,
}
WIDTHS = {"": 1280, "-phone": 390}


def take(page: Page, name: str, path: str, show: Callable[[Page], object], language: str = "en") -> None:
    """Show a page on a desktop and a phone, light and dark, and save the images."""
    page.site.desk.seeded = "unused" not in name
    page.driver.execute_cdp_cmd("Network.setUserAgentOverride", {"userAgent": AGENT, "acceptLanguage": language})
    for of, width in WIDTHS.items():
        look(page.driver, "light", width)
        if path == "/" or width == WIDTHS[""]:  # the chat on a phone has its list elsewhere
            page.script("sessionStorage.clear(); localStorage.clear()")  # the widget would go on with its conversation
            page.go(path.format(conversation=page.site.conversation))
            show(page)
            page.driver.execute_script(STILL)
        for prefers, after in (("light", ""), ("dark", "-dark")):
            look(page.driver, prefers, width)
            page.driver.execute_script(GO_DARK, prefers == "dark")
            time.sleep(0.3)  # it is drawn
            page.driver.save_screenshot(
                str(FOLDER / f"{name}{of}{after}{'' if language == 'en' else '-' + language}.png")
            )
        page.site.desk.held_at = None
    print(name, flush=True)


def main() -> None:
    """Take all, or those whose names begin with an argument; in the language that `LANG_PAGES` names."""
    wanted, language = tuple(sys.argv[1:]) or ("",), os.environ.get("LANG_PAGES", "en")
    pacing.IN_A_ROW = event_gate.EVENTS_IN_A_ROW = event_gate.MOST_PAGES = 10**6  # one browser opens all pages
    with tempfile.TemporaryDirectory() as folder:
        site = filled(Path(folder), show_technical=False)
        browser = Browser(Path(folder) / "chromium")
        browser.sign_in(site)
        page = Page(browser.driver, site)
        states = {name: ("/", show) for name, show in CHAT.items()}
        for name, (path, ready) in PAGES.items():
            states[f"{'chat' if path == '/' else 'admin'}-{name}"] = (
                path,
                lambda page, ready=ready: ready(page.driver),
            )
        try:
            for name, (path, show) in states.items():
                if name.startswith(wanted):
                    take(page, name, path, show, language)
        finally:
            browser.driver.quit()
            site.close()


if __name__ == "__main__":
    main()
