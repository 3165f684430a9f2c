"""A help centre of many pages on this machine, with what websites have: menus, duplicates, redirects, a calendar."""

from local_site import LocalSite

MENU = "<div class=menu><p>Cookies help us to help you.</p><ul><li>Home page</li><li>All articles</li></ul></div>"


def page(title, text, links=(), head="", menu=MENU):
    anchors = "".join(
        f'<p>See also <a href="{one}">this page about it</a> for more of the subject.</p>' for one in links
    )
    return f"<html><head><title>{title}</title>{head}</head><body>{menu}<h1>{title}</h1>{text}{anchors}</body></html>"


def article(number, links=()):
    text = (
        f"<p>Subject {number}: the parcel of kind {number} costs {number}.50 euro and takes {number % 9 + 2} days.</p>"
    )
    return page(f"Parcel {number}", text + f"<p>Ask for form {number * 7} at the desk.</p>", links)


def help_site(site: LocalSite, number: int) -> LocalSite:
    """Fill a site with articles, each with an index page, and with what must not be read twice or at all."""
    for one in range(number):
        site.pages[f"/a/{one}-parcel"] = article(one, [f"/index/{one // 20}"])
    for first in range(0, number, 20):
        articles = [f"/a/{one}-parcel" for one in range(first, min(first + 20, number))]
        site.pages[f"/index/{first // 20}"] = page(f"Index {first}", f"<p>What starts at {first}.</p>", articles)
    indexes = [f"/index/{one}" for one in range(-(-number // 20))]
    others = [
        "/loop/1",
        "/copy-of-0-parcel",
        "/a/0-parcel?utm_source=mail",
        "/meta",
        "/cal?month=1",
        "/a/1-parcel#top",
        "/moved",
    ]
    site.pages["/"] = page("Help", "<p>Welcome to the help pages of the shop of parcels.</p>", [*indexes, *others])
    site.pages["/loop/1"] = (302, {"Location": "/loop/2"}, b"")
    site.pages["/loop/2"] = (302, {"Location": "/loop/1"}, b"")
    site.pages["/copy-of-0-parcel"] = site.pages["/a/0-parcel"]
    site.pages["/moved"] = (301, {"Location": "/a/2-parcel"}, b"")
    site.pages["/meta"] = (302, {"Location": "http://169.254.169.254/latest/meta-data/"}, b"")
    for month in range(1, 200):
        months = [f"/cal?month={month + later}" for later in range(1, 13)]
        site.pages[f"/cal?month={month}"] = page(f"Month {month}", "<p>Days of our shops.</p>", months)
    return site
