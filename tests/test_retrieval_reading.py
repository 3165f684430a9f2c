"""Files read in a process of their own: the same documents and errors, and limits that hold."""

import sys
import threading
import time
from pathlib import Path
from textwrap import dedent

import pytest
from forked import Forked
from made_files import pdf, put, word, workbook
from waiting import has_ended, wait_until

from retrieval.errors import UnreadableDocument
from retrieval.loaders.load import load
from retrieval.reading import FileReader

# A child whose files misbehave as their first word says. The loaders take a second to import, so it has none.
WILD = """
    import os, sys, time, types
    from retrieval import reading
    from retrieval.documents import Block, Document

    def load(path):
        text = path.read_text()
        match text.split()[0]:
            case "hang":
                time.sleep(600)
            case "die":
                os._exit(3)
            case "allocate":
                bytearray(8 * 2**30)
            case "print":
                print('{"reason": "printed"}', flush=True)
                os.write(1, b"noise")
            case "raise":
                raise LookupError("a bug")
        return Document(path=path, title="", blocks=(Block(kind="text", text=text),), content_hash="")

    for name in ("load", "web_page"):
        sys.modules[f"retrieval.loaders.{name}"] = types.SimpleNamespace(load=load, read_page=None)
    reading.main()
"""
COMMAND = [sys.executable, "-c", dedent(WILD)]


@pytest.fixture(scope="module")
def reader():
    with FileReader() as opened:
        yield opened


@pytest.fixture(scope="module")
def wild():
    with FileReader(seconds=30, command=COMMAND) as opened:
        yield opened


def reason(reader: FileReader, path: Path) -> str:
    with pytest.raises(UnreadableDocument) as caught:
        reader.load(path)
    assert caught.value.path == path
    assert "\n" not in str(caught.value)
    return caught.value.reason


def test_the_same_documents_as_without_it(tmp_path, reader):
    faq = b"q,a\nHow?,So.\nWhy?,\n"
    samples = {
        "a.docx": word(),
        "a.md": "# Größe 退款 👩\u200d🔧\n\nText.".encode(),
        "a.pdf": pdf([(60, 700, 10, "Text.")]),
        "a.xlsx": workbook(One=[["a", "b"], [1, 2]]),
        "faq.csv": faq,
    }
    for name, data in samples.items():
        path = put(tmp_path / name, data)
        assert reader.load(path) == load(path)
    assert reader.load(tmp_path / "faq.csv").is_faq
    assert reader.load(tmp_path / "faq.csv").remarks


def test_the_same_errors_as_without_it(tmp_path, reader):
    for path in (
        put(tmp_path / "a.md", b""),
        put(tmp_path / "a.pdf", b"noise"),
        tmp_path / "missing.md",
        tmp_path / "a.doc",
        tmp_path / "bad\nname\x1b.md",
        tmp_path / "\udcff.md",
        tmp_path,
    ):
        with pytest.raises(UnreadableDocument) as expected:
            load(path)
        with pytest.raises(UnreadableDocument) as found:
            reader.load(path)
        assert str(found.value) == str(expected.value)


def test_relative_paths_are_those_of_the_parent(tmp_path, reader, monkeypatch):
    put(tmp_path / "a.md", b"Text.")
    monkeypatch.chdir(tmp_path)
    assert reader.load(Path("a.md")).path == Path("a.md")


def test_a_file_that_takes_too_long_is_given_up_and_the_next_one_read(tmp_path, wild):
    good = put(tmp_path / "good.txt", b"Text.")
    assert wild.load(good).blocks
    wild._seconds = 0.2
    assert reason(wild, put(tmp_path / "a.txt", b"hang")) == "took longer than 0.2 s to read"
    wild._seconds = 30.0
    assert wild.load(good).blocks


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs a limit on address space")
def test_memory_is_limited(tmp_path, wild):
    assert reason(wild, put(tmp_path / "a.txt", b"allocate")) == "needs too much memory to read"
    assert wild.load(put(tmp_path / "a.txt", b"Text.")).blocks


def test_a_child_that_ends_is_replaced(tmp_path, wild):
    for word_of_file in (b"die", b"raise"):
        assert reason(wild, put(tmp_path / "a.txt", word_of_file)) == "the program that reads files crashed on it"
        assert wild.load(put(tmp_path / "b.txt", b"Text.")).blocks


def test_what_libraries_print_is_no_answer(tmp_path, wild):
    assert wild.load(put(tmp_path / "a.txt", b"print")).blocks[0].text == "print"
    assert wild.load(put(tmp_path / "a.txt", b"Text.")).blocks[0].text == "Text."


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks into /proc")
def test_the_child_never_imports_torch(tmp_path, reader):
    for name, data in (("a.pdf", pdf([(60, 700, 10, "Text.")])), ("a.docx", word())):
        reader.load(put(tmp_path / name, data))
    assert "libtorch" not in Path(f"/proc/{reader._child._process.pid}/maps").read_text()


BLOCK = '{{"title": "", "blocks": [{}], "content_hash": "", "is_faq": false, "remarks": []}}'


@pytest.mark.parametrize(
    "answer",
    [
        *("[]", "null", "noise", '{"title": 1}', '"reason"', "[" * 5000, BLOCK.format('{"kind": "text"}')),
        BLOCK.format('{"kind": "script", "text": "x", "level": 0}'),
        r'{"reason": "a\nb\u001b[0m"}',
    ],
)
def test_answers_are_not_trusted(tmp_path, answer):
    child = f"import sys\nfor line in sys.stdin: print({answer!r}, flush=True)"
    given = r"a\nb\x1b[0m" if "reason" in answer and ":" in answer else "the program that reads files crashed on it"
    with FileReader(command=[sys.executable, "-c", child]) as reader:
        assert reason(reader, tmp_path / "a.txt") == given


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
def test_the_child_is_started_lazily_and_ends_with_close(tmp_path):
    reader = FileReader(command=COMMAND)
    assert reader._child is None
    reader.load(put(tmp_path / "a.md", b"Text."))
    process = reader._child._process.pid
    assert not has_ended(process)
    reader.close()
    reader.close()
    assert has_ended(process)
    assert reader.load(tmp_path / "a.md").blocks
    reader.close()


def hang(folder: Path) -> None:
    reader = FileReader(command=COMMAND)
    reader.load(folder / "b.txt")
    threading.Thread(target=reader.load, args=(folder / "a.txt",), daemon=True).start()
    time.sleep(0.3)
    print(reader._child._process.pid, flush=True)
    time.sleep(60)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
def test_the_child_ends_when_the_parent_dies_even_in_the_middle_of_a_file(tmp_path):
    put(tmp_path / "a.txt", b"hang")
    put(tmp_path / "b.txt", b"Text.")
    process = Forked(hang, tmp_path)
    child = int(process.stdout.readline())
    assert not has_ended(child)
    process.kill()
    wait_until(lambda: has_ended(child))
