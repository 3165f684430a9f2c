"""reStructuredText: structure kept, nothing inserted from elsewhere."""

from pathlib import Path

from made_files import put

from retrieval.documents import Document
from retrieval.loaders.load import load

PAGE = """
Returns
=======

You have **30 days**, see :doc:`the rules </rules>` and :ref:`refunds`.

- Keep the box
- Keep the bill

Prices
------

======= =====
Country Price
======= =====
Norway  9.50
======= =====

.. note:: Only with a bill.

.. code-block:: python

   x = 1
"""


def read(tmp_path: Path, text: str) -> Document:
    return load(put(tmp_path / "a.rst", text.encode()))


def test_structure(tmp_path):
    document = read(tmp_path, PAGE)
    assert document.title == "Returns"
    assert [(block.kind, block.text) for block in document.blocks] == [
        ("heading", "Returns"),
        ("text", "You have 30 days, see the rules and refunds."),
        ("list", "- Keep the box\n- Keep the bill"),
        ("heading", "Prices"),
        ("table", "Country: Norway; Price: 9.50"),
        ("text", "Note"),
        ("text", "Only with a bill."),
        ("code", "x = 1"),
    ]


def test_nothing_is_inserted_and_no_messages_are_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)  # where docutils looks for its settings
    secret = put(tmp_path / "secret.txt", b"secret words")
    put(tmp_path / "docutils.conf", b"[general]\nfile_insertion_enabled: yes\nraw_enabled: yes\n")
    for directive in ("include", "literalinclude", "raw:: html\n   :file", "csv-table:: x\n   :file"):
        text = f"Text.\n\n.. {directive}:: {secret}\n\n.. unknown::\n\n   x\n\nHeading\n=\n\n*open |never| `x`_\n"
        shown = "\n".join(block.text for block in read(tmp_path, text).blocks)
        assert shown.startswith("Text.")
        assert "secret words" not in shown
        assert "WARNING" not in shown
        assert "ERROR" not in shown
    (block,) = read(tmp_path, "Text.\n\n.. raw:: html\n\n   <b>raw</b>\n").blocks
    assert block.text == "Text."
    assert capsys.readouterr() == ("", "")


def test_a_megabyte_on_one_line(tmp_path):
    (block,) = read(tmp_path, "x" * 2**20).blocks
    assert len(block.text) == 2**20
