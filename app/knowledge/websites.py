"""Websites as a source of documents: read a site into files of the data folder, then ingest these files.

The address of a page is the name and the link of its document. Documents are removed by the rules of
`app.websites.selecting`. A run that would remove much of a site removes nothing until a person confirms it. Out of
scope: reading pages (`app.websites.crawl`), the times of runs (`app.desk.repeating`).
"""

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from app.domain.documents import MOST_PAGES, ReasonCount, SiteOptions, SyncedFolder, SyncResult
from app.domain.errors import DeskError
from app.domain.progress import Progress
from app.domain.settings import Settings
from app.domain.words import utc_now
from app.knowledge.ingest import IngestOptions, IngestReport
from app.websites.crawl import Crawl
from app.websites.fetching import Fetcher, Guard
from app.websites.mirror import Mirror, site_folder
from app.websites.robots import AGENT
from app.websites.urls import Scope, is_same_host, key_of
from durable import scratch_folder
from retrieval.reading import FileReader

MOST_LOST, LOST_SHARE = 10, 0.3
TRIED_PAGES = 25
_LONGEST_PATTERN, _MOST_PATTERNS = 200, 50
_LOOK_S = 0.5


class Websites:
    """The websites of a desk. Safe to use from any thread if only one thread at a time reads the same site."""

    def __init__(
        self,
        settings: Settings,
        names: Callable[[], Collection[str]],
        ingest: Callable[..., IngestReport],
    ) -> None:
        """names: returns the names of all documents. ingest: see `Ingestion.run`."""
        self._settings, self._names, self._ingest = settings, names, ingest

    def read(self, source: SyncedFolder, progress: Progress, *, accepts_losses: bool = False) -> SyncResult:
        """Read a website, and add, change and remove its documents. accepts_losses: remove documents even if many are
        gone. Raises DeskError, and the errors of `ingest` and `progress`.
        """
        mirror = Mirror(site_folder(self._settings.websites_folder, source.folder))
        with self._reading(source.folder, source.site, mirror, self._below, progress) as crawl:
            read = crawl.run()
        gone, num_before = read.documents.gone, len(read.documents.known)
        if not accepts_losses and len(gone) > MOST_LOST and len(gone) > LOST_SHARE * num_before:
            mirror.finish()
            cure = f"run `warmdesk sync run {source.folder} --remove-gone`"
            problem = f"{len(gone)} of {num_before} pages are gone, so nothing was changed: to delete them, {cure}"
            return SyncResult(code="sync-held", problem=problem, reasons=read.reasons)
        mirror.drop_documents(set(read.documents.files))
        names = {file.resolve(): url for file, url in read.documents.files.items()}
        options: IngestOptions = {"collection": source.collection, "warm": False, "names": names, "gone": gone}
        result = result_of(self._ingest([mirror.documents], progress, **options), read.reasons)
        if read.is_complete:
            mirror.finish()
        return result

    def try_out(self, url: str, site: SiteOptions, progress: Progress) -> tuple[ReasonCount, ...]:
        """Read the first pages of a website, change nothing, and return their outcomes. Raises the errors of `read`."""
        url = checked(url, site)
        site = SiteOptions(pages=min(site.pages, TRIED_PAGES), include=site.include, exclude=site.exclude)
        self._settings.websites_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (
            scratch_folder(self._settings.websites_folder, ".try-") as folder,
            self._reading(url, site, Mirror(folder), lambda origin: (), progress) as crawl,
        ):
            return crawl.run().reasons

    def forget(self, url: str) -> None:
        for folder in self._settings.websites_folder.glob("*"):
            Mirror(folder).forget(url)

    def remove(self, source: str) -> None:
        """Delete the stored files of a website. Its documents stay."""
        Mirror(site_folder(self._settings.websites_folder, source)).remove()

    @contextmanager
    def _reading(
        self,
        url: str,
        site: SiteOptions,
        mirror: Mirror,
        known: Callable[[str], Collection[str]],
        progress: Progress,
    ) -> Iterator[Crawl]:
        settings = self._settings
        last = ("fetching", 0, site.pages)

        def report(stage: str, done: int, total: int) -> None:
            nonlocal last
            last = (stage, done, total)
            progress(stage, done, total)

        def wait(seconds: float) -> None:
            until = time.monotonic() + seconds
            while (left := until - time.monotonic()) > 0:
                progress(*last)  # raises if the run must end
                time.sleep(min(left, _LOOK_S))

        guard = Guard(allow_private=settings.allow_private_addresses, private_hosts=frozenset(settings.private_hosts))
        agent = f"{AGENT} (+{settings.public_url})" if settings.public_url else AGENT
        with (
            FileReader() as reader,
            Fetcher(
                guard, agent=agent, headers=settings.website_headers, wait=wait, pause_s=settings.website_pause
            ) as fetcher,
        ):
            yield Crawl(url, site, mirror, fetcher, reader, known, report, now=utc_now())

    def _below(self, origin: str) -> list[str]:
        return [name for name in self._names() if name.startswith(f"{origin}/")]


KEPT_FILES = 20


def result_of(report: IngestReport, reasons: tuple[ReasonCount, ...] = ()) -> SyncResult:
    """Return the result of a run. It failed if it found no document and reports problems. reasons: outcomes of the
    pages of a website.
    """
    files = (*report.failed, *report.warnings)
    last = report.failed[-1] if report.failed and not report.documents else None  # the reason for the whole folder
    if reasons and not report.documents and not report.failed:
        problem = "no page of it can be read: the reasons are below"
        return SyncResult(removed=report.removed, reasons=reasons, code="website-nothing", problem=problem)
    return SyncResult(
        added=report.documents - report.unchanged - report.replaced,
        changed=report.replaced,
        removed=report.removed,
        unchanged=report.unchanged,
        files=files[:KEPT_FILES],
        num_files=len(files),
        reasons=reasons,
        code="sync-nothing" if last else "",
        problem=f"{last.path}: {last.reason}" if last else "",
    )


def checked(url: str, site: SiteOptions) -> str:
    """Return the address of a website as it is stored. Raises DeskError for a wrong address or wrong options."""
    try:
        key = key_of(url)
    except ValueError:
        message = f"{url[:200]!r} is not the address of a website: write it as https://help.example.com"
        raise DeskError(message, code="website-address") from None
    if not 1 <= site.pages <= MOST_PAGES:
        raise DeskError(f"{site.pages} pages: choose 1 to {MOST_PAGES:,}", code="website-pages")
    patterns = (*site.include, *site.exclude)
    if len(patterns) > _MOST_PATTERNS or any(
        not one.startswith(("/", "*")) or len(one) > _LONGEST_PATTERN for one in patterns
    ):
        message = f"at most {_MOST_PATTERNS} patterns of {_LONGEST_PATTERN} characters, beginning with / or *: /blog/*"
        raise DeskError(message, code="website-patterns")
    return key.rstrip("/") if key.count("/") == 3 else key


def share_pages(one: str, other: str) -> bool:
    folders = sorted((Scope(key_of(one)).folder, Scope(key_of(other)).folder))
    return is_same_host(key_of(one), key_of(other)) and folders[1].startswith(folders[0])
