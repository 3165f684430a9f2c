"""Read a website into a folder: read_site.py URL FOLDER. Prints pages asked for, seconds, reasons and peak memory."""

import json
import resource
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from app.domain.documents import SiteOptions
from app.websites.crawl import Crawl
from app.websites.fetching import Fetcher, Guard
from app.websites.mirror import Mirror
from retrieval.reading import FileReader


def main() -> None:
    url, folder = sys.argv[1], Path(sys.argv[2])
    guard, mirror, asked = Guard(private_hosts=frozenset({"127.0.0.1"})), Mirror(folder), 0

    def progress(stage: str, done: int, total: int) -> None:
        nonlocal asked
        asked = done + 1
        print(done, flush=True)

    began = time.monotonic()
    with Fetcher(guard, agent="Warmdesk", wait=lambda seconds: None, pause_s=0.0) as fetcher, FileReader() as reader:
        reader.load_page(b"<p>ready</p>", url, ".html")
        ready = time.monotonic()
        options = SiteOptions(pages=1000)
        crawl = Crawl(url, options, mirror, fetcher, reader, lambda origin: (), progress, now=datetime.now(UTC))
        read = crawl.run()
    seconds = time.monotonic() - ready
    mirror.finish()
    said = {
        "asked": asked,
        "seconds": round(seconds, 2),
        "a_second": round(asked / seconds, 1),
        "start_s": round(ready - began, 2),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "documents": sorted(read.documents.files.values()),
        "reasons": {one.reason: one.number for one in read.reasons},
    }
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
