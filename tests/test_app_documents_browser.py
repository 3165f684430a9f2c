"""The documents' page in a browser: what it says of uploads, folders and collections, and that it redraws itself."""

from typing import Any

import pytest
from browser import NEEDS_BROWSER, Site, until
from fake_desk import fake_document
from selenium.webdriver.common.by import By
from selenium.webdriver.support.expected_conditions import alert_is_present
from selenium.webdriver.support.wait import WebDriverWait

pytestmark = NEEDS_BROWSER


OPEN = "for (const one of document.querySelectorAll('details.wd-panel')) one.open = true"


@pytest.fixture(scope="module")
def site(chromium, tmp_path_factory):
    site = Site(tmp_path_factory.mktemp("desk"))
    yield site
    chromium.forget()
    site.close()


@pytest.fixture
def page(chromium, site):
    """The page of a desk with one document in a collection and one outside."""
    site.desk.listed.clear()
    site.desk.synced.folders.clear()
    for number, (name, collection) in enumerate((("returns", "shop"), ("plain", "")), start=1):
        path = f"/help/{name}.md"
        site.desk.listed[path] = fake_document(path, f"About {name}", collection=collection, number=number)
    chromium.sign_in(site)
    chromium.driver.get(site.url + "/admin/documents")
    chromium.driver.execute_script(OPEN)
    yield chromium.driver
    chromium.leave()


def text(page: Any, selector: str) -> str:
    """What an element says; nothing while it is not there or being redrawn."""
    return "".join(one.text for one in page.find_elements(By.CSS_SELECTOR, selector)[:1])


def click(page: Any, selector: str) -> None:
    """In one step: the page may redraw itself between finding and clicking."""
    script = "const one = document.querySelector(arguments[0]); if (one) setTimeout(() => one.click()); return !!one"
    until(lambda: page.execute_script(script, selector))


def confirm(page: Any) -> str:
    alert = WebDriverWait(page, 30).until(alert_is_present())
    asked = str(alert.text)
    alert.accept()
    return asked


def test_uploads_say_what_came_of_each_file_and_stay_said(page, site, tmp_path):
    for name, content in (("cards.md", "# Cards"), ("unreadable.md", "x"), ("large.txt", "x" * ((20 << 20) + 1))):
        (tmp_path / name).write_text(content)
    files = "\n".join(str(tmp_path / name) for name in ("unreadable.md", "cards.md", "large.txt"))
    page.find_element(By.ID, "files").send_keys(files)
    page.find_element(By.ID, "collection").send_keys("shop")
    page.find_element(By.CSS_SELECTOR, "#upload button").click()
    until(lambda: "1 of 3 files were added." in text(page, "#uploaded"))
    lines = text(page, "#progress").splitlines()
    assert lines == [
        "unreadable.md: no text in it",
        "cards.md: added, 3 passages",
        "large.txt: The file is larger than 20 MB. Split it, or reduce its size.",
    ]
    until(lambda: "/desk/uploads/cards.md" in text(page, "#documents"))
    assert "3 documents" in text(page, ".wd-facts")
    assert "shop 2" in text(page, "#listed .wd-chips")
    assert list(site.desk.uploads) == ["unreadable.md", "cards.md"], "the large one was not sent"
    assert lines == text(page, "#progress").splitlines()


def test_a_folder_is_added_changed_read_and_ended(page, site):
    page.find_element(By.ID, "folder").send_keys("/srv/mixed")
    page.find_element(By.CSS_SELECTOR, "#synchronise button").click()
    until(lambda: "0 added, 1 changed, 2 deleted, 7 unchanged" in text(page, "#synchronised"))
    until(lambda: "every hour" in text(page, "#folders"))
    assert "Skipped or incomplete files: 2" in text(page, "#synchronised")
    until(lambda: page.execute_script("return !document.getElementById('folder-form').open"))
    click(page, "[data-act=change]")
    until(lambda: page.execute_script("return document.getElementById('folder-form').open"))
    every = page.find_element(By.ID, "every")
    every.clear()
    every.send_keys("2")
    page.find_element(By.CSS_SELECTOR, "#synchronise button").click()
    until(lambda: "every 2 hours" in text(page, "#folders"))
    until(lambda: "0 added" in text(page, "#synchronised"))
    before = len(site.desk.synced.said)
    click(page, "[data-act=run]")
    until(lambda: site.desk.synced.said[before:] == [("admin", "run", "/srv/mixed")])
    until(lambda: "0 added" in text(page, "#synchronised"))
    click(page, "[data-act=end]")
    assert "Its documents stay" in confirm(page)
    until(lambda: not text(page, "#folders"))


def test_a_folder_that_is_not_there_is_said_at_once_and_later(page):
    page.find_element(By.ID, "folder").send_keys("/mnt/gone")
    page.find_element(By.CSS_SELECTOR, "#synchronise button").click()
    until(lambda: "There is no such folder" in text(page, "#synchronised"))
    until(lambda: "Failed" in text(page, "#folders .wd-error"))


def test_a_website_is_tried_added_and_stopped(page, site):
    shown = "return !document.getElementById('site').hidden && !document.getElementById('try').hidden"
    assert not page.execute_script(shown)
    page.find_element(By.ID, "folder").send_keys("https://held.example.com")
    assert page.execute_script(shown)
    page.find_element(By.ID, "exclude").send_keys("/blog/*\n/shop/*")
    click(page, "#try")
    until(lambda: "Forbidden by robots.txt: 2" in text(page, "#tried"))
    assert "https://help.example.com/orders (status 401)" in text(page, "#tried")
    click(page, "#synchronise [type=submit]")
    until(lambda: "Many pages are missing" in text(page, "#synchronised"))
    until(lambda: "every day" in text(page, "#folders"))
    assert site.desk.synced.folders["https://held.example.com"].site.exclude == ("/blog/*", "/shop/*")
    assert not page.execute_script(shown)
    click(page, "[data-act=lose]")
    assert "whose pages are gone?" in confirm(page)
    until(lambda: "3 added" in text(page, "#synchronised"))
    site.desk.synced.in_progress["https://held.example.com"] = (3, 9)
    page.refresh()
    until(lambda: "Being read now: 3 of 9." in text(page, "#folders"))
    click(page, "[data-act=stop]")
    until(lambda: "the run stops soon" in text(page, "#synchronised"))
    site.desk.synced.in_progress.clear()


def test_a_collection_is_forgotten_after_a_question(page, site):
    click(page, ".wd-chips [href$='collection=shop']")
    click(page, "[data-act=forget-collection][data-collection=shop]")
    assert "Delete every document of “shop” (1)?" in confirm(page)
    until(lambda: "All documents of “shop” are deleted (1)" in text(page, "#deleted"))
    until(lambda: "shop" not in text(page, "#documents"))
    assert list(site.desk.listed) == ["/help/plain.md"]


def test_forgetting_a_file_of_a_folder_says_that_it_comes_back(page, site):
    site.desk.synced.save("/help", "", 60, who="ann")
    page.refresh()
    click(page, "[data-act=forget]")
    assert "the next run adds it again" in confirm(page)
    until(lambda: "/help/plain.md" not in text(page, "#documents"))


def test_a_document_is_opened_and_left_again(page):
    click(page, "#documents a")
    until(lambda: "encoded, in: Model memory" in text(page, ".wd-passage"))
    click(page, "main a")
    until(lambda: text(page, "#documents"))
