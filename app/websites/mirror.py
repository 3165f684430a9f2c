"""A website as last read: one file for each requested address, and one for each document.

A file is replaced as a whole, so a killed run loses at most the page it was reading. After an interrupted run, the next
run has the same id. It skips the pages that are stored with this id and reads the other pages. A file that cannot be
read counts as missing: its page is read again.
"""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import blake2b
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from retrieval.documents import STORED, Block, stored

_RESUMED_WITHIN = timedelta(hours=24)
MOST_ABSENT = 2  # a page is gone if this many complete runs in a row did not find it


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRecord:
    """The result of a page address. run: the last run that requested it. outcome: a key of `PAGE_REASONS`.
    blocks: its text; for a page that cannot be read now, its last known text. absent: complete runs in a row that did
    not find it. target: the address to which it redirects. canonical: the address that the page names as its own.
    """

    url: str
    run: str
    outcome: str
    detail: str = ""
    title: str = ""
    blocks: tuple[Block, ...] = ()
    text_hash: str = ""
    links: tuple[str, ...] = ()
    canonical: str = ""
    target: str = ""
    etag: str = ""
    modified: str = ""
    absent: int = 0

    @property
    def has_text(self) -> bool:
        return bool(self.text_hash) and self.absent < MOST_ABSENT


_RECORD = TypeAdapter(PageRecord)


class Mirror:
    """The files of one website. folder: created when the first file is stored."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._pages = folder, folder / "pages"
        self.documents = folder / "documents"

    def begin(self, now: datetime) -> str:
        """Return the id of the last incomplete run if it began less than a day ago, else a new id."""
        try:
            began = datetime.fromisoformat(json.loads((self._folder / "run.json").read_bytes()))
        except (OSError, ValueError, TypeError):
            began = now - _RESUMED_WITHIN
        if now - began >= _RESUMED_WITHIN:
            began = now
            self._replace(self._folder / "run.json", json.dumps(now.isoformat()).encode())
        return began.isoformat()

    def finish(self) -> None:
        (self._folder / "run.json").unlink(missing_ok=True)

    def find(self, url: str) -> PageRecord | None:
        return self._read(self._pages / f"{_name(url)}.json")

    def keep(self, record: PageRecord) -> None:
        self._replace(self._pages / f"{_name(record.url)}.json", _RECORD.dump_json(record))

    def all(self) -> Iterator[PageRecord]:
        """Yield all records in the order of their addresses' hashes, one in memory at a time."""
        for file in sorted(self._pages.glob("*.json")):
            if (record := self._read(file)) is not None:
                yield record

    def keep_document(self, url: str, title: str, blocks: tuple[Block, ...]) -> Path:
        file, data = self.documents / f"{_name(url)}{STORED}", stored(url, title, blocks)
        if not file.exists() or file.read_bytes() != data:
            self._replace(file, data)
        return file

    def drop_documents(self, others: set[Path]) -> None:
        self.documents.mkdir(parents=True, exist_ok=True)
        for file in self.documents.iterdir():
            if file not in others:
                file.unlink()

    def forget(self, url: str) -> None:
        (self._pages / f"{_name(url)}.json").unlink(missing_ok=True)
        (self.documents / f"{_name(url)}{STORED}").unlink(missing_ok=True)

    def remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _read(self, file: Path) -> PageRecord | None:
        try:
            return _RECORD.validate_json(file.read_bytes())
        except (OSError, ValidationError):
            return None

    def _replace(self, file: Path, data: bytes) -> None:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = file.with_name(f".{file.name}")  # one run at a time writes here
        temporary.write_bytes(data)
        os.replace(temporary, file)


def _name(url: str) -> str:
    return blake2b(url.encode("utf-8", "backslashreplace"), digest_size=16).hexdigest()


def site_folder(parent: Path, source: str) -> Path:
    """Return the folder of a website's files. parent: folder of all websites. source: the website's first address."""
    return parent / _name(source)
