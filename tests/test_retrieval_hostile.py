"""Files made to do harm, and files that were damaged: a document or one clear line, never anything else."""

import io
import json
import random
import struct
import zipfile
from pathlib import Path

import pytest
from made_files import (
    book,
    old_workbook,
    open_document_sheet,
    open_document_text,
    pdf,
    put,
    reason,
    slides,
    with_parts,
    word,
    workbook,
    zipped,
)
from PIL import Image

from retrieval.errors import UnreadableDocument
from retrieval.loaders.decoding import parsing
from retrieval.loaders.load import SUPPORTED, load
from retrieval.reading import FileReader, find_files

ROWS = [["Name", "Age"], ["Alice", "30"], ["Bob", "25"]]
OFFICE = {
    ".docx": word(),
    ".ods": open_document_sheet(ROWS),
    ".odt": open_document_text("<text:h>Title</text:h><text:p>Text.</text:p>"),
    ".pptx": slides(("Returns", ["Pack it"], "Notes.")),
    ".xlsx": workbook(One=ROWS),
}
MAIN_PART = {
    ".docx": "word/document.xml",
    ".ods": "content.xml",
    ".odt": "content.xml",
    ".pptx": "ppt/slides/slide1.xml",
    ".xlsx": "xl/worksheets/sheet1.xml",
}
HTML = b"<!DOCTYPE html><meta charset=utf-8><h1>Title</h1><ul><li>one<li>two</ul><table><tr><th>a<tr><td>1</table>"
SAMPLES = {
    **OFFICE,
    ".csv": b'question,answer\nHow?,So.\nWhy?,"Because, and so on."\n',
    ".eml": b"Subject: Title\nContent-Type: text/plain; charset=utf-8\n\nSome text.\n",
    ".epub": book("<p>One.</p>", "<p>Two.</p>"),
    ".htm": HTML,
    ".html": HTML,
    ".json": json.dumps([{"title": "One", "text": "Text."}] * 3).encode(),
    ".jsonl": b'{"q": "How?", "a": "So."}\n' * 3,
    ".markdown": b"# Title\n\n* one\n* two\n\n| a | b |\n|---|---|\n| 1 | 2 |\n",
    ".md": b"---\ntitle: x\nparts:\n  - title: T\n    body: A sentence stands here.\n---\n{% include x %}\n",
    ".mdx": b'import a from "b"\n\n:::tip[Mind]\n<Tab label="x">\nText.\n</Tab>\n:::\n',
    ".ndjson": b'{"title": "One", "body": "Text."}\n' * 3,
    ".pdf": pdf([(60, 700, 20, "Title"), (60, 660, 10, "Some text of this page.")], [(60, 700, 10, "More.")]),
    ".psv": b"a|b\n1|2\n",
    ".rst": b"Title\n=====\n\n- one\n- :ref:`x <y>`\n\n=== ===\na   b\n=== ===\n1   2\n=== ===\n",
    ".rtf": rb"{\rtf1\ansi Title\par \trowd a\cell b\cell\row Text.}",
    ".tab": b"a\tb\n1\t2\n",
    ".tsv": b"a\tb\n1\t2\n",
    ".txt": "Title\n\n- one\n- zwölf\n".encode(),
    ".xls": old_workbook(ROWS),
}


PICTURES = {".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}  # reading one takes a second


def test_a_small_picture_of_many_pixels_is_refused(tmp_path):
    Image.new("1", (8000, 8000)).save(tmp_path / "a.png")
    assert reason(tmp_path / "a.png") == "more than 60 million pixels"


@pytest.fixture(scope="module")
def reader():
    """A damaged spreadsheet can ask for more memory than there is."""
    with FileReader() as opened:
        yield opened


def is_document_or_one_line(reader: FileReader, path: Path) -> bool:
    try:
        return bool(reader.load(path).blocks)
    except UnreadableDocument as error:
        stopped = error.reason == "the program that reads files crashed on it"
        return "\n" not in str(error) and (not stopped or path.suffix == ".xls")


def test_there_is_a_sample_of_every_format(tmp_path):
    assert set(SAMPLES) | PICTURES == set(SUPPORTED)
    for suffix, data in SAMPLES.items():
        assert load(put(tmp_path / f"a{suffix}", data)).blocks


@pytest.mark.parametrize("suffix", sorted({*SAMPLES} - {".htm", ".markdown", ".ndjson", ".psv", ".tab"}))
def test_damaged_files_give_a_document_or_one_line(tmp_path, suffix, reader):
    chance = random.Random(suffix)
    path, data = tmp_path / f"a{suffix}", SAMPLES[suffix]
    for number in range(15):
        damaged = bytearray(data)
        if number % 3 == 0:
            del damaged[chance.randrange(len(data)) :]
        elif number % 3 == 1:
            for _ in range(chance.randrange(1, 8)):
                damaged[chance.randrange(len(data))] = chance.randrange(256)
        else:
            start = chance.randrange(len(data))
            damaged[start : start + chance.randrange(1, 60)] = chance.randbytes(chance.randrange(40))
        assert is_document_or_one_line(reader, put(path, bytes(damaged)))


@pytest.mark.parametrize("suffix", sorted(OFFICE))
def test_damaged_parts_inside_office_files(tmp_path, suffix, reader):
    """Flips in the XML itself, which those in compressed bytes never reach: their checksum fails before."""
    chance = random.Random(suffix)
    part = zipfile.ZipFile(io.BytesIO(OFFICE[suffix])).read(MAIN_PART[suffix])
    for number in range(6):
        damaged = bytearray(part)
        if number % 2:
            del damaged[chance.randrange(len(part)) :]
        else:
            damaged[chance.randrange(len(part))] = chance.randrange(32, 127)
        path = put(tmp_path / f"a{suffix}", with_parts(OFFICE[suffix], {MAIN_PART[suffix]: bytes(damaged)}))
        assert is_document_or_one_line(reader, path)


@pytest.mark.parametrize("suffix", sorted(OFFICE))
def test_office_files_of_another_kind(tmp_path, suffix):
    expected = f"damaged, or not a {suffix} file"
    assert reason(put(tmp_path / f"a{suffix}", zipped({"readme.txt": "no office file"}))) == expected


@pytest.mark.parametrize("suffix", sorted(OFFICE))
def test_zip_bombs_are_refused(tmp_path, suffix):
    bomb = with_parts(OFFICE[suffix], {"word/media/image1.png": bytes(21 * 2**20)})
    assert len(bomb) < 2**17
    assert reason(put(tmp_path / f"a{suffix}", bomb)) in (
        "unpacks to 21 MB: refused as a zip bomb",
        "unpacks to 22 MB: refused as a zip bomb",
    )
    claims = bytearray(OFFICE[suffix])
    entry = claims.index(b"PK\1\2")
    struct.pack_into("<I", claims, entry + 24, 3000 * 2**20)  # its unpacked size
    assert reason(put(tmp_path / f"b{suffix}", bytes(claims))) in (
        "unpacks to 3,000 MB: refused as a zip bomb",
        "unpacks to 3,001 MB: refused as a zip bomb",
    )


@pytest.mark.parametrize("suffix", sorted(OFFICE))
def test_a_zip_that_hides_its_size_is_damaged(tmp_path, suffix):
    data = bytearray(with_parts(OFFICE[suffix], {MAIN_PART[suffix]: b"<a>" + b" " * 2**20}))
    for marker, place in ((b"PK\1\2", 24), (b"PK\3\4", 22)):
        start = 0
        while (start := data.find(marker, start)) >= 0:
            struct.pack_into("<I", data, start + place, 9)
            start += 4
    assert reason(put(tmp_path / f"a{suffix}", bytes(data))).startswith("damaged")


@pytest.mark.parametrize("suffix", sorted(OFFICE))
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("entity", ['"lol"', 'SYSTEM "file:///etc/passwd"'])
def test_entities_are_refused(tmp_path, suffix, encoding, entity):
    laughs = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
    part = f'<?xml version="1.0" encoding="{encoding}"?>\n<!DOCTYPE x [<!ENTITY l0 {entity}>{laughs}]><x>&l9;</x>'
    data = with_parts(OFFICE[suffix], {MAIN_PART[suffix]: part.encode(encoding)})
    assert reason(put(tmp_path / f"a{suffix}", data)) == "declares XML entities: refused"


def test_names_inside_archives_lead_nowhere(tmp_path):
    inner = tmp_path / "in" / "deep"
    inner.mkdir(parents=True)
    for suffix, data in OFFICE.items():
        evil = with_parts(
            data, {"../../evil.txt": "x", "/tmp/evil_absolute.txt": "x", "word/../../../evil.xml": "<x/>"}
        )
        load(put(inner / f"a{suffix}", evil))
    assert sorted(path.name for path in tmp_path.rglob("*")) == sorted(["in", "deep", *(f"a{s}" for s in OFFICE)])
    assert not Path("/tmp/evil_absolute.txt").exists()


def test_nothing_of_scripts_is_in_the_text(tmp_path):
    page = (
        "<html><head><script>alert('evil')</script><style>p{evil}</style><meta http-equiv=refresh content='0;evil'>"
        "</head><body onload='evil()'><p onclick='evil()'>Text<script src='https://evil.example/x.js'></script>"
        "<SCRIPT>document.write('evil')</SCRIPT><noscript>evil</noscript><iframe src='evil'>evil</iframe>"
        "<object>evil</object><select><option>evil</select><textarea>evil</textarea><?php evil ?>"
        "<template>evil</template><svg><script>evil</script></svg><!-- evil -->"
        "<img src=x onerror='evil()' alt='evil'><a href='javascript:evil()'>link</a></p></body></html>"
    )
    for suffix in (".html", ".md"):
        document = load(put(tmp_path / f"a{suffix}", page.encode()))
        assert [block.text for block in document.blocks] == ["Textlink"]
        assert "evil" not in document.title


def test_names_with_line_breaks_and_control_characters(tmp_path):
    name = "bad\nerror: all is lost\x1b[2J\u202e.txt"
    put(tmp_path / name, b"")
    ((path, problem),) = find_files([tmp_path])
    assert problem is None
    with pytest.raises(UnreadableDocument) as caught:
        load(path)
    assert str(caught.value).endswith("bad\\nerror: all is lost\\x1b[2J\\u202e.txt: empty file")
    put(path, b"Text.")
    assert load(path).title.isprintable()


@pytest.mark.parametrize(
    "error", [ValueError("x\ny"), KeyError(1), AssertionError(), type("PanicException", (BaseException,), {})()]
)
def test_whatever_a_parser_raises_is_one_error(error):
    """Also a panic in Rust."""
    with pytest.raises(UnreadableDocument, match=r"damaged, or not a \.pdf file$"), parsing(Path("a.pdf")):
        raise error


@pytest.mark.parametrize("error", [MemoryError, RecursionError, KeyboardInterrupt])
def test_what_is_not_the_parsers_fault_passes(error):
    with pytest.raises(error), parsing(Path("a.pdf")):
        raise error
