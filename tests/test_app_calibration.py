"""The results of `warmdesk calibrate` and `calibrate-search`, as files of this and the version before."""

from dataclasses import replace
from pathlib import Path

import pytest

from app.desk.calibration import (
    SEARCH_FILE,
    SHIPPED_RANKER,
    find_classifier,
    find_ranker,
    read_calibration,
    read_classifier,
    write_classifier,
)
from app.domain.errors import DeskError
from app.domain.settings import Settings
from retrieval.answerability import rule_of_thumb
from retrieval.ranking.encoder import CARD


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000, '{"rows": []}', '{"rows": [{"policy": "fast"}]}'])
def test_another_file_is_an_error_that_says_what_to_do(text: str, tmp_path: Path) -> None:
    (tmp_path / "calibration.json").write_text(text)
    with pytest.raises(DeskError, match="run `warmdesk calibrate` again"):
        read_calibration(tmp_path / "calibration.json")


def test_search_has_a_classifier_for_every_embedder_and_ranker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(data_dir=tmp_path / "desk")
    settings.data_dir.mkdir()
    shipped = replace(rule_of_thumb("small", "first"), fitted_on="shipped")
    own = replace(rule_of_thumb("small", "second"), fitted_on="own")
    write_classifier(tmp_path / "shipped.json", shipped)
    write_classifier(settings.data_dir / SEARCH_FILE, own)
    monkeypatch.setattr("app.desk.calibration.SHIPPED_SEARCH", tmp_path / "shipped.json")
    assert find_classifier(settings, "small", "second") == own
    assert find_classifier(settings, "small", "first") == shipped
    assert not caplog.messages
    assert find_classifier(settings, "large", "first") == rule_of_thumb("large", "first")
    assert caplog.messages == [
        "search is not calibrated for embedder large and ranker first: run warmdesk calibrate-search"
    ]


def test_a_classifier_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    file, older = tmp_path / "desk" / SEARCH_FILE, rule_of_thumb("small", "older")
    write_classifier(file, older)
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_classifier(file, rule_of_thumb("small", "newer"))
    assert (read_classifier(file), list(file.parent.iterdir())) == (older, [file])


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000, "{}", '{"embedder": "x", "relevance": {}}'])
def test_a_classifier_that_cannot_be_read_is_an_error_that_says_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / SEARCH_FILE).write_text(text)
    with pytest.raises(DeskError, match="delete it or run warmdesk calibrate-search"):
        find_classifier(Settings(data_dir=tmp_path), "another", "ranker")


def test_a_ranker_of_the_operator_s_own_comes_before_the_shipped_one(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    assert find_ranker(settings) == SHIPPED_RANKER
    (tmp_path / "ranker").mkdir()
    assert find_ranker(settings) == SHIPPED_RANKER, "its training has not written it yet"
    (tmp_path / "ranker" / CARD).write_text("{}")
    assert find_ranker(settings) == tmp_path / "ranker"
