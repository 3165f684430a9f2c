"""The admin's page of documents over HTTP: collections, synchronised folders, one document's passages, and what of the
list is shown. Uploads and forgetting one document are in test_app_document_routes.
"""

import json
import os
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import pytest
from desk_site import HTML
from desks import finish, small_desk, write_pages
from fake_desk import fake_document
from fastapi.testclient import TestClient

from app.domain.documents import PassageState, SiteOptions, SyncedFolder
from app.domain.words import interval, until
from app.storage.people import Audit
from app.web.document_routes import PASSAGES_SHOWN as PASSAGES_SHOWN
from app.web.document_routes import SHOWN, saved_file

ZH = {"accept-language": "zh-CN"}
NOW = datetime(2026, 3, 12, 10, 42, 30, tzinfo=UTC)


@pytest.fixture
def site(site):
    """A site with two documents in collections and one without."""
    desk = site.desk
    desk.listed.clear()
    desk.synced.folders.clear()
    desk.synced.said.clear()
    desk.synced.in_progress.clear()
    for number, (name, collection) in enumerate((("returns", "shop"), ("cards", "club"), ("plain", "")), start=1):
        path = f"/help/{name}.md"
        desk.listed[path] = fake_document(path, f"About {name}", collection=collection, number=number)
    return site


@pytest.fixture
def admin(site):
    return site.admin()


def send(client: TestClient, path: str, body: dict[str, object], **headers: str) -> dict[str, Any]:
    response = client.post(f"/admin/documents/{path}", json=body, headers=headers)
    assert response.status_code == 200, response.text
    last: dict[str, Any] = json.loads(response.text.splitlines()[-1])
    return last


def listed(page: str) -> list[str]:
    return re.findall(r'<a href="/admin/documents/\d+">([^<]+)</a>', page)


def test_collections_are_listed_with_how_much_is_in_them(admin):
    page = admin.get("/admin/documents").text
    assert re.findall(r'<a href="[^"]+collection=[^"]*" dir="auto">([^<]+)</a>', page) == [
        *("without a collection 1", "club 1", "shop 1")
    ]
    assert "forget-collection" not in page
    chosen = admin.get("/admin/documents?collection=shop").text
    assert "3 passages · 900 tokens" in chosen
    assert chosen.count('data-act="forget-collection"') == 1
    assert re.findall(r'<option value="([^"]+)"></option>', page) == ["club", "shop"], "offered where one is named"


def test_the_list_is_of_one_collection_or_of_words(admin):
    for query, titles in (
        ("", ["About cards", "About plain", "About returns"]),
        ("?collection=", ["About plain"]),
        ("?q=ABOUT+car", ["About cards"]),
        ("?q=help/plain", ["About plain"]),
        ("?q=cards&collection=shop", []),
    ):
        page = admin.get(f"/admin/documents{query}").text
        assert listed(page) == titles
        assert ("No document was found" in page) == (not titles)


def test_a_long_list_has_pages_that_keep_the_collection(site, admin):
    for number in range(SHOWN + 5):
        path = f"/help/p{number:03}.md"
        site.desk.listed[path] = fake_document(path, f"Page {number}", collection="a&b", number=100 + number)
    first = admin.get("/admin/documents", params={"collection": "a&b", "q": "page"}).text
    assert len(listed(first)) == SHOWN
    following = unescape(re.findall(r'href="(/admin/documents\?[^"]+page=2[^"]*)"', first)[0])
    assert len(listed(admin.get(following).text)) == 5
    assert len(listed(admin.get("/admin/documents?page=99").text)) == 8, "a page that is not there is the last one"


def test_a_collection_is_forgotten_and_written_down(site, admin):
    done = send(admin, "collections/forget", {"collection": "shop"})
    assert (done["result"]["documents"], done["result"]["left"]["quotes"]) == (1, 0)
    assert sorted(site.desk.listed) == ["/help/cards.md", "/help/plain.md"]
    [written] = Audit(site.database).latest(1)
    assert (written.action, written.subject) == ("collection-forget", "shop (1)")
    again = send(admin, "collections/forget", {"collection": "shop"}, **ZH)
    assert again["error"] == {"code": "collection-unknown", "message": "该文档集中已没有文档。"}


def test_a_collection_that_comes_from_elsewhere_has_no_button(site, admin):
    site.desk.synced.save("/srv/shop", "shop", 60, who="ann")
    site.desk.listed["/desk/faq.jsonl"] = fake_document("/desk/faq.jsonl", "FAQ", collection="faq")
    pages = {name: admin.get("/admin/documents", params={"collection": name}).text for name in ("shop", "faq", "club")}
    assert [name for name, page in pages.items() if "forget-collection" in page] == ["club"]


def test_what_cannot_be_done_is_an_error_with_the_cure(admin):
    for folder, code in (("help", "sync-relative"), ("/busy", "ingestion-running")):
        error = send(admin, "folders", {"folder": folder, "every_minutes": 60})["error"]
        assert (error["code"], error["message"][-1]) == (code, ".")
    for path in ("run", "remove"):
        assert admin.post(f"/admin/documents/folders/{path}", json={}).status_code == 422
    assert admin.post("/admin/documents/folders", json={"folder": "/a", "every_minutes": "x"}).status_code == 422


def test_a_website_is_tried_added_stopped_and_its_losses_are_confirmed(site, admin):
    url, form = "https://help.example.com", {"every_minutes": 1440, "exclude": "/blog/*\n/shop/*\n", "pages": 50}
    tried = send(admin, "folders/try", {"folder": url, **form}, **ZH)["result"]
    assert [(one["words"], one["number"]) for one in tried] == [
        ("已读取", 34),
        ("robots.txt 禁止读取", 2),
        ("需要登录", 1),
    ]
    assert send(admin, "folders", {"folder": url, **form})["result"]["reasons"][1]["reason"] == "robots"
    assert site.desk.synced.folders[url].site == SiteOptions(pages=50, exclude=("/blog/*", "/shop/*"))
    page = admin.get("/admin/documents").text
    assert "Forbidden by robots.txt: 2" in page
    assert "https://help.example.com/orders (status 401)" in page
    assert 'data-act="stop"' not in page
    site.desk.synced.in_progress[url] = (34, 120)
    page = admin.get("/admin/documents").text
    assert "Being read now: 34 of 120." in page
    assert 'data-act="stop"' in page
    send(admin, "folders/stop", {"folder": url})
    held = "https://held.example.com"
    assert send(admin, "folders", {"folder": held, **form})["result"]["code"] == "sync-held"
    assert 'data-act="lose"' in admin.get("/admin/documents").text
    assert send(admin, "folders/run", {"folder": held, "accepts_losses": True})["result"]["problem"] == ""
    assert 'data-act="lose"' not in admin.get("/admin/documents").text
    assert [one[1] for one in site.desk.synced.said] == ["try", "save", "run", "stop", "save", "run", "run"]


def test_markup_in_names_of_folders_stays_text(site, admin):
    hostile = """/srv/"><script>window.owned=1</script>\u202e"""
    site.desk.synced.folders[hostile] = SyncedFolder(folder=hostile, collection=hostile, every_minutes=60, next_run=NOW)
    page = admin.get("/admin/documents").text
    assert "<script>window" not in page
    assert "\u202e" not in page


def test_intervals_and_times_to_come_in_words():
    for minutes, words, when in (
        (1, "every minute", "in 1 min"),
        (90, "every 90 minutes", "in 2 h"),
        (60, "every hour", "in 1 h"),
        (1440, "every day", "in 24 h"),
        (4320, "every 3 days", "in 3 days"),
    ):
        assert (interval(minutes), until(NOW + timedelta(minutes=minutes), NOW)) == (words, when)
    assert until(NOW - timedelta(minutes=1), NOW) == "now"


def test_a_document_shows_its_passages_in_order(admin):
    page = admin.get("/admin/documents/1", headers=HTML)
    assert (page.status_code, page.headers["cache-control"]) == (200, "no-store")
    headings = [f"About returns &gt; Section {i} ({i})" for i in (1, 2, 3)]
    assert re.findall(r"<h3 [^>]+>([^<]+)</h3>", page.text) == headings
    for expected in ("300 tokens", "encoded, in: Model memory", "in: Disk", "not encoded yet"):
        assert expected in page.text
    assert page.text.count('href="/admin/modules?q=') == 2, "where there is something to look after"


def test_an_unknown_document_is_said(admin):
    page = admin.get("/admin/documents/77")
    assert page.status_code == 404
    assert "no longer exists" in page.text
    assert admin.get("/admin/documents/77/file").status_code == 404
    assert admin.get("/admin/documents/1/file").status_code == 404, "its file is not there"


def test_a_long_document_has_pages_and_hostile_text_stays_text(site, admin):
    path = "/help/hostile.md"
    document = fake_document(path, "<img src=x>", number=9)
    site.desk.listed[path] = replace(document, num_passages=2 * PASSAGES_SHOWN + 1)
    first, last = (admin.get(f"/admin/documents/9?page={page}").text for page in (1, 99))
    assert (first.count("<article"), last.count("<article")) == (PASSAGES_SHOWN, 1)
    assert "1 of 3" in first
    for bad in ("<img", "<script>window", "<iframe", "\u202e", 'href="javascript'):
        assert bad not in first


def test_only_a_page_of_the_web_is_linked(site, admin):
    for number, (url, is_linked) in enumerate((("https://help.example/a", True), ("javascript:alert(1)", False)), 20):
        path = f"/help/{number}.md"
        site.desk.listed[path] = replace(fake_document(path, "One", number=number), url=url)
        assert (f'href="{url}"' in admin.get(f"/admin/documents/{number}").text) == is_linked


def test_its_file_is_saved_and_never_opened_here(site, admin, tmp_path):
    file = tmp_path / "page.html"
    file.write_text("<script>window.owned=1</script>")
    site.desk.listed[str(file)] = fake_document(str(file), "Page", number=30)
    assert "/admin/documents/30/file" in admin.get("/admin/documents/30").text
    saved = admin.get("/admin/documents/30/file")
    assert saved.headers["content-type"] == "application/octet-stream"
    assert saved.headers["content-disposition"].startswith("attachment")


@pytest.mark.parametrize("place", ["file", "folder"])
def test_a_link_that_took_the_place_of_a_file_is_not_followed(site, admin, tmp_path, place):
    secret, file = tmp_path / "private" / "page.html", tmp_path / "help" / "page.html"
    for one in (secret, file):
        one.parent.mkdir()
        one.write_text(str(one))
    site.desk.listed[str(file)] = fake_document(str(file), "Page", number=31)
    assert admin.get("/admin/documents/31/file").text == str(file)
    file.unlink()
    if place == "folder":
        file.parent.rmdir()
    link = file if place == "file" else file.parent
    link.symlink_to(secret if place == "file" else secret.parent)
    assert admin.get("/admin/documents/31/file").status_code == 404
    assert saved_file(file).status_code == 404, "as customers get it"


def test_a_pipe_is_no_file_and_nobody_waits_for_it(tmp_path):
    os.mkfifo(tmp_path / "page.html")
    assert saved_file(tmp_path / "page.html").status_code == 404


def test_where_the_model_has_each_passage(tmp_path):
    """A real desk: read, taken out of memory, asked about, and not read yet."""
    pages = write_pages(tmp_path / "pages")
    with small_desk(tmp_path / "desk", pages=pages, neighbours=0) as desk:

        def state(name: str) -> PassageState:
            (one,) = desk.passages(str(pages / name), 0, 10)
            return one

        finish(desk, "Can gift cards be returned?")
        used = state("gift-cards.md")
        assert (used.tier, used.last_used is not None) == ("device", True)
        assert "cannot be returned" in used.passage.text
        key = state("stores.txt").passage.module_key
        assert key is not None
        desk.module_care.evict(key)
        assert state("stores.txt").tier == "disk"
        (pages / "new.md").write_text("# New\n\nSomething new.\n")
        desk.ingest([pages / "new.md"], warm=False)
        assert (state("new.md").tier, state("new.md").last_used) == ("none", None)
        assert desk.passages(str(pages / "new.md"), 1, 10) == []
        assert {one.name: one.tokens > 0 for one in desk.collections()} == {"": True}
