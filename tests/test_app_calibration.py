"""The results of `warmdesk calibrate` and `calibrate-search`, as files of this and the version before."""

from dataclasses import replace

import pytest

from app.desk.calibration import (
    FILE,
    SEARCH_FILE,
    SHIPPED_RANKER,
    find_calibration,
    find_classifier,
    find_ranker,
    read_calibration,
    setup_of,
    write_calibration,
    write_classifier,
)
from app.desk.doctor import calibration
from app.domain.errors import DeskError
from app.domain.settings import Settings
from retrieval.answerability import rule_of_thumb
from retrieval.ranking.encoder import CARD


def test_search_has_a_classifier_for_every_embedder_and_ranker(tmp_path, monkeypatch, caplog):
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


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000, '{"rows": [{}]}', '{"embedder": "x", "relevance": {}}'])
def test_a_file_that_cannot_be_read_is_an_error_that_says_what_to_do(tmp_path, text):
    for name in (SEARCH_FILE, "calibration.json"):
        (tmp_path / name).write_text(text)
    with pytest.raises(DeskError, match="delete it or run warmdesk calibrate-search"):
        find_classifier(Settings(data_dir=tmp_path), "another", "ranker")
    with pytest.raises(DeskError, match="run `warmdesk calibrate` again"):
        read_calibration(tmp_path / "calibration.json")


@pytest.mark.parametrize("rounding", [{"kv_storage": "int8"}, {"weights": "int8"}])
def test_a_calibration_is_of_one_rounding(tmp_path, rounding):
    """Was wrong once: the policy measured with exact KV was used with KV of 8 bits."""
    settings, rounded = Settings(data_dir=tmp_path), Settings(data_dir=tmp_path, **rounding)
    shipped = find_calibration(settings)
    assert shipped is not None
    assert find_calibration(rounded) == shipped, "better than none"
    assert calibration(rounded) == f"{calibration(settings)}; measured without this rounding: run warmdesk calibrate"
    own = replace(shipped, setup=setup_of(rounded), policy="exact")
    write_calibration(tmp_path / FILE, own)
    assert (find_calibration(settings), find_calibration(rounded)) == (shipped, own)
    assert calibration(rounded) == own.line()


def test_a_ranker_of_the_operator_s_own_comes_before_the_shipped_one(tmp_path):
    settings = Settings(data_dir=tmp_path)
    assert find_ranker(settings) == SHIPPED_RANKER
    (tmp_path / "ranker").mkdir()
    assert find_ranker(settings) == SHIPPED_RANKER, "its training has not written it yet"
    (tmp_path / "ranker" / CARD).write_text("{}")
    assert find_ranker(settings) == tmp_path / "ranker"
