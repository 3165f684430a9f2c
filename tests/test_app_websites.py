"""Websites that are read as documents: twenty cases, from addresses and traps to pages that are gone."""

import gzip
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from help_site import article, help_site, page
from local_site import LocalSite
from reading_here import ReaderHere

from app.domain.documents import SiteOptions
from app.domain.errors import DeskError
from app.domain.progress import no_progress
from app.websites.crawl import Crawl
from app.websites.fetching import Fetcher, Guard
from app.websites.mirror import Mirror


@pytest.fixture
def site():
    with LocalSite() as site:
        yield site


class Reading:
    """Reads a site again and again, without a desk. documents: by path, their texts."""

    def __init__(self, site, folder, path="/", resolve=None, headers=None, **options):
        self.site, self.source, self.options = site, site.url(path), SiteOptions(**options)
        self.mirror, self.headers = Mirror(folder), headers
        self.guard = Guard(allow_private=True, **({"resolve": resolve} if resolve else {}))
        self.documents = {}

    def run(self, progress=no_progress, clock=lambda: 0.0, finish=True):
        with Fetcher(self.guard, agent="Warmdesk", headers=self.headers, wait=lambda s: None, pause_s=0) as fetcher:
            options = {"now": datetime.now(UTC), "clock": clock}
            asked = (self.source, self.options, self.mirror, fetcher, ReaderHere())
            crawl = Crawl(*asked, lambda origin: list(self.documents), progress, **options)
            read = crawl.run()
        if finish and read.is_complete:
            self.mirror.finish()
        for url in read.documents.gone:
            del self.documents[url]
        self.documents |= {url: file.read_text() for file, url in read.documents.files.items()}
        self.reasons = {one.reason: one for one in read.reasons}
        return read

    def numbers(self):
        return {reason: one.number for reason, one in self.reasons.items()}

    def paths(self):
        return sorted(url[len(self.site.url()) :] for url in self.documents)


@pytest.fixture
def read(site, tmp_path):
    def reading(path="/", **options):
        one = Reading(site, tmp_path / "mirror", path, **options)
        one.run()
        return one

    return reading


def numbered(site, number):
    """A start page that links to pages of other words."""
    site.pages["/"] = page(
        "Help", "<p>Welcome to the help pages of this shop.</p>", [f"/p{one}" for one in range(number)]
    )
    for one in range(number):
        site.pages[f"/p{one}"] = article(one)
    return number


# --- addresses ---------------------------------------------------------------------------------------------


def test_a_page_with_several_addresses_is_one_document(site, read):
    """Case 1."""
    site.pages["/"] = page("Help", "<p>Welcome to the shop.</p>", ["/a", "/a/", "/a#x", "/a?utm_source=m"])
    site.pages["/a"] = site.pages["/a/"] = article(1)
    one = read()
    assert one.paths() == ["/", "/a"]
    assert one.reasons["alias"].number == 3


def test_a_page_that_names_itself_is_chosen_of_those_with_its_text(site, read):
    head = f'<link rel="canonical" href="{site.url("/article/parcels")}">'
    site.pages["/"] = page("Help", "<p>Welcome to the shop.</p>", ["/p"])
    site.pages["/p"] = site.pages["/article/parcels"] = page("Parcels", "<p>A parcel costs five euro.</p>", head=head)
    assert read().paths() == ["/", "/article/parcels"]


def test_the_host_to_which_a_site_has_moved(site, tmp_path):
    """Cases 2 and 3."""
    www = f"http://www.shop.example:{site.port}"

    def resolve(host, port):
        return ["127.0.0.1"]

    def start(handler):
        if handler.headers["Host"].startswith("www."):
            return (200, {}, page("Help", "<p>Welcome to the shop.</p>", ["/a"]).encode())
        return (301, {"Location": f"{www}/"}, b"")

    site.pages |= {"/": start, "/a": article(1)}
    one = Reading(site, tmp_path, resolve=resolve)
    one.source = f"http://shop.example:{site.port}/"
    one.run()
    assert sorted(one.documents) == [f"{www}/", f"{www}/a"]
    site.pages["/"] = (301, {"Location": "https://elsewhere.example/help"}, b"")
    with pytest.raises(DeskError, match=r"has moved to https:..elsewhere\.example.help: use that address"):
        one.run()


def test_a_redirect_to_a_private_address_is_named_and_not_followed(site, read):
    """Case 4."""
    site.pages["/"] = page("Help", "<p>Welcome to the shop.</p>", ["/meta", "/away"])
    site.pages["/meta"] = (302, {"Location": "http://169.254.169.254/latest/"}, b"")
    site.pages["/away"] = (302, {"Location": "https://elsewhere.example/"}, b"")
    one = read()
    assert one.numbers()["outside"] == 2, "all private addresses may be read here"
    one.guard = Guard(private_hosts=frozenset({"127.0.0.1"}))
    one.run()
    assert one.reasons["private"].examples == (f"{site.url('/meta')} (redirects to http://169.254.169.254/latest/)",)
    assert one.numbers()["outside"] == 1


# --- traps -------------------------------------------------------------------------------------------------


def test_a_calendar_ends_and_the_rest_is_complete(site, read):
    """Case 7."""

    def month(handler):
        number = int(handler.path.partition("month=")[2])
        return page(f"Month {number}", "<p>Our days.</p>", [f"/cal?month={number + next}" for next in range(1, 13)])

    class Months(dict):
        def get(self, path, default=None):
            return month if path.startswith("/cal?month=") else super().get(path, default)

    number = numbered(site, 30)
    site.pages = Months(site.pages)
    site.pages["/"] = site.pages["/"].replace("</body>", '<a href="/cal?month=1">Calendar</a></body>')
    one = read()
    assert {f"/p{index}" for index in range(number)} <= set(one.paths())
    assert all(example.endswith("(there are many like /cal?month)") for example in one.reasons["trap"].examples)
    assert sum(site.asked[path] for path in site.asked if "month" in path) <= 50


def test_growing_addresses_and_redirects_without_end_are_named(site, read):
    """Case 8."""

    class Growing(dict):
        def get(self, path, default=None):
            if path.startswith("/g?"):
                return page("Growing", f"<p>All of {len(path)}.</p>", [f"{path}&amp;amp%253Bp=1"])
            if path.startswith("/r/"):
                return (302, {"Location": f"/r/{int(path[3:]) + 1}"}, b"")
            return super().get(path, default)

    site.pages = Growing(site.pages)
    site.pages["/"] = page("Help", "<p>Welcome to the shop.</p>", ["/g?a=1", "/r/1", "/loop"])
    site.pages["/loop"] = (302, {"Location": "/loop"}, b"")
    one = read()
    assert one.paths()[0] == "/"
    assert {example.split(" ")[0] for example in one.reasons["trap"].examples} >= {site.url("/r/7")}
    assert sum(site.asked.values()) < 30


def test_the_limit_of_pages_is_a_limit_of_requests(site, read):
    """Case 16."""
    numbered(site, 100)
    one = read(pages=10)
    asked = {path: number for path, number in site.asked.items() if path == "/" or path.startswith("/p")}
    assert (sum(asked.values()), one.numbers()) == (10, {"read": 10, "left": 91})
    again = one.run(finish=False)
    assert again.is_complete


def test_a_run_out_of_time_goes_on_in_the_next(site, read, tmp_path):
    numbered(site, 9)
    times = iter(range(0, 10**6, 900))
    one = Reading(site, tmp_path / "slow")
    first = one.run(clock=lambda: next(times))
    assert (first.is_complete, one.numbers()["left"] > 0) == (False, True)
    asked = sum(site.asked.values())
    assert one.run().is_complete
    assert len(one.documents) == 10
    assert max(site.asked[f"/p{index}"] for index in range(9)) == 1
    assert sum(site.asked.values()) < 2 * asked + 10


# --- what is said about pages ------------------------------------------------------------------------------


def test_not_found_with_status_200_is_not_indexed(site, read):
    """Case 9."""
    site.pages["*"] = lambda handler: page("Sorry", f"<p>The page {handler.path} was not found here.</p>")
    one = read()
    assert one.paths() == []
    site.pages["/"] = page("Help", "<p>Welcome to the help pages.</p>", ["/old", "/new"])
    site.pages["/new"] = article(3)
    one.run()
    assert one.paths() == ["/", "/new"]
    assert one.reasons["soft-404"].examples == (site.url("/old"),)


def test_a_login_is_named_and_read_with_a_header(site, read, tmp_path):
    """Case 10."""
    form = page("Log in", "<form><h1>x</h1><input type=email><input type=password></form>", menu="")

    def private(handler):
        return article(5) if handler.headers["Authorization"] == "Bearer x" else form

    site.pages["/"] = page("Help", "<p>Welcome to the shop.</p>", ["/private", "/orders", "/401"])
    site.pages |= {
        "/private": private,
        "/orders": (302, {"Location": "/login?next=/orders"}, b""),
        "/401": (401, {}, b""),
    }
    one = read()
    assert (one.paths(), one.numbers()["login"]) == (["/"], 3)
    other = Reading(site, tmp_path / "other", headers={"127.0.0.1": "Authorization: Bearer x"})
    other.run()
    assert (other.paths(), other.numbers()["login"]) == (["/", "/private"], 2)


def test_pages_of_scripts_of_links_and_without_text_are_named(site, read):
    """Case 11."""
    shell = (
        "<div id=root></div><noscript>You need to enable JavaScript to run this app.</noscript><script src=x></script>"
    )
    site.pages["/"] = page(
        "Help", "<p>Welcome to the shop.</p>", ["/app", "/list", "/blank", "/hidden", "/image", "/zip"]
    )
    site.pages["/app"] = f"<html><body>{shell}</body></html>"
    site.pages["/list"] = "<main><h1>All</h1>" + "".join(
        f"<p><a href=/i{n}>Article number {n}</a></p>" for n in range(9)
    )
    site.pages["/i3"] = article(3)
    site.pages["/blank"] = "<html><body></body></html>"
    site.pages["/hidden"] = page(
        "Secret", "<p>Not for programs.</p>", head='<meta name="robots" content="noindex,nofollow">'
    )
    site.pages["/image"] = (200, {"Content-Type": "image/png"}, b"x")
    site.pages["/zip"] = (200, {"X-Robots-Tag": "noindex"}, article(7).encode())
    one = read()
    assert one.paths() == ["/", "/i3"]
    counts = one.numbers()
    assert {name: counts[name] for name in ("browser", "links", "empty", "noindex", "file", "gone")} == {
        **{"browser": 1, "links": 1, "empty": 1, "noindex": 2, "file": 1, "gone": 8}
    }
    assert len(one.reasons["gone"].examples) == 5


def test_robots_txt_is_obeyed(site, read, monkeypatch):
    """Case 12."""
    site.pages["/robots.txt"] = (200, {}, b"User-agent: *\nDisallow: /*.pdf$\nDisallow: /private\nCrawl-delay: 7\n")
    site.pages["/"] = page("Help", "<p>Welcome to the shop.</p>", ["/a.pdf", "/private/1", "/a"])
    site.pages["/a"] = article(1)
    one = read()
    assert (one.paths(), one.numbers()["robots"]) == (["/", "/a"], 2)
    assert site.asked["/a.pdf"] + site.asked["/private/1"] == 0
    monkeypatch.setattr("app.websites.fetching.time", SimpleNamespace(monotonic=lambda: 100.0))
    waits = []
    with Fetcher(one.guard, agent="x", wait=waits.append, pause_s=0) as fetcher:
        crawl = Crawl(
            one.source, one.options, one.mirror, fetcher, ReaderHere(), lambda o: (), no_progress, now=datetime.now(UTC)
        )
        crawl.run()
    assert max(waits) == 7
    for status in (503, 429):
        site.pages["/robots.txt"] = (status, {}, b"")
        with pytest.raises(DeskError, match=r"robots\.txt cannot be read now"):
            one.run()
    site.pages["/robots.txt"] = (200, {}, b"User-agent: Warmdesk\nDisallow: /\n")
    with pytest.raises(DeskError, match="forbids") as caught:
        one.run()
    assert (caught.value.code, one.paths()) == ("website-robots", ["/", "/a"])


def test_sitemaps_with_an_index_and_gzip_and_bombs(site, read):
    """Case 13."""

    def urls(*paths):
        return (
            "<urlset xmlns='http://www.sitemaps.org/schemas/sitemap/0.9'>"
            + "".join(f"<url><loc>{site.url(path)}</loc></url>" for path in paths)
            + "</urlset>"
        )

    def index(*paths):
        return (
            "<sitemapindex>"
            + "".join(f"<sitemap><loc>{site.url(path)}</loc></sitemap>" for path in paths)
            + "</sitemapindex>"
        )

    bomb = gzip.compress(b"<urlset>" + b" " * 30_000_000, 1)
    entities = b'<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><urlset><url><loc>&a;</loc></url></urlset>'
    site.pages["/robots.txt"] = (
        200,
        {},
        f"Sitemap: {site.url('/index.xml')}\nSitemap: {site.url('/bomb.gz')}".encode(),
    )
    site.pages["/index.xml"] = index(
        "/index.xml", "/one.xml.gz", "/two.txt", "/bad.xml", "/entities.xml", "/pictures.xml"
    )
    site.pages["/one.xml.gz"] = (200, {"Content-Type": "application/gzip"}, gzip.compress(urls("/x1", "/x2").encode()))
    site.pages["/two.txt"] = (200, {}, f"{site.url('/x3')}\nhttps://elsewhere.example/x\n".encode())
    site.pages["/bad.xml"] = urls("/x4") + "<broken"
    site.pages["/entities.xml"] = (200, {}, entities)
    site.pages["/pictures.xml"] = (
        f"<!-- x --><urlset><url><i><loc>{site.url('/x.png')}</loc></i></url><loc>/y</loc></urlset>"
    )
    site.pages["/bomb.gz"] = (200, {}, bomb)
    site.pages["/"] = page("Help", "<p>Welcome to the shop.</p>")
    for number in range(1, 5):
        site.pages[f"/x{number}"] = article(number)
    one = read()
    assert one.paths() == ["/", "/x1", "/x2", "/x3", "/x4"]
    assert site.asked["/index.xml"] == 1
    assert (one.numbers()["outside"], "file" in one.reasons) == (1, False)


def test_questions_in_buttons_and_hidden_answers(site, read):
    """Case 14."""
    faq = "<div><button aria-expanded=false>Returns of shoes</button><div hidden>Within thirty days.</div></div>"
    faq += "<div><button>Do you ship to Spain?</button><div style='display:none'>Yes, in four days.</div></div>"
    site.pages["/"] = page("FAQ", f"{faq}<button>Send</button><details><summary>Price?</summary>Five euro.</details>")
    text = next(iter(read().documents.values()))
    for part in ("Returns of shoes", "thirty days", "ship to Spain?", "in four days", "Price?", "Five euro"):
        assert part in text
    assert "Send" not in text


def test_what_most_pages_have_in_common_is_in_no_document(site, read):
    """Case 15."""
    numbered(site, 12)
    one = read()
    assert len(one.documents) == 13
    assert not [text for text in one.documents.values() if "Cookies help" in text or "All articles" in text]
    assert "Welcome" in one.documents[site.url("/")]


def test_texts_of_pages_stay_texts(site, read):
    site.pages["/"] = page(
        "A<b>b</b>", "<p>&lt;script&gt;x&lt;/script&gt; <!-- hidden --> a\u202eb<script>y()</script></p>"
    )
    text = next(iter(read().documents.values()))
    assert "<script>x</script>" in text, "as text, which pages escape"
    assert "hidden" not in text
    assert "y()" not in text
    assert "\u202e" not in text


# --- again and again ---------------------------------------------------------------------------------------


def conditional(text, tag):
    def reply(handler):
        if handler.headers["If-None-Match"] == tag:
            return (304, {}, b"")
        return (200, {"ETag": tag}, text.encode())

    return reply


def test_unchanged_pages_are_not_sent_again(site, read):
    """Case 17."""
    numbered(site, 12)
    for number in range(12):
        site.pages[f"/p{number}"] = conditional(article(number), f'"{number}"')
    one = read()
    before = dict(one.documents)
    files = {file: file.stat().st_mtime_ns for file in one.mirror.documents.iterdir()}
    one.run()
    assert (one.documents, one.numbers()["read"]) == (before, 13)
    assert {file: file.stat().st_mtime_ns for file in one.mirror.documents.iterdir()} == files
    site.pages["/p3"] = conditional(article(33), '"new"')
    one.run()
    assert [url for url in before if one.documents[url] != before[url]] == [site.url("/p3")]
    site.pages["/p3"] = (200, {"ETag": "\xe9"}, article(34).encode())
    one.run()
    one.run()
    assert "/p3" in one.paths()


def test_a_page_is_removed_when_two_complete_runs_did_not_find_it(site, read):
    """Case 18."""
    numbered(site, 3)
    one = read()
    page_2 = site.pages.pop("/p2")
    one.run()
    assert "/p2" in one.paths()
    site.pages["/p2"] = page_2
    one.run()
    for status in (500, 403, 401):
        site.pages["/p2"] = (status, {}, b"")
        one.run()
        one.run()
        assert "/p2" in one.paths(), status
    site.pages["/p2"] = (410, {}, b"")
    one.run()
    assert "/p2" in one.paths()
    one.run()
    assert one.paths() == ["/", "/p0", "/p1"]
    site.pages["/"] = (503, {}, b"")
    with pytest.raises(DeskError):
        one.run()
    assert one.paths() == ["/", "/p0", "/p1"]


def test_a_page_that_moved_within_the_site_is_removed_at_once(site, read):
    numbered(site, 3)
    one = read()
    site.pages["/moved"] = site.pages["/p2"]
    site.pages["/p2"] = (301, {"Location": "/moved"}, b"")
    one.run()
    assert one.paths() == ["/", "/moved", "/p0", "/p1"]


def test_pages_without_a_link_are_asked_for_and_excluded_ones_go(site, read):
    numbered(site, 3)
    one = read()
    site.pages["/"] = page("Help", "<p>Nothing is linked any more.</p>")
    one.run()
    assert one.paths() == ["/", "/p0", "/p1", "/p2"]
    one.options = SiteOptions(exclude=("/p1*",))
    one.run()
    assert one.paths() == ["/", "/p0", "/p2"]


def test_documents_of_another_website_of_the_host_stay(site, read):
    site.pages |= {"/docs": page("Docs", "<p>All about it.</p>", ["/docs/a", "/help"]), "/docs/a": article(1)}
    one = read("/docs")
    one.documents[site.url("/help/x")] = "of another website"
    one.run()
    assert one.paths() == ["/docs", "/docs/a", "/help/x"]


def test_a_site_that_refuses_is_left_alone(site, read):
    numbered(site, 30)
    for number in range(8):
        site.pages[f"/p{number}"] = (403, {}, b"")
    with pytest.raises(DeskError, match="refuses to be read") as caught:
        read()
    assert caught.value.code == "website-refuses"


def test_a_killed_run_goes_on_where_it_was(site, tmp_path):
    """Case 20: without the page at which it ended."""
    number = numbered(site, 9)

    class Killed(Exception):
        pass

    def kill(stage, done, total):
        if done == 6:
            raise Killed

    one = Reading(site, tmp_path)
    with pytest.raises(Killed):
        one.run(kill)
    assert one.documents == {}
    (next(iter((tmp_path / "pages").glob("*.json")))).write_bytes(b"{half")
    one.run()
    assert len(one.documents) == number + 1
    asked = [site.asked[f"/p{index}"] for index in range(number)]
    assert sorted(asked) in ([1] * 9, [1] * 8 + [2])


def test_a_process_that_is_killed_loses_nothing(site, tmp_path):
    """Case 20: with kill -9."""
    help_site(site, 30)
    program = Path(__file__).parent / "programs" / "read_site.py"
    command, root = [sys.executable, str(program), site.url("/"), str(tmp_path / "killed")], str(program.parents[2])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": root}) as child:
        next(line for line in child.stdout if line.strip() == "25")
        child.kill()
    one, other = Reading(site, tmp_path / "killed"), Reading(site, tmp_path / "other")
    one.guard = other.guard = Guard(private_hosts=frozenset({"127.0.0.1"}))
    one.run()
    twice = [path for path, number in site.asked.items() if number > 1 and path.startswith(("/a/", "/index/"))]
    assert len(twice) <= 1
    other.run()
    assert (one.documents, one.numbers()) == (other.documents, other.numbers())
