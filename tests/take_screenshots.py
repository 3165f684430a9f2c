"""`make screenshots`: every state of every page as an image in docs/images, with a desk of fixed answers and Chromium.

Look at them before a release. Chinese pages need a font with Chinese characters (Debian: fonts-noto-cjk). A new state
is a line of STATES.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from browser import Served, Site, start_browser, until
from filled_site import fill
from test_app_browser import Page

from app.domain.answers import HandoffState
from app.storage.people import ADMIN
from app.web import event_gate, pacing
from app.web.admin_pages import PAGES
from app.web.middleware import Opening

FOLDER = Path(__file__).parent.parent / "docs" / "images"
WIDE, PHONE = (1280, 900), (390, 844)
QUESTION = "Can I send a lamp back?"


@dataclass(frozen=True, kw_only=True)
class State:
    """One image. show: what is done on the page until it can be taken; path: where it begins."""

    name: str
    path: str = "/"
    show: Callable[[Page], object] = lambda page: page.one("body")
    size: tuple[int, int] = WIDE
    is_dark: bool = False
    language: str = "en"


def asked(question: str, wanted: str = "#wd-transcript .wd-actions") -> Callable[[Page], object]:
    """A question, and something to wait for."""

    def show(page: Page) -> object:
        page.one(".wd-empty")
        page.ask(question)
        return page.one(wanted)

    return show


def streaming(page: Page) -> None:
    page.site.desk.piece_s = 0.1
    asked(QUESTION, "#wd-live .wd-text")(page)
    until(lambda: page.text("#wd-live .wd-text").count(" ") > 25)
    page.site.desk.piece_s = 0.01


def with_source(page: Page) -> None:
    asked(QUESTION)(page)
    page.press("#wd-transcript .wd-ref")
    time.sleep(0.5)  # it scrolls


def long_conversation(page: Page) -> None:
    asked("Is this the first of many?")(page)
    for number in range(2, 5):
        page.ask(f"Question {number}: how long do I have to send an item back?")
        until(lambda number=number: len(page.all("#wd-transcript .wd-question")) == number)


def with_menu(page: Page) -> None:
    page.one("#wd-list li")
    page.script("document.querySelector('.wd-more').open = true")


def deleted(page: Page) -> None:
    page.one("#wd-list li")
    page.script("document.querySelector('.wd-delete').click()")
    page.one(".wd-undo")


def with_person(page: Page) -> None:
    asked("weather in Galway?")(page)
    page.press("[data-person=ask]")
    page.one("[data-person=end]")


def many(page: Page) -> None:
    """A thousand conversations, of which the list shows the latest."""
    desk, first = page.site.desk, page.site.desk.first
    answer = desk.turns(desk.conversations(first)[0].id, first)[-1].answer
    assert answer is not None
    for number in range(1000):
        when = datetime.now(UTC) - timedelta(hours=number)
        desk.store(f"Question {number} of a busy customer", replace(answer, conversation_id=desk.new_id()), when, first)
    page.driver.refresh()
    until(lambda: len(page.all("#wd-list li")) > 20)


OF_THE_LIST = (with_menu, deleted, many)
"""These show the list of conversations, which a phone hides."""


def talked(page: Page, state: HandoffState, agent: str) -> None:
    """A customer who asked for a person, and how that went on."""
    with_person(page)
    desk = page.site.desk
    conversation, handoff = list(desk.handed.items())[-1]
    desk.handed[conversation] = replace(handoff, state=state, agent=agent, fresh=True)
    desk.say("Ann here. Which lamp is it, please?", conversation, desk.first, "agent", agent)
    page.driver.refresh()
    page.one(".wd-agent")


def in_widget(page: Page) -> None:
    """It goes on with the conversation that it had."""
    until(lambda: page.all(".wd-examples button, #wd-transcript .wd-ref"))
    if page.all(".wd-examples button"):
        page.one("textarea").send_keys(QUESTION + "\n")
    page.one("#wd-transcript .wd-ref")


def refused(page: Page) -> None:
    signed_in(page)
    page.go("/admin/no-such-page")
    page.one("body")


def confirming(page: Page) -> None:
    admin("/admin/settings", ".wd-setting")(page)
    page.script("const one = document.querySelector('[name=neighbours]'); one.value = 2; one.form.submit()")
    page.one("[role=alertdialog]")


def grouped(page: Page) -> None:
    admin("/admin/quality", ".wd-group")(page)
    page.script("document.querySelector('.wd-group').open = true")


def saved(page: Page) -> None:
    admin("/admin/", "#wd-savings section, #wd-savings div")(page)
    until(lambda: page.script("return document.querySelector('#wd-savings').innerText.length > 50"))
    page.script("document.querySelector('#wd-savings').scrollIntoView()")


def starting(page: Page) -> None:
    """The page of a desk that is not open yet."""
    opening = Opening(page.site.desk.missing)
    opening.report("embedding", 64, 166)
    site = Served(opening)
    try:
        page.driver.get(site.url)
        page.one("main")
        page.driver.execute_cdp_cmd("Page.stopLoading", {})
    finally:
        site.close()


def signed_in(page: Page) -> None:
    page.go("/admin/queue")  # leads to the form, if that is needed
    if page.all("#password"):
        page.one("#name").clear()
        page.one("#name").send_keys(ADMIN)
        page.one("#password").send_keys(page.site.password + "\n")
        until(lambda: not page.all("#password"))


def admin(path: str, wanted: str) -> Callable[[Page], object]:
    def show(page: Page) -> object:
        signed_in(page)
        page.go(path)
        return page.one(wanted)

    return show


CHAT = (
    State(name="chat-empty", show=lambda page: page.one(".wd-examples")),
    State(name="chat-streaming", show=streaming),
    State(name="chat-answered", show=asked(QUESTION)),
    State(name="chat-source", show=with_source),
    State(name="chat-unsure", show=asked("perhaps I can send it back?")),
    State(name="chat-nothing", show=asked("weather in Galway?")),
    State(name="chat-error", show=asked("please break", ".wd-error")),
    State(name="chat-long", show=long_conversation),
    State(name="chat-menu", show=with_menu),
    State(name="chat-deleted", show=deleted),
    State(name="chat-person", show=with_person),
    State(name="chat-agent", show=lambda page: talked(page, "taken", "Ann")),
    State(name="chat-agent-left", show=lambda page: talked(page, "closed", "Ann")),
    State(name="widget", path="/widget", show=in_widget, size=(400, 640)),
    State(name="starting", show=starting),
    State(name="login", path="/admin/login", show=lambda page: page.one("#password")),
)
ADMIN_PAGES = tuple(
    State(
        name=f"admin-{path.removeprefix('/admin/') or 'dashboard'}",
        show=admin(path, ".wd-tile" if path == "/admin/" else "main"),
    )
    for path, _ in PAGES
)
MORE_ADMIN = (
    State(name="admin-quality-open", show=grouped),
    State(name="admin-search-found", show=admin("/admin/search?question=lamp", "#decision")),
    State(name="admin-memory", show=admin("/admin/modules/memory", ".wd-table")),
    State(name="admin-settings-asking", show=confirming),
    State(name="admin-savings", show=saved),
    State(name="admin-case", show=admin("/admin/queue/1", "#wd-turns article")),
    State(name="admin-passages", show=admin("/admin/documents/1", ".wd-passage")),
    State(name="admin-refused", show=refused),
)
STATES = (*CHAT, *ADMIN_PAGES, *MORE_ADMIN, State(name="chat-thousand", show=many))


def variants(state: State) -> list[State]:
    """A state as it is, dark, on a phone, and in Chinese."""
    found = [
        state,
        replace(state, name=f"{state.name}-dark", is_dark=True),
        replace(state, name=f"{state.name}-zh", language="zh-CN"),
    ]
    return found if state.show in OF_THE_LIST else [*found, replace(state, name=f"{state.name}-phone", size=PHONE)]


def take(page: Page, state: State) -> None:
    """Show a state and save it."""
    width, height = state.size
    run = page.driver.execute_cdp_cmd
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    run("Emulation.setDeviceMetricsOverride", size)
    scheme = "dark" if state.is_dark else "light"
    run("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
    agent = page.script("return navigator.userAgent")
    run("Network.setUserAgentOverride", {"userAgent": agent, "acceptLanguage": state.language})
    page.go(state.path)
    state.show(page)
    time.sleep(0.3)  # transitions
    page.driver.save_screenshot(str(FOLDER / f"{state.name}.png"))


def main() -> None:
    """Take all, or those whose names begin with an argument."""
    wanted = tuple(sys.argv[1:]) or ("",)
    pacing.IN_A_ROW = event_gate.EVENTS_IN_A_ROW = event_gate.MOST_PAGES = 10**6  # one browser opens all pages
    with tempfile.TemporaryDirectory() as folder:
        site = Site(Path(folder), show_technical=False, widget_origins=("https://shop.example",))
        for synced in ("/srv/help", "/srv/mixed", "/mnt/gone"):
            site.desk.synced.save(synced, "", 60, who=ADMIN)
            site.desk.synced.run(synced, who=ADMIN)
        fill(site)
        driver = start_browser(Path(folder) / "chromium")
        try:
            for state in (one for basic in STATES for one in variants(basic)):
                if state.name.startswith(wanted):
                    take(Page(driver, site), state)
                    print(state.name, flush=True)
        finally:
            driver.quit()
            site.close()


if __name__ == "__main__":
    main()
