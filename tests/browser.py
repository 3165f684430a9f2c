"""A desk served to a real browser, and the browser. For the tests that need Chromium."""

import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fake_desk import FakeDesk
from fastapi import FastAPI
from made_database import put_database
from quick_account import quick_account

from app.desk.service import Service
from app.domain.callers import Role
from app.domain.settings import Settings
from app.storage.database import open_database
from app.storage.people import Accounts, Sessions
from app.web.guard import ADMIN
from app.web.server import create_app

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
CHROMEDRIVER = shutil.which("chromedriver")
NEEDS_BROWSER = [
    pytest.mark.browser,
    pytest.mark.skipif(not (CHROMIUM and CHROMEDRIVER), reason="Chromium and chromedriver are not installed"),
]
webdriver = pytest.importorskip("selenium.webdriver")
FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,900",
]
WAIT_S = 30.0
WRITE = """
const [field, text] = arguments;
field.focus();
field.value = text;
field.dispatchEvent(new Event("input", { bubbles: true }));
"""
"""All at once: for each letter that is typed, a page draws itself anew."""
SHOWN = """
return [...document.querySelectorAll(arguments[0])].filter((one) =>
  one.checkVisibility({ visibilityProperty: true, opacityProperty: true }) && one.getBoundingClientRect().width > 0);
"""
"""In one call: to ask the driver for each element takes longer than what the page does."""


class Served:
    """An application on a port of loopback: on the same one as those before, if it is free again, so that the browser
    has Gradio's scripts already.
    """

    port = 0

    def __init__(self, application: FastAPI) -> None:
        try:
            listening = socket.create_server(("127.0.0.1", Served.port))
        except OSError:
            listening = socket.create_server(("127.0.0.1", 0))
        Served.port = listening.getsockname()[1]
        self.server = uvicorn.Server(uvicorn.Config(application, log_level="warning"))
        self.thread = threading.Thread(target=self.server.run, args=([listening],), daemon=True)
        self.thread.start()
        until(lambda: self.server.started)
        self.url = f"http://127.0.0.1:{Served.port}"

    def close(self) -> None:
        self.server.should_exit = True
        self.thread.join(timeout=10)


class Site(Served):
    """A fake desk, served. conversation: one that is stored, if the pages are filled (`filled_site`)."""

    conversation = ""
    admin = "admin"

    def __init__(self, folder: Path, **changed: Any) -> None:
        self.desk = FakeDesk(now=datetime.now(UTC))
        given = {"show_technical": True, "questions_per_minute": 1000, **changed}
        settings = Settings(data_dir=folder, **given)
        put_database(settings.database_url)
        self.database = open_database(settings.database_url)
        self.password = quick_account(Accounts(self.database), self.admin, "admin")
        super().__init__(create_app(self.desk, self.database, settings))

    def close(self) -> None:
        super().close()
        self.database.close()


class RealSite(Served):
    """A real desk, served, which Ann looks after."""

    admin = "Ann"

    def __init__(self, desk: Service, role: Role = "agent") -> None:
        self.database = desk.database
        self.password = quick_account(Accounts(desk.database), self.admin, role)
        super().__init__(create_app(desk, desk.database, desk.settings))


class Elements:
    """What a page shows. Pages are drawn again at any time: what is found may be gone when it is used."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def all(self, selector: str) -> list[Any]:
        found: list[Any] = self.driver.execute_script(SHOWN, selector)
        return found

    def one(self, selector: str) -> Any:
        return until(lambda: next(iter(self.all(selector)), None))

    def press(self, selector: str) -> None:
        until(lambda: self.one(selector).click() or True)

    def ask(self, question: str, box: str = "#wd-box textarea") -> None:
        field = self.one(box)
        self.driver.execute_script(WRITE, field, question)
        field.send_keys("\n")

    @contextmanager
    def on_a_phone(self, height: int = 844) -> Iterator[None]:
        size = {"width": 390, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        try:
            yield
        finally:
            self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


class Browser(Elements):
    """What a test does with one browser. site: where it is, if the tests say so."""

    site: Any = None

    def __init__(self, folder: Path) -> None:
        super().__init__(start_browser(folder))

    def sees(self, selector: str, text: str) -> bool:
        return bool(until(lambda: text in self.one(selector).text))

    def speak(self, language: str) -> None:
        agent = self.driver.execute_script("return navigator.userAgent")
        self.driver.execute_cdp_cmd("Network.setUserAgentOverride", {"userAgent": agent, "acceptLanguage": language})

    def sign_in(self, site: Site | RealSite) -> None:
        """As who looks after the site, without the pages that one sees then."""
        account = Accounts(site.database).named(site.admin)
        assert account is not None
        cookie = {"name": ADMIN.name, "value": Sessions(site.database).start(account), "url": site.url + ADMIN.path}
        self.driver.execute_cdp_cmd("Network.setCookie", cookie)

    def enter(self, name: str, password: str) -> None:
        """Sign in as people do, on the page of it."""
        field = self.one("#name")
        field.clear()
        field.send_keys(name)
        self.one("#password").send_keys(password + "\n")

    def leave(self) -> None:
        """Close the page: a server that ends waits for the connections of those that are open."""
        self.driver.get("about:blank")

    def forget(self) -> None:
        """As it was when it was started, for the next test."""
        self.leave()
        self.speak("en")
        for command, given in (
            ("Network.clearBrowserCookies", {}),
            (
                "Storage.clearDataForOrigin",
                {"origin": f"http://127.0.0.1:{Served.port}", "storageTypes": "local_storage"},
            ),
            ("Emulation.clearDeviceMetricsOverride", {}),
            ("Emulation.setEmulatedMedia", {"features": []}),
        ):
            self.driver.execute_cdp_cmd(command, given)
        self.problems()

    def problems(self) -> list[str]:
        return problems(self.driver)


def problems(driver: Any) -> list[str]:
    """What the browser complained about since the last look, but for requests that were cut off by leaving a page."""
    said = [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
    if any("AbortError" in message for message in said):
        said = [message for message in said if "AbortError" not in message and "errored out" not in message]
    return said


def until(found: Callable[[], Any]) -> Any:
    """Waits until `found` gives something true, through redraws."""
    from selenium.common.exceptions import (
        ElementClickInterceptedException,
        StaleElementReferenceException,
        WebDriverException,
    )

    end = time.monotonic() + WAIT_S
    while True:
        try:
            if value := found():
                return value
        except (ElementClickInterceptedException, StaleElementReferenceException):
            pass
        except WebDriverException as error:  # some elements that were redrawn are reported like this (selenium#15401)
            if "Node with given id does not belong to the document" not in str(error):
                raise
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.1)


def start_browser(folder: Path) -> Any:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(CHROMEDRIVER))
