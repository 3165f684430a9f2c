"""Every page with axe, which looks for faults of accessibility: light, dark, and on a phone. Needs Chromium.

No finding that axe calls serious or critical is allowed, and nothing may be wider than the screen. A new page is a line
in PAGES. Not covered: what no program can see; the keyboard is in the tests of the browser.
"""

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from browser import NEEDS_BROWSER, WRITE, Elements, Site, until
from filled_site import fill

from app.web.admin_pages import PAGES as ADMIN_PAGES

pytestmark = NEEDS_BROWSER
AXE = files(pytest.importorskip("axe_core_python")).joinpath("axe.min.js").read_text(encoding="utf-8")
LOOKS = {"light": ("light", 1280), "phone": ("light", 390), "dark": ("dark", 1280)}
"""What the reader prefers, and the width of the window in pixels."""
GRADIO = {("label-title-only", ".search-input"): "the table's search field has its name in `title` only"}
"""What axe finds in Gradio's own markup, which we cannot change: the rule, the place and the reason."""
RUN = """
const [rules, done] = arguments;
const options = {resultTypes: ["violations"], preload: false, ...(rules.length && {runOnly: rules})};
axe.run(options).then((found) => done(found.violations), (error) => done(String(error)));
"""
RULES = {
    "light": (),
    "phone": ("scrollable-region-focusable", "aria-hidden-focus"),
    "dark": ("color-contrast", "link-in-text-block"),
}
"""What axe looks for; nothing: all. On a phone parts are hidden or scroll, in the dark colours differ."""
STILL = """
const sheet = new CSSStyleSheet();
sheet.replaceSync("*, ::before, ::after { transition: none !important; animation: none !important; }");
document.adoptedStyleSheets = [sheet];
"""
"""Colours that are on their way from one to another would be taken for what is shown."""
FEW = """
for (const list of document.querySelectorAll("tbody, .wd-plot svg"))
  for (const one of [...list.children].slice(8)) one.remove();
"""
"""Rows are alike, and axe looks at each for as long as at the first: eight of each table are enough."""
GO_DARK = "if (document.querySelector('.gradio-container')) document.body.classList.toggle('dark', arguments[0])"
"""Gradio's pages read only when they are opened what the reader prefers, and keep it in this class."""


def see(driver: Any, selector: str) -> Any:
    return Elements(driver).one(selector)


def asked(driver: Any) -> None:
    see(driver, ".wd-empty")
    see(driver, "textarea").send_keys("Can I return a lamp?\n")
    see(driver, "#wd-transcript .wd-ref")


def opened(selector: str) -> Callable[[Any], None]:
    return lambda driver: see(driver, selector)


def unfolded(selector: str) -> Callable[[Any], object]:

    def ready(driver: Any) -> None:
        see(driver, selector)
        driver.execute_script(f"for (const one of document.querySelectorAll('{selector}')) one.open = true")

    return ready


def confirming(driver: Any) -> None:
    """A change that costs something, asked about before it is saved."""
    see(driver, ".wd-setting")
    driver.execute_script(
        "const field = document.querySelector('[name=neighbours]'); field.value = 2; field.form.submit()"
    )
    see(driver, "[role=alertdialog]")


def with_faq(driver: Any) -> None:
    """Once the box was drawn anew, which happens a moment after the page was opened."""
    until(
        lambda: (
            driver.execute_script(WRITE, see(driver, "#wd-answer"), "/galway")
            or driver.find_elements("css selector", "#wd-faq button")
        )
    )


def answered(driver: Any) -> None:
    """Every kind of answer and an error, with the sources and the numbers of reuse open."""
    see(driver, ".wd-empty")
    for number, question in enumerate(("perhaps", "Can I return a lamp?", "weather"), start=1):
        see(driver, "textarea").send_keys(question + "\n")
        until(lambda number=number: len(driver.find_elements("css selector", "#wd-transcript .wd-bubble")) == number)
    see(driver, "textarea").send_keys("crash\n")
    see(driver, "#wd-live .wd-error")
    driver.execute_script("for (const one of document.querySelectorAll('.wd-citation, .wd-reuse')) one.open = true")


PAGES: dict[str, tuple[str, Callable[[Any], object]]] = {
    "empty": ("/", opened(".wd-examples button")),
    "answer": ("/", answered),
    "login": ("/admin/login", opened("#password")),
    "dashboard": ("/admin/", opened(".wd-tile")),
    "dashboard-unused": ("/admin/", opened(".wd-welcome")),
    "engine": ("/admin/engine", unfolded(".wd-chart:first-child details")),
    "documents": ("/admin/documents?collection=", unfolded("details")),
    "document": ("/admin/documents/1", opened(".wd-passage")),
    "queue": ("/admin/queue", unfolded("#wd-rows details")),
    "waiting-customer": ("/admin/queue/1", opened("#wd-turns article")),
    "left-customer": ("/admin/queue/2", opened("#wd-turns article")),
    "taken-customer": ("/admin/queue/3", with_faq),
    "closed-customer": ("/admin/queue/4", opened("#wd-turns article")),
    "quality": ("/admin/quality", unfolded(".wd-group")),
    "faq": ("/admin/faq", opened("#documents")),
    "conversations": ("/admin/conversations", opened("#documents")),
    "transcript": ("/admin/conversations/{conversation}", unfolded(".wd-reuse")),
    "search": ("/admin/search?question=lamp", unfolded("#decision details")),
    "modules": ("/admin/modules", opened(".wd-modules")),
    "memory": ("/admin/modules/memory", opened(".wd-table")),
    "settings": ("/admin/settings", confirming),
    "accounts": ("/admin/accounts", opened(".wd-table")),
    "audit": ("/admin/audit", opened(".wd-table")),
    "lookups": ("/admin/lookups", opened(".wd-table")),
    "api": ("/admin/api", unfolded(".wd-call:nth-of-type(-n + 4)")),
    "widget": ("/widget", asked),
}
"""Each page: its path, and what to do until it is there. unused: of a desk that has answered nothing."""


def test_every_admin_page_is_looked_at():
    assert {path for path, _ in ADMIN_PAGES} <= {path.partition("?")[0] for path, _ in PAGES.values()}


def filled(folder: Path, **settings: Any) -> Site:
    site = Site(folder, widget_origins=("https://shop.example",), **settings)
    for synced in ("/srv/help", "/srv/mixed", "/mnt/gone"):
        site.desk.synced.save(synced, "", 60, who="ann")
        site.desk.synced.run(synced, who="ann")
    site.conversation = fill(site)
    return site


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    site = filled(tmp_path_factory.mktemp("desk"))
    yield site
    site.close()


@pytest.fixture(scope="module")
def driver(chromium, site):
    chromium.sign_in(site)
    yield chromium.driver
    chromium.forget()


def look(driver: Any, prefers: str, width: int) -> None:
    size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [
        {"name": "prefers-color-scheme", "value": prefers},
        {"name": "prefers-reduced-motion", "value": "reduce"},
    ]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def findings(driver: Any, rules: tuple[str, ...]) -> list[str]:
    """What axe calls serious or critical: rule, place and reason of each."""
    if driver.execute_script("return typeof axe") == "undefined":
        driver.execute_script(AXE)
    found = driver.execute_async_script(RUN, rules)
    assert isinstance(found, list), found
    serious = [one for one in found if one["impact"] in ("serious", "critical")]
    places = [(one["id"], node["target"][-1], node["failureSummary"]) for one in serious for node in one["nodes"]]
    return [f"{rule} at {place}: {words}" for rule, place, words in places if (rule, place) not in GRADIO]


@pytest.mark.parametrize("page", PAGES)
def test_no_serious_finding_and_nothing_wider_than_the_screen(driver, site, page):
    path, ready = PAGES[page]
    address = site.url + path.format(conversation=site.conversation)
    site.desk.seeded = "unused" not in page
    for name, (prefers, width) in LOOKS.items():
        look(driver, prefers, width)
        if name == "light":
            if driver.current_url != address:  # the chat's page is opened once for both
                driver.get(address)
            ready(driver)
            driver.execute_script(STILL + FEW)
        driver.execute_script(GO_DARK, prefers == "dark")
        assert findings(driver, RULES[name]) == [], name
        assert driver.execute_script("return document.documentElement.scrollWidth") <= width, name
