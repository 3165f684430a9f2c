"""A site's rules for programs: robots.txt (RFC 9309) and the sitemaps."""

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from lxml import etree
from protego import Protego

from app.websites.fetching import Fetcher, FetchFailed, Reply, inflated
from app.websites.urls import key_of, origin_of

AGENT = "Warmdesk"
"""The name that robots.txt can address."""
MOST_HOPS = 5
_ROBOTS_BYTES = 500 * 1024
_LONGEST_DELAY_S = 30.0
_SITEMAP_BYTES = 10 * 2**20
_MOST_SITEMAPS, _MOST_LEVELS, _MOST_URLS = 50, 3, 50_000


def follow(fetcher: Fetcher, url: str, *, most_bytes: int, cuts: bool = False) -> Reply:
    """Request a page and follow redirects; the guard checks each. Raises FetchFailed."""
    for _ in range(MOST_HOPS + 1):
        reply = fetcher.get(url, most_bytes=most_bytes, cuts=cuts)
        if not reply.target:
            return reply
        try:
            url = key_of(reply.target, url)
        except ValueError:
            break
    raise FetchFailed("failed", "it redirects too often, or not to a web page")


@dataclass(frozen=True, slots=True)
class Robots:
    """The rules for this program. delay_s: the pause that the site asks for, at most half a minute."""

    rules: Protego = field(default_factory=lambda: Protego.parse(""))

    def allows(self, url: str) -> bool:
        return bool(self.rules.can_fetch(url, AGENT))

    @property
    def delay_s(self) -> float:
        return min(float(self.rules.crawl_delay(AGENT) or 0.0), _LONGEST_DELAY_S)


def read_robots(fetcher: Fetcher, origin: str) -> Robots:
    """Read the rules of a host. If it has no robots.txt, everything is allowed. Raises FetchFailed if the rules cannot
    be read now; then no page may be read.
    """
    reply = follow(fetcher, f"{origin}/robots.txt", most_bytes=_ROBOTS_BYTES, cuts=True)
    if reply.status >= 500 or reply.status == 429:
        raise FetchFailed("failed", f"its robots.txt cannot be read now (status {reply.status})")
    text = reply.body.decode("utf-8", "replace") if reply.status == 200 else ""
    return Robots(Protego.parse(text))


def sitemap_pages(fetcher: Fetcher, robots: Robots, origin: str) -> Iterator[str]:
    """Yield the addresses in a site's sitemaps, as they are written. Unreadable sitemaps are skipped."""
    waiting = [(url, 1) for url in (*robots.rules.sitemaps, f"{origin}/sitemap.xml")]
    seen, number = set[str](), 0
    while waiting and len(seen) < _MOST_SITEMAPS and number < _MOST_URLS:
        text, level = waiting.pop(0)
        try:
            url = key_of(text, origin)
            if url in seen or not (robots.allows(url) or origin_of(url) != origin):
                continue
            seen.add(url)
            reply = follow(fetcher, url, most_bytes=_SITEMAP_BYTES)
            data = reply.body
            if data[:2] == b"\x1f\x8b":
                data = inflated([data], "gzip", _SITEMAP_BYTES)
        except (FetchFailed, ValueError):
            continue
        for is_index, address in _addresses(data):
            if is_index and level < _MOST_LEVELS and len(waiting) < _MOST_SITEMAPS:
                waiting.append((address, level + 1))
            elif not is_index and number < _MOST_URLS:
                number += 1
                yield address


def _addresses(data: bytes) -> Iterable[tuple[bool, str]]:
    """Yield the addresses in a sitemap (XML, or one per line), each after True if it is another sitemap, else False."""
    if not data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
        yield from ((False, line) for line in data.decode("utf-8", "replace").split() if "://" in line)
        return
    options = {"resolve_entities": False, "no_network": True, "huge_tree": False, "load_dtd": False}
    try:
        for _, element in etree.iterparse(io.BytesIO(data), events=("end",), tag="{*}loc", **options):
            parent = element.getparent()
            above = None if parent is None else parent.getparent()
            address = "".join(element.itertext()).strip()
            if above is not None and (kind := etree.QName(parent).localname) in ("url", "sitemap"):  # not an image's
                yield kind == "sitemap", address
            element.clear()
            while above is not None and parent.getprevious() is not None:  # free memory of earlier elements
                del above[0]
    except etree.XMLSyntaxError:
        return
