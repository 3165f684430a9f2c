"""Websites of a desk: what a run does to its documents, and what a person decides."""

import threading

import pytest
from desks import finish, small_desk
from help_site import article, help_site, page
from local_site import LocalSite
from reading_here import ReaderHere
from refusals import one_line

from app.domain.documents import READ, SiteOptions
from app.domain.errors import DeskError
from app.domain.progress import no_progress
from app.knowledge.uploads import SyncStopped
from app.storage.people import Audit


@pytest.fixture
def site():
    with LocalSite() as site:
        yield site


@pytest.fixture
def desk(tmp_path, monkeypatch):
    monkeypatch.setattr("app.knowledge.ingest.FileReader", ReaderHere)
    monkeypatch.setattr("app.knowledge.websites.FileReader", ReaderHere)
    options = {"neighbours": 0, "private_hosts": ["127.0.0.1"], "website_pause": 0.0}
    with small_desk(tmp_path / "desk", **options) as desk:
        yield desk


def save(desk, url, **site):
    return desk.synced.save(url, "", 1440, SiteOptions(**site), who="ann").folder


def run(desk, url, progress=no_progress, **options):
    return desk.synced.run(url, progress, who="ann", **options)


def numbers(result):
    return result.added, result.changed, result.removed, result.unchanged


def paths(desk, site):
    return sorted(one.path.removeprefix(site.url()) for one in desk.documents())


def test_a_website_is_kept_in_step_and_its_pages_are_the_links_of_answers(desk, site):
    help_site(site, 12)
    url = save(desk, f"{site.url()}/")
    assert (url, desk.synced.all()[0].site.pages) == (site.url(), 500)
    assert numbers(first := run(desk, url)) == (14, 0, 0, 0)
    assert {one.reason for one in first.reasons} == {READ, "alias", "redirect", "private", "trap", "empty"}
    assert {one.url for one in desk.documents()} == {one.path for one in desk.documents()}
    assert "/a/0-parcel" in paths(desk, site)
    assert "/copy-of-0-parcel" not in paths(desk, site)
    citations = finish(desk, "What does the parcel of kind 3 cost?").citations
    assert all(one.url.startswith(f"{site.url()}/") for one in citations)
    assert citations
    assert desk.synced.all()[0].last_result == first
    site.pages["/a/3-parcel"] = article(33)
    vectors = desk.library.counts().passages
    assert numbers(run(desk, url)) == (0, 1, 0, 13)
    assert desk.library.counts().passages == vectors
    assert [one.action for one in Audit(desk.database).latest()][:3] == ["sync", "sync", "sync-save"]


def test_many_lost_pages_are_held_until_a_person_decides(desk, site):
    """Case 19."""
    site.pages["/"] = page("Help", "<p>Welcome to the shop.</p>", [f"/p{one}" for one in range(24)])
    for one in range(24):
        site.pages[f"/p{one}"] = article(one)
    url = save(desk, site.url())
    run(desk, url)
    for one in range(12):
        del site.pages[f"/p{one}"]
    site.pages["/p20"] = article(99)
    assert run(desk, url).changed == 1
    site.pages["/p21"] = article(98)
    held = run(desk, url)
    assert (held.code, held.is_ok, len(desk.documents())) == ("sync-held", False, 25)
    assert "12 of 25 pages are gone" in held.problem
    assert run(desk, url).code == "sync-held"
    assert numbers(run(desk, url, accepts_losses=True)) == (0, 1, 12, 12)
    assert numbers(run(desk, url)) == (0, 0, 0, 13)


def test_a_site_that_cannot_be_read_changes_nothing_and_says_why(desk, site):
    site.pages["/"] = page("Help", "<p>Welcome to the shop.</p>", ["/a"])
    site.pages["/a"] = article(1)
    url = save(desk, site.url())
    run(desk, url)
    site.pages["/robots.txt"] = (503, {}, b"")
    for _ in range(3):
        failed = run(desk, url)
        assert (failed.code, len(desk.documents())) == ("website-unreachable", 2)
    empty = save(desk, f"http://localhost:{site.port}")
    assert run(desk, empty).code == "website-private"


def test_a_site_without_a_page_to_read_is_a_failure_with_a_report(desk, site):
    site.pages["/"] = "<html><body><div id=root></div><noscript>Enable JavaScript.</noscript></body></html>"
    result = run(desk, save(desk, site.url()))
    assert (result.code, result.reasons[0].reason) == ("website-nothing", "browser")


def test_a_run_is_stopped_and_goes_on(desk, site):
    help_site(site, 30)
    url = save(desk, site.url())

    def stop(stage, done, total):
        assert desk.synced.running()[url] == (done, total)
        if done == 9:
            desk.synced.stop(url, who="ann")
            with pytest.raises(DeskError, match="already being ingested"):
                run(desk, url)

    stopped = run(desk, url, stop)
    assert (stopped.code, desk.synced.running(), desk.documents()) == ("sync-stopped", {}, [])

    def close(stage, done, total):
        if done == 20:
            raise SyncStopped

    with pytest.raises(SyncStopped):
        run(desk, url, close)
    assert run(desk, url).added > 30
    assert max(site.asked[f"/a/{one}-parcel"] for one in range(30)) == 1


def test_a_deleted_page_comes_again_and_an_ended_site_leaves_its_documents(desk, site):
    site.pages["/"] = page("Help", "<p>Welcome to the shop.</p>", ["/a"])
    site.pages["/a"] = (200, {"ETag": '"1"'}, article(1).encode())
    url = save(desk, site.url())
    run(desk, url)
    desk.forget(site.url("/a"))
    folder = desk.settings.websites_folder
    assert not [file for file in folder.rglob("*.*") if "Parcel 1" in file.read_text()]
    assert numbers(run(desk, url)) == (1, 0, 0, 1)
    desk.synced.remove(url, who="ann")
    assert (len(desk.documents()), list(folder.glob("*"))) == (2, [])


def test_what_is_no_website_or_overlaps_another_is_refused(desk, site):
    save(desk, f"{site.url()}/help")
    for url, code in (
        (f"{site.url()}/help/more", "sync-overlap"),
        (site.url(), "sync-overlap"),
        ("https://", "website-address"),
        ("https://a\\@b", "website-address"),
        ("help.example.com", "sync-relative"),
    ):
        with one_line(code):
            save(desk, url)
    with one_line("website-pages"):
        save(desk, "https://a.example", pages=0)
    with one_line("website-patterns"):
        save(desk, "https://a.example", exclude=("blog",))
    save(desk, f"{site.url()}/docs", include=("/faq/*",), exclude=("/docs/old*",))
    assert desk.synced.all()[0].site == SiteOptions(include=("/faq/*",), exclude=("/docs/old*",))


def test_a_try_stores_nothing(desk, site):
    help_site(site, 60)
    reasons = {one.reason: one.number for one in desk.synced.try_out(site.url(), SiteOptions(), no_progress)}
    assert (reasons[READ] + reasons["alias"] >= 20, reasons["left"] > 0) == (True, True)
    assert (desk.documents(), desk.synced.all()) == ([], [])
    assert list(desk.settings.websites_folder.glob("*")) == []


def test_what_is_due_is_read_and_folders_come_first(desk, site, pages):
    site.pages["/"] = page("Help", "<p>Welcome to the shop.</p>")
    save(desk, site.url())
    desk.synced.save(str(pages), "", 60, who="ann")
    order = []

    def look(stage, done, total):
        order.extend(one for one in desk.synced.running() if one not in order)

    desk.synced.run_due(look)
    assert order == [str(pages), site.url()]
    assert len(desk.documents()) == 5
    assert not [one for one in threading.enumerate() if one.name == "syncing"]
