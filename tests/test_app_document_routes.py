"""The admin's page of documents: who may use it, what it streams, and what names and titles cannot do."""

import html
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from desks import small_desk
from fake_desk import fake_document
from fastapi import FastAPI
from fastapi.testclient import TestClient

from app.desk.service import Service
from app.domain.errors import DeskError
from app.knowledge.uploads import collection_folder, keep_file, safe_name
from app.storage.people import Audit
from app.web.document_routes import FAILED, add_document_routes
from app.web.rendering import problem_words
from app.web.server import MAX_UPLOAD
from retrieval.documents import MAX_BYTES
from retrieval.reading import FileReader


@pytest.fixture
def site(site):
    for done in (site.desk.listed, site.desk.ingested, site.desk.uploads):
        done.clear()
    return site


def events(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("application/x-ndjson")
    return [json.loads(line) for line in response.text.splitlines()]


def test_markup_in_titles_paths_and_collections_stays_text(site):
    hostile = """"><script>window.owned=1</script><img src=x onerror='window.owned=2'>\u202e&amp;"""
    path = f"/help/{hostile}.md"
    site.desk.listed[path] = fake_document(path, hostile, collection=hostile)
    page = site.admin().get("/admin/documents").text
    assert "<script>" not in page
    assert "<img" not in page
    assert "\u202e" not in page
    text = "&lt;script&gt;window.owned=1"
    assert page.count(text) == 8  # offered, at its chip, title twice, path thrice, at the row
    chosen = site.admin().get("/admin/documents", params={"collection": hostile}).text
    assert "<script>" not in chosen
    assert chosen.count(text) == 8 + 4  # thrice at the button, in the hidden field of the search
    rows = page.partition("<tbody>")[2].partition("</tbody>")[0]
    assert rows.count('"') == 2 * 11, "no quotation mark ends an attribute early"
    quoted = rows.partition('data-document="')[2].partition('"')[0]
    assert html.unescape(quoted) == path.replace("\u202e", ""), "what the button sends back"


def test_too_much_is_refused_before_it_is_read(site):
    headers = {"content-length": str(MAX_UPLOAD + 1)}
    response = site.admin().post("/admin/documents/upload?name=a.md", content=b"x", headers=headers)
    assert response.status_code == 413
    assert site.desk.uploads == {}
    assert MAX_UPLOAD > MAX_BYTES, "a file of the greatest size passes"


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("returns.md", "returns.md"),
        ("../../etc/cron.d/job.md", "job.md"),
        ("C:\\Users\\me\\Returns 2024.txt", "Returns 2024.txt"),
        ("a/..\\b.md", "b.md"),
        ("re\x00tur\x1b[31mns\r\n\t.md", "retur[31mns .md"),
        ("  two   words.md ", "two words.md"),
        ("返品.md", "返品.md"),
    ],
)
def test_only_the_last_part_of_a_name_is_kept_and_nothing_invisible(tmp_path, name, kept):
    assert safe_name(name) == kept
    keep_file(tmp_path / "uploads" / safe_name(name), b"text")
    assert [path.name for path in (tmp_path / "uploads").iterdir()] == [kept]


@pytest.mark.parametrize(
    "name", ["", " ", "/", "a/", "\\", ".", "..", "...", ".md", "a/.md", " .md", "\u200b.md", "\0"]
)
def test_names_that_are_none_are_refused(name):
    with pytest.raises(DeskError) as caught:
        safe_name(name)
    assert caught.value.code == "bad-name"


@pytest.mark.parametrize(("data", "code"), [(b"x" * 101, "upload-too-large"), (b"\0\1\2 binary", "unreadable")])
def test_what_is_too_large_or_cannot_be_read_leaves_the_former_file(tmp_path, monkeypatch, data, code):
    monkeypatch.setattr("app.knowledge.uploads.MAX_BYTES", 100)
    file = tmp_path / "a.md"
    keep_file(file, b"x" * 100)
    monkeypatch.setattr("app.knowledge.uploads.FileReader", FileReader)  # with a process of its own, as always
    with pytest.raises(DeskError) as caught:
        keep_file(file, data)
    assert caught.value.code == code
    assert (file.read_bytes(), list(tmp_path.iterdir())) == (b"x" * 100, [file])


def test_an_internal_error_is_one_line_without_a_trace(site, caplog):
    response = site.admin().post("/admin/documents/forget", json={"document": "crash"})
    assert events(response)[-1] == {"error": {"code": "internal", "message": problem_words("internal", FAILED)}}
    assert "Traceback" not in response.text
    assert "/secret/place" not in response.text
    assert "a change of the documents failed" in caplog.text


def test_an_upload_that_breaks_leaves_the_former_file_and_nothing_else(tmp_path, monkeypatch):
    keep_file(tmp_path / "uploads" / "a.md", b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        keep_file(tmp_path / "uploads" / "a.md", b"new")
    assert {path.name: path.read_bytes() for path in (tmp_path / "uploads").iterdir()} == {"a.md": b"old"}


def client_of(desk: Service) -> TestClient:
    app = FastAPI()
    add_document_routes(app, desk, Audit(desk.database).record)
    return TestClient(app)


def upload(client: TestClient, name: str, text: str, collection: str = "") -> dict[str, Any]:
    params = {"name": name, "collection": collection}
    return events(client.post("/admin/documents/upload", params=params, content=text.encode()))[-1]


def test_a_second_upload_of_the_same_name_replaces_the_first(tmp_path):
    with small_desk(tmp_path / "desk") as desk:
        client = client_of(desk)
        first = upload(client, "cards.md", "# Cards\n\nCards last five years.\n")["result"]
        same = upload(client, "x/cards.md", "# Cards\n\nCards last five years.\n")["result"]
        second = upload(client, "cards.md", "# Cards\n\nCards last nine years.\n")["result"]
        (document,) = desk.documents()
        assert document.path == str((desk.settings.uploads_folder / "cards.md").resolve())
        assert "nine years" in desk.library.passages_of(document.path)[0].text
        assert "Cards" in client.get("/admin/documents").text
        assert desk.settings.uploads_folder.stat().st_mode & 0o777 == 0o700
        assert Path(document.path).stat().st_mode & 0o077 == 0
    assert (first["documents"], first["replaced"]) == (1, 0)
    assert (same["unchanged"], second["replaced"], second["changes"]["dropped"]) == (1, 1, 1)


def kept_files(desk: Service) -> dict[str, str]:
    """The uploaded files below their folder, with their text."""
    folder = desk.settings.uploads_folder
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_the_same_name_in_another_collection_is_another_document(tmp_path):
    with small_desk(tmp_path / "desk") as desk:
        client = client_of(desk)
        for collection, text in (("", "Plain."), ("de", "Deutsch."), ("a/../b", "Odd."), ("de", "Neu.")):
            assert "result" in upload(client, "cards.md", f"# Cards\n\n{text}\n", collection)
        assert sorted((one.collection, one.title) for one in desk.documents()) == [
            *(("", "Cards"), ("a/../b", "Cards"), ("de", "Cards"))
        ]
        assert kept_files(desk) == {
            "cards.md": "# Cards\n\nPlain.\n",
            "de.d/cards.md": "# Cards\n\nNeu.\n",
            "a%00002F..%00002Fb.d/cards.md": "# Cards\n\nOdd.\n",
        }
        desk.forget("de.d/cards.md")
        assert "de.d/cards.md" not in kept_files(desk)


def test_a_file_kept_before_there_were_folders_is_replaced_where_it_is(tmp_path):
    with small_desk(tmp_path / "desk") as desk:
        file = desk.settings.uploads_folder / "cards.md"
        keep_file(file, b"# Cards\n\nOld.\n")
        desk.ingest([file], collection="de")
        desk.upload("cards.md", b"# Cards\n\nNew.\n", collection="de")
        desk.upload("cards.md", b"# Cards\n\nNone.\n")
        assert kept_files(desk) == {"cards.md": "# Cards\n\nNew.\n", ".d/cards.md": "# Cards\n\nNone.\n"}
        assert len(desk.documents()) == 2


def test_an_upload_while_documents_are_taken_in_leaves_nothing(tmp_path):
    with small_desk(tmp_path / "desk") as desk:
        desk.upload("a.md", b"# A\n\nFirst.\n")

        client, tried = client_of(desk), set[str]()

        def meanwhile(stage: str, done: int, total: int) -> None:
            for name in () if stage in tried else ("a.md", "b.md"):
                assert upload(client, name, "# B\n\nSecond.\n")["error"]["code"] == "ingestion-running"
            tried.add(stage)

        desk.ingest([tmp_path], meanwhile, warm=False)  # while passages are encoded, nobody waits
        assert tried
        assert kept_files(desk) == {"a.md": "# A\n\nFirst.\n"}


@pytest.mark.parametrize("is_stored", [False, True])
def test_an_upload_that_fails_is_kept_only_if_it_is_a_document(tmp_path, monkeypatch, is_stored):
    with small_desk(tmp_path / "desk") as desk:
        desk.upload("a.md", b"# A\n\nFirst.\n")

        def stop(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(desk._ingestion, "_choose_neighbours" if is_stored else "_store", stop)
        for name in ("a.md", "b.md"):
            with pytest.raises(KeyboardInterrupt):
                desk.upload(name, b"# A\n\nSecond.\n")
        second = "# A\n\nSecond.\n"
        assert kept_files(desk) == ({"a.md": second, "b.md": second} if is_stored else {"a.md": "# A\n\nFirst.\n"})
        assert {Path(one.path).name for one in desk.documents()} == set(kept_files(desk))


def test_folders_of_collections_differ_and_have_names():
    names = ["", "a", "A", "a/b", "a%00002Fb", "..", "退款", "a b", "a\0b"]
    assert len({collection_folder(name) for name in names}) == len(names)
    assert not any("/" in collection_folder(name) or collection_folder(name) in (".", "..") for name in names)
    with pytest.raises(DeskError, match="too long"):
        collection_folder("x" * 200)


def test_work_goes_on_when_nobody_listens_any_more(site):
    with site.admin().stream("POST", "/admin/documents/upload?name=a.md", content=b"# A") as response:
        next(response.iter_lines())
    assert site.desk.ingested
