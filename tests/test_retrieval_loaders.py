"""What every format has in common: refusals, encodings, titles, hashes. The formats have their own tests."""

import codecs
import os
import random
from pathlib import Path

import pytest
from made_files import put, reason, shown

from retrieval.documents import content_hash
from retrieval.loaders.load import SUPPORTED, load
from retrieval.text.terms import readable

TEXT = (".htm", ".html", ".markdown", ".md", ".mdx", ".rst", ".txt")
TABLES = (".csv", ".psv", ".tab", ".tsv")
JSON = (".json", ".jsonl", ".ndjson")
WESTERN = "Les frais de livraison s'élèvent à 4,95 €. Où êtes-vous ?"


def text_of(path: Path) -> str:
    return "\n".join(block.text for block in load(path).blocks)


@pytest.mark.parametrize("suffix", sorted({*TEXT, *TABLES, *JSON}))
def test_every_text_format_refuses_what_is_no_document(tmp_path, suffix):
    path = tmp_path / f"file{suffix}"
    noise = random.Random(0).randbytes(3000)
    assert reason(put(path, b"")) == "empty file"
    assert reason(put(path, b" \r\n\t\n")) == "no text in it"
    assert reason(put(path, codecs.BOM_UTF8)) == "no text in it"
    assert reason(put(path, b"%PDF-1.4\n\0\1\2 text")) == f"not text: binary content in a {suffix} file"
    assert reason(put(path, noise.replace(b"\0", b""))) == f"not text: binary content in a {suffix} file"
    assert reason(put(path, codecs.BOM_UTF16_LE + b"\0\xd8\0")) == f"not text: binary content in a {suffix} file"


@pytest.mark.parametrize("suffix", sorted(set(SUPPORTED) - {*TEXT, *TABLES, *JSON}))
def test_every_binary_format_refuses_what_is_no_document(tmp_path, suffix):
    path = tmp_path / f"file{suffix}"
    assert reason(put(path, b"")) == "empty file"
    for data in (b" \r\n\t\n", b"plain text", random.Random(0).randbytes(3000), b"PK\3\4 and no more"):
        assert reason(put(path, data)) == f"damaged, or not a {suffix} file"


@pytest.mark.parametrize("suffix", TEXT)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "cp1252"])
def test_every_text_format_reads_every_encoding(tmp_path, suffix, encoding):
    assert text_of(put(tmp_path / f"a{suffix}", WESTERN.encode(encoding))) == WESTERN


def test_more_encodings(tmp_path):
    path = tmp_path / "a.txt"
    chinese = "退款将在五个工作日内退回原支付方式。请保留订单号。"
    quotes = "It’s “free” – returns within 30 days cost €3.50."
    assert text_of(put(path, chinese.encode("gb18030"))) == chinese
    assert text_of(put(path, quotes.encode("cp1252"))) == quotes
    swedish = "Återbetalning sker inom fem arbetsdagar. Så här gör du: välj vara, fyll i orsak."
    assert text_of(put(path, swedish.encode("cp1252"))) == swedish
    damaged = "Größe, Länge, Höhe, Gerät, für, Tür, Öl, Übung, Maß, süß, früh.".encode() + b"\xff"
    assert "Größe" in text_of(put(path, damaged))


def test_an_html_page_may_declare_its_encoding(tmp_path):
    page = '<meta charset="ibm850"><p>Größe und Länge</p>'.encode("cp850")
    assert text_of(put(tmp_path / "a.html", page)) == "Größe und Länge"
    assert " und " in text_of(put(tmp_path / "b.html", page.replace(b"ibm850", b"no-such-encoding")))


def test_files_that_cannot_be_opened(tmp_path, monkeypatch):
    path = put(tmp_path / "a.md", b"x")
    assert reason(tmp_path / "missing.md") == "no such file or folder"
    folder = tmp_path / "folder.md"
    folder.mkdir()
    assert reason(folder) == "not a regular file"
    os.mkfifo(tmp_path / "pipe.md")
    assert reason(tmp_path / "pipe.md") == "not a regular file"

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    assert reason(path) == "permission denied"


def test_size_limit(tmp_path):
    path = put(tmp_path / "a.txt", b"x" * 1001)
    assert reason(path, max_bytes=1000) == "file is larger than 0.000954 MB"
    assert load(path, max_bytes=1001).blocks
    with (tmp_path / "big.txt").open("wb") as file:
        file.truncate(20 * 2**20 + 1)
    assert reason(tmp_path / "big.txt") == "file is larger than 20 MB"


def test_unsupported_types_name_the_supported_ones(tmp_path):
    assert reason(tmp_path / "a.EXE") == f".EXE files are not supported (supported: {' '.join(SUPPORTED)})"
    assert reason(tmp_path / "a.Doc") == ".Doc files are not supported: save it as .docx"
    assert reason(tmp_path / "a.ppt") == ".ppt files are not supported: save it as .pptx"
    assert reason(tmp_path / "LICENSE").startswith("files without a suffix are not supported")
    assert load(put(tmp_path / "a.TXT", b"text")).blocks


def test_the_hash_is_that_of_the_bytes(tmp_path):
    document = load(put(tmp_path / "a.txt", b"text\r\n"))
    assert document.content_hash == content_hash(b"text\r\n") != content_hash(b"text\n")
    assert document.content_hash.startswith("b2:")
    assert len(document.content_hash) == 3 + 64


def test_titles_fall_back_to_the_file_name(tmp_path):
    assert load(put(tmp_path / "order-status_and--tracking.md", b"Text.")).title == "Order status and tracking"
    assert load(put(tmp_path / "__.md", b"Text.")).title == "Untitled"
    long = load(put(tmp_path / "a.md", b"# " + b"word " * 100 + b"\n\nText.")).title
    assert len(long) == 200
    assert long.endswith("…")


def test_plain_text_keeps_lines_and_finds_title_and_lists(tmp_path):
    path = put(tmp_path / "a.txt", b"Opening hours\n\nMonday 9-18\nTuesday 9-18\n \n- one\n- two\r\n\r\n\r\nEnd.")
    document = load(path)
    assert document.title == "Opening hours"
    assert shown(document) == [
        ("heading", "Opening hours"),
        ("text", "Monday 9-18\nTuesday 9-18"),
        ("list", "- one\n- two"),
        ("text", "End."),
    ]
    assert load(put(path, b"A sentence.\n\nAnother one.")).title == "A"


def test_characters_without_meaning_are_removed():
    assert readable("a\r\nb\rc\u2028d") == "a\nb\nc\nd"
    assert readable("zero\u200bwidth\ufeff so\u00adft \u202eevil\x1b[0m \ud800") == "zerowidth soft evil[0m "
    assert readable("12\u00a0EUR\u3000e\u0301") == "12 EUR é"
    assert readable("👩\u200d🔧") == "👩\u200d🔧"


def test_encoded_data_is_no_word(tmp_path):
    document = load(put(tmp_path / "a.txt", b"Text " + b"x" * 2001 + b" goes on.\n\n" + b"y" * 20 * 2**19))
    assert shown(document) == [("text", "Text … goes on.")]
    assert document.remarks == ("2 words of more than 2,000 characters skipped",)
    for unspaced in ("长" * 3000, "ก" * 3000):
        assert load(put(tmp_path / "a.txt", unspaced.encode())).blocks[0].text == unspaced
