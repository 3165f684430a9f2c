"""One run over a website: it follows links from the first page and the sitemaps, within the folder and the limits.

Pages that are already documents come first, with conditional requests, so that unchanged pages are not sent again. An
interrupted run is continued (`mirror`). Each address is counted under one reason. Out of scope: the choice of pages
that become documents (`selecting`), storing and removing documents.
"""

import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import date, datetime

from app.domain.documents import KEPT_EXAMPLES, PAGE_REASONS, READ, ReasonCount, SiteOptions
from app.domain.errors import DeskError
from app.domain.progress import Progress
from app.websites.fetching import MOST_BYTES, Fetcher, FetchFailed, Reply
from app.websites.mirror import Mirror, PageRecord
from app.websites.robots import MOST_HOPS, Robots, read_robots, sitemap_pages
from app.websites.selecting import LOGIN, NotFoundPage, Selection, block_key, judge, select, text_hash
from app.websites.urls import Scope, is_same_site, key_of, may_be_endless, origin_of, shape_of
from retrieval.documents import MAX_BYTES, WebPage
from retrieval.errors import UnreadableDocument
from retrieval.reading import FileReader
from retrieval.text.terms import printable

LONGEST_RUN_S = 3600.0
_MOST_DEPTH = 8
_MOST_SEEN = 100_000
_LEAST_OF_A_SHAPE, _SHARE_OF_A_SHAPE = 50, 0.1
_FEW_NEW_CHARACTERS, _MOST_POOR = 80, 20
_FIRST, _MOST_BLOCKED = 20, 6
_SUFFIXES = {
    **dict.fromkeys(("text/html", "application/xhtml+xml", ""), ".html"),
    **{"application/pdf": ".pdf", "text/plain": ".txt", "text/markdown": ".md"},
}
_KEEPS_TEXT = frozenset(
    ("gone", "soft-404", "outside", "login", "browser", "refused", "failed", "unreachable", "too-large", "unreadable",
     "private")
)  # fmt: skip
_ABSENT = frozenset(("gone", "soft-404", "outside"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteRead:
    """The result of a run. is_complete: the time limit did not end it."""

    documents: Selection
    reasons: tuple[ReasonCount, ...]
    is_complete: bool


class _Notes:
    """Counts addresses by reason, with the first ones as examples."""

    def __init__(self) -> None:
        self._numbers = Counter[str]()
        self._examples: dict[str, list[str]] = {}

    def add(self, reason: str, url: str, detail: str = "") -> None:
        self._numbers[reason] += 1
        examples = self._examples.setdefault(reason, [])
        if len(examples) < KEPT_EXAMPLES:
            examples.append(printable(f"{url[:500]} ({detail[:200]})" if detail else url[:500]))

    def all(self) -> tuple[ReasonCount, ...]:
        return tuple(
            ReasonCount(reason=reason, number=self._numbers[reason], examples=tuple(self._examples[reason]))
            for reason in PAGE_REASONS
            if self._numbers[reason]
        )


class Crawl:
    """One run: `run` reads the pages of a website into its mirror."""

    def __init__(
        self,
        source: str,
        options: SiteOptions,
        mirror: Mirror,
        fetcher: Fetcher,
        reader: FileReader,
        known: Callable[[str], Collection[str]],
        progress: Progress,
        *,
        now: datetime,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """source: the first address. known: returns the documents of an origin (scheme and host). progress: may raise,
        to end the run. clock: seconds.
        """
        self._source, self._options, self._mirror = source, options, mirror
        self._fetcher, self._reader, self._known, self._progress = fetcher, reader, known, progress
        self._now, self._clock = now, clock
        self._notes, self._robots = _Notes(), Robots()
        self._missing: NotFoundPage | None = None
        self._scope = Scope(source)
        self._seen, self._spellings, self._blocks = set[str](), set[int](), set[int]()
        self._shapes, self._poor = Counter[str](), Counter[str]()
        self._queue = deque[tuple[str, int, int]]()  # key, links from the first page, redirects before it

    def run(self) -> SiteRead:
        """Read the site. Raises DeskError if it cannot be read, and the errors of `progress`."""
        self._run = self._mirror.begin(self._now)
        first = self._start()
        self._first = first
        self._missing = self._probe()
        known = [url for url in self._known(origin_of(first.url)) if not self._scope.refusal(url, self._today)]
        self._add(first.url, first.url, 0, 0)
        for url in known:
            self._add(url, first.url, 1, 0)
        for url in sitemap_pages(self._fetcher, self._robots, origin_of(first.url)):
            self._add(url, first.url, 1, 0, is_listed=True)
        is_complete = self._visit_all()
        documents = select(self._mirror, self._scope, self._known(origin_of(first.url)), self._today)
        for reason, urls in (
            (READ, documents.files.values()),
            ("alias", documents.aliases),
            ("empty", documents.empty),
        ):
            for url in urls:
                self._notes.add(reason, url)
        return SiteRead(documents=documents, reasons=self._notes.all(), is_complete=is_complete)

    @property
    def _today(self) -> date:
        return self._now.date()

    def _start(self) -> Reply:
        """Request the first page. If the site has moved to another host, use that host. Raises DeskError."""
        url = key_of(self._source)
        try:
            self._obey(url)
            for _ in range(MOST_HOPS):
                reply = self._fetcher.get(url)
                if not reply.target:
                    break
                target = key_of(reply.target, url)
                if not is_same_site(url, target):
                    message = f"{self._source} has moved to {target}: use that address"
                    raise DeskError(message, code="website-moved")
                if origin_of(target) != origin_of(url):
                    self._obey(target)
                url = target
        except FetchFailed as error:
            message = f"{self._source} cannot be read: {error.detail}"
            raise DeskError(
                message, code=f"website-{'private' if error.reason == 'private' else 'unreachable'}"
            ) from None
        except ValueError:
            raise DeskError(f"{self._source} is not a web page: use another address", code="website-moved") from None
        if reply.status != 200:
            message = f"{self._source} cannot be read (status {reply.status}): check the address"
            raise DeskError(message, code="website-unreachable")
        path = self._source[len(origin_of(self._source)) :]
        self._scope = Scope(key_of(origin_of(url) + path), self._options.include, self._options.exclude)
        return replace(reply, url=url)

    def _obey(self, url: str) -> None:
        self._robots = read_robots(self._fetcher, origin_of(url))
        if not self._robots.allows(url):
            raise DeskError(f"the robots.txt of {origin_of(url)} forbids reading {url}", code="website-robots")
        self._fetcher.pause_s = max(self._fetcher.pause_s, self._robots.delay_s)

    def _probe(self) -> NotFoundPage | None:
        """Request an address that cannot exist. Return the page if the site sends one with status 200."""
        path = f"{self._scope.folder}warmdesk-{secrets.token_hex(8)}"
        url = origin_of(self._first.url) + path
        try:
            reply = self._fetcher.get(url) if self._robots.allows(url) else None
            if reply is None or reply.status != 200 or _SUFFIXES.get(reply.media_type) != ".html":
                return None
            return NotFoundPage(path, self._reader.load_page(reply.body, url, ".html", _charset(reply)).blocks)
        except (FetchFailed, UnreadableDocument):
            return None

    def _add(self, link: str, base: str, depth: int, hops: int, *, is_listed: bool = False) -> None:
        """Add an address to the queue, or note the reason not to read it."""
        try:
            key = self._scope.key(link, base)
        except ValueError:  # not a web page: mailto:, tel:
            return
        refusal = self._scope.refusal(key, self._today)
        if link != key and not refusal and hash(link) not in self._spellings and len(self._spellings) < _MOST_SEEN:
            self._spellings.add(hash(link))
            self._notes.add("alias", link)
        if key in self._seen or len(self._seen) >= _MOST_SEEN:
            return
        self._seen.add(key)
        detail, shape = "", shape_of(key)
        if not refusal and not self._robots.allows(key):
            refusal = "robots"
        if not refusal and depth > _MOST_DEPTH:
            refusal = "deep"
        if not refusal and hops > MOST_HOPS:
            refusal, detail = "trap", "too many redirects"
        if not refusal and not is_listed and ("#" in shape or "?" in shape):
            self._shapes[shape] += 1
            most = max(_LEAST_OF_A_SHAPE, int(self._options.pages * _SHARE_OF_A_SHAPE))
            is_full = may_be_endless(shape) and self._shapes[shape] > most
            if is_full or self._poor[shape] >= _MOST_POOR:
                refusal, detail = "trap", f"there are many like {shape}"
        if refusal:
            self._notes.add(refusal, key, detail)
        else:
            self._queue.append((key, depth, hops))

    def _visit_all(self) -> bool:
        """Visit the queued addresses. Return False if the time limit ended this."""
        done = blocked = 0
        began = self._clock()
        while self._queue and done < self._options.pages and (is_in_time := self._clock() - began < LONGEST_RUN_S):
            self._progress("fetching", done, min(self._options.pages, done + len(self._queue)))
            key, depth, hops = self._queue.popleft()
            record = self._visit(key)
            done += 1
            blocked += record.outcome in ("refused", "failed")
            if done == _FIRST and blocked >= _MOST_BLOCKED:
                message = (
                    f"{self._source} refuses to be read ({blocked} of {done} pages): ask its owner or set website_pause"
                )
                raise DeskError(message, code="website-refuses")
            self._look_at(record, depth, hops)
        for key, _, _ in self._queue:
            self._notes.add("left", key)
        return not self._queue or is_in_time

    def _look_at(self, record: PageRecord, depth: int, hops: int) -> None:
        if record.outcome == READ:
            new = [block for block in record.blocks if block_key(block) not in self._blocks]
            self._blocks.update(map(block_key, new))
            if sum(len(block.text) for block in new) < _FEW_NEW_CHARACTERS:
                self._poor[shape_of(record.url)] += 1
        else:
            self._notes.add(record.outcome, record.url, record.detail)
        if record.target:
            self._add(record.target, record.url, depth, hops + 1)
        for link in (*([record.canonical] if record.canonical else ()), *record.links):
            self._add(link, record.url, depth + 1, 0)

    def _visit(self, key: str) -> PageRecord:
        before = self._mirror.find(key)
        if before is not None and before.run == self._run:  # this run read it before it was interrupted
            return before
        record = self._asked(key, before)
        if record.outcome in _KEEPS_TEXT and before is not None:
            absent = before.absent + 1 if record.outcome in _ABSENT else 0
            record = replace(
                record, title=before.title, blocks=before.blocks, text_hash=before.text_hash, absent=absent
            )
        elif record.outcome in _ABSENT:
            record = replace(record, absent=1)
        self._mirror.keep(record)
        return record

    def _asked(self, key: str, before: PageRecord | None) -> PageRecord:
        def became(outcome: str, detail: str = "", target: str = "") -> PageRecord:
            return PageRecord(url=key, run=self._run, outcome=outcome, detail=detail, target=target)

        validators: dict[str, str] = {}
        if before is not None and before.outcome in (READ, "links"):
            named = {"if-none-match": before.etag, "if-modified-since": before.modified}
            validators = {name: value for name, value in named.items() if value}
        try:
            is_first = key == self._first.url
            most = MAX_BYTES if key.lower().endswith(".pdf") else MOST_BYTES
            reply = self._first if is_first else self._fetcher.get(key, validators=validators, most_bytes=most)
        except FetchFailed as error:
            return became(error.reason, error.detail)
        if reply.status == 304 and before is not None:
            return replace(before, run=self._run, absent=0)
        if reply.target:
            return became(*self._redirected(reply))
        if reply.status != 200:
            statuses = {404: "gone", 410: "gone", 401: "login", 403: "refused"}
            return became(statuses.get(reply.status, "failed"), f"status {reply.status}")
        suffix = _SUFFIXES.get(reply.media_type)
        if suffix is None:
            return became("file", reply.media_type)
        try:
            page = self._reader.load_page(reply.body, key, suffix, _charset(reply))
        except UnreadableDocument as error:
            return became("unreadable", error.reason)
        if "noindex" in str(reply.headers.get("x-robots-tag", "")).lower():
            page = replace(page, may_index=False)
        outcome = judge(page, key[len(origin_of(key)) :], self._missing, is_start=is_first)
        text = page.blocks if outcome == READ else ()
        return PageRecord(
            url=key,
            run=self._run,
            outcome=outcome,
            title=page.title,
            blocks=text,
            text_hash=text_hash(text) if text else "",
            links=page.links if page.may_follow and outcome != "soft-404" else (),
            canonical=self._canonical(page, key),
            etag=_validator(reply, "etag"),
            modified=_validator(reply, "last-modified"),
        )

    def _redirected(self, reply: Reply) -> tuple[str, str, str]:
        """Return outcome, detail and target of a redirect."""
        try:
            target = self._scope.key(reply.target, reply.url)
        except ValueError:
            return "failed", "it does not redirect to a web page", ""
        if LOGIN.search(target) and not LOGIN.search(reply.url):
            return "login", f"redirects to {target}", ""
        if self._scope.refusal(target, self._today) != "outside":
            return "redirect", f"to {target}", target
        is_private = self._fetcher.is_private_literal(target)
        return "private" if is_private else "outside", f"redirects to {target}", ""

    def _canonical(self, page: WebPage, key: str) -> str:
        try:
            canonical = self._scope.key(page.canonical, key) if page.canonical else ""
        except ValueError:
            return ""
        return "" if self._scope.refusal(canonical, self._today) else canonical


def _charset(reply: Reply) -> str:
    return str(reply.headers.get("content-type", "")).lower().partition("charset=")[2].strip(" \"';")[:40]


def _validator(reply: Reply, name: str) -> str:
    """Return a reply's header for the next conditional request; "" if it cannot be sent."""
    value = str(reply.headers.get(name, ""))
    return value if value.isascii() and value.isprintable() and len(value) <= 500 else ""
