"""Real files that broke other readers; not part of the repository, so skipped where they are missing."""

from pathlib import Path

import pytest

from retrieval.errors import UnreadableDocument
from retrieval.loaders.load import load

FOLDER = Path("/work/shared/data/ingest_edge_cases")
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the files of other readers' tests are not here")

PICTURES = "only pictures, no text in it"
SCANNED = "no text layer: 1 scanned page; run OCR first (for example ocrmypdf)"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("another_file_no_utf8.html", "Part of what makes a successful attorney"),
        ("another_file_no_utf8.md", "Part of what makes a successful attorney"),
        ("file.csv", "Column1: 1.764052345967664; Column2: 0.4001572083672233"),
        ("file.docx", "Meet Zylon - an AI collaborator"),
        ("file.html", "Attribute: Creativity; Description: Designing"),
        ("file.md", "Attribute: Creativity; Description: Designing"),
        ("file.txt", "This directory contains test data"),
        ("file.xls", "First Name: Dulce; Last Name: Abril; Gender: Female"),
        ("file.xlsx", "Nome: ADILSON ALVES LUCAS; CPF/RG: 578.774.241-91; e-mail: alucasf@hotmail.com; Total Horas: 4"),
        ("file_comma.csv", "Name: Alice; Age: 30; City: New York"),
        ("file_failing.docx", "Considera dimitir: Debido a la campaña"),
        ("file_general_elements.pdf", "identifier and ending with a semicolon"),
        ("file_multicolumn.pdf", "adipiscing elit. Ut purus"),
        ("file_no_utf8.html", "After perusal of:"),
        ("file_pipe.psv", "Name: Alice; Age: 30; City: New York"),
        ("file_quote.csv", "item: 1; description: this is a description with a , in the middle"),
        ("file_semicolon.csv", "Name: Alice; Age: 30; City: New York"),
        ("file_tab.tsv", "Name: Alice; Age: 30; City: New York"),
        ("file_unknown.txt", "Title: The Great Gatsby"),
        ("file_window.html", "Watani Al Emarat Foundation"),
    ],
)
def test_files_that_are_read(name: str, text: str) -> None:
    shown = "\n".join(block.text for block in load(FOLDER / name).blocks)
    assert text in shown
    assert "\ufffd" not in shown


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("file_emoji.html", PICTURES),
        ("file_emoji.md", PICTURES),
        ("file_failing.ppt", ".ppt files are not supported: save it as .pptx"),
        ("file_image.pdf", SCANNED),
        ("file_scanned.pdf", SCANNED),
    ],
)
def test_files_that_are_refused(name: str, reason: str) -> None:
    with pytest.raises(UnreadableDocument) as caught:
        load(FOLDER / name)
    assert caught.value.reason == reason
