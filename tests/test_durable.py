"""Files that appear whole or not at all."""

import pytest

from durable import replacing, scratch_folder


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    file = tmp_path / "a.json"
    for text in ("first", "second"):
        with replacing(file) as temporary:
            temporary.write_text(text)
            assert not file.exists() or file.read_text() == "first"
        assert (file.read_text(), file.stat().st_mode & 0o777) == (text, 0o600)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(FileNotFoundError), replacing(file):
        (tmp_path / "nothing").read_text()
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"), replacing(file) as temporary:
        temporary.write_text("third")
    assert (file.read_text(), list(tmp_path.iterdir())) == ("second", [file])


def test_a_scratch_folder_that_cannot_be_removed_costs_nothing(tmp_path, monkeypatch):
    """Was wrong once: `tempfile.TemporaryDirectory` recursed until Python ended it."""

    def fail(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    with scratch_folder(tmp_path, ".made-") as folder:
        (folder / "file").write_text("text")
        for name in ("unlink", "rmdir"):
            monkeypatch.setattr(f"os.{name}", fail)
    monkeypatch.undo()
    with scratch_folder(tmp_path, ".other-") as other:
        pass
    assert [*tmp_path.iterdir()] == [folder]
    assert not other.exists()
