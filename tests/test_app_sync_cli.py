"""The commands for synchronised folders: alone, and beside a desk that is served."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from desks import small_desk, write_pages
from test_app_running_desk import served

from app.desk.service import Service
from app.domain.progress import Progress
from app.knowledge.ingest import FileReason, IngestReport


@pytest.fixture
def run(tmp_path: Path, warmdesk: Callable[..., tuple[int, str, str]]) -> Callable[..., Any]:
    """Run `warmdesk sync ...` on the data folder of this test; gives what it printed and its status."""

    def call(*words: str, as_json: bool = True) -> tuple[Any, int]:
        status, out, _ = warmdesk("sync", *words, "--data-dir", tmp_path / "desk", *["--json"] * as_json)
        return json.loads(out) if as_json else out, status

    return call


@pytest.fixture
def ingested(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """What a desk without models was asked to take in; folders called "broken" have nothing that can be read."""
    seen: list[tuple[str, dict[str, Any]]] = []

    def ingest(self: Service, paths: list[Path], progress: Progress, **options: Any) -> IngestReport:
        seen.append((str(paths[0]), options))
        failed = [FileReason(path=str(paths[0]), reason="no text in it")]
        return IngestReport(failed=failed) if "broken" in str(paths[0]) else IngestReport(documents=4, replaced=1)

    monkeypatch.setattr(Service, "ingest", ingest)
    return seen


def test_a_folder_is_added_listed_read_and_removed(
    tmp_path: Path, run: Callable[..., Any], ingested: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = write_pages(tmp_path / "pages")
    monkeypatch.chdir(tmp_path)
    added, status = run("add", "pages", "--every", "30", "--collection", "shop")
    (one,) = added["folders"]
    assert (status, one["folder"], one["collection"], one["every_minutes"]) == (0, str(pages), "shop", 30)
    assert (one["ok"], one["last_result"]["added"], one["last_result"]["changed"]) == (True, 3, 1)
    assert ingested == [(str(pages), {"collection": "shop", "sync": True, "warm": False})]
    assert run("list") == (added, 0)
    printed, _ = run("list", as_json=False)
    assert "every 30 minutes" in printed
    assert "3 added, 1 changed, 0 removed, 0 unchanged" in printed
    assert run("run", str(pages))[1] == run("run")[1] == 0
    assert len(ingested) == 3
    assert run("remove", "pages") == ({"removed": str(pages)}, 0)
    assert run("list") == ({"folders": []}, 0)


def test_a_reading_that_fails_is_said_and_is_the_status(
    tmp_path: Path, run: Callable[..., Any], ingested: list[Any]
) -> None:
    broken = write_pages(tmp_path / "broken")
    added, status = run("add", str(broken))
    assert (status, added["folders"][0]["ok"]) == (1, False)
    printed, status = run("run", as_json=False)
    assert (status, "FAILED" in printed, "no text in it" in printed) == (1, True, True)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("add", "none"), "sync-gone"),
        (("add", "desk"), "sync-own-folder"),
        (("add", "pages", "--every", "1"), "sync-interval"),
        (("run", "pages"), "sync-unknown"),
        (("remove", "pages"), "sync-unknown"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path,
    run: Callable[..., Any],
    ingested: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    code: str,
) -> None:
    write_pages(tmp_path / "pages")
    (tmp_path / "desk").mkdir()
    monkeypatch.chdir(tmp_path)
    said, status = run(*arguments)
    assert (said["error"]["code"], status) == (code, 1)
    assert ingested == []


def test_beside_a_served_desk_the_desk_reads(tmp_path: Path, run: Callable[..., Any]) -> None:
    pages = write_pages(tmp_path / "pages")
    with small_desk(tmp_path / "desk") as desk, served(tmp_path / "desk", desk):
        added, status = run("add", str(pages))
        assert (status, added["folders"][0]["last_result"]["added"]) == (0, 4)
        assert len(desk.documents()) == 4
        (pages / "stores.txt").unlink()
        again, _ = run("run", str(pages))
        assert again["folders"][0]["last_result"]["removed"] == 1
        assert run("list")[0] == again
        assert run("remove", str(pages))[1] == 0
        assert desk.synced.all() == []
        assert run("run", str(pages))[0]["error"]["code"] == "sync-unknown"
