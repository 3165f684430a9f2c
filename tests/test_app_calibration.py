"""The results of `warmdesk calibrate` and `calibrate-search`, as files of this and the version before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.desk.calibration import Calibration, PolicyMetrics, find_calibration, read_calibration, setup_of
from app.desk.search_calibration import SEARCH_FILE, find_classifier
from app.domain.errors import DeskError
from app.domain.settings import Settings

METRICS = {
    "policy": "fast",
    "kl": 0.05,
    "top1": 0.9,
    "gold_logp_delta": -0.1,
    "contains_gold": 0.7,
    "recomputed_share": 0.0,
    "ttft_ms": 12.5,
}


def test_a_file_of_version_0_1_is_read(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    document = {
        "setup": setup_of(settings),
        "model": "bundled",
        "measured": "2026-01-02",
        "questions": 16,
        "rows": [METRICS],
        "profile": "balanced",
        "wording": "quote",
        "refusal_bias": -1.5,
        "refusal_text": "I do not know.",
    }
    (tmp_path / "calibration.json").write_text(json.dumps(document))
    assert find_calibration(settings) == Calibration(
        setup=setup_of(settings),
        model="bundled",
        measured="2026-01-02",
        questions=16,
        rows=(PolicyMetrics(**METRICS),),  # type: ignore[arg-type]  # of several types
        policy="balanced",
        answer_mode="quote",
        refusal_bias=-1.5,
        refusal_text="I do not know.",
    )


@pytest.mark.parametrize("text", ["{", "[]", '{"rows": []}', '{"rows": [{"policy": "fast"}]}'])
def test_another_file_is_an_error_that_says_what_to_do(text: str, tmp_path: Path) -> None:
    (tmp_path / "calibration.json").write_text(text)
    with pytest.raises(DeskError, match="run `warmdesk calibrate` again"):
        read_calibration(tmp_path / "calibration.json")


def test_search_has_a_classifier_for_every_embedder(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    assert find_classifier(settings, "another").embedder == "another"
    (tmp_path / SEARCH_FILE).write_text("{")
    with pytest.raises(DeskError, match="warmdesk calibrate-search"):
        find_classifier(settings, "another")
