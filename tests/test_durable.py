"""Files that appear whole or not at all."""

from pathlib import Path

import pytest

from durable import replacing


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
