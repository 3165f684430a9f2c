"""Plots of the benchmarks: every line is there, and a plot that cannot be drawn is said before the work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.cli.bench import need_plot
from app.domain.errors import DeskError
from evals import report


def labels_of(file: Path) -> str:
    """The text of a plot, which the file has beside the outlines of its letters."""
    return file.read_text(encoding="utf-8")


def row(name: str, arm: str, at: str, value: int, **figures: float) -> dict[str, Any]:
    return {name: arm, at: value, **figures}


def test_every_policy_has_a_line(tmp_path: Path) -> None:
    rows = [
        row("policy", policy, "budget", budget, hit_rate=budget / 100)
        for budget in (25, 50)
        for policy in ("warmdesk", "optimum")
    ]
    report.draw_eviction({"rows": rows}, file := tmp_path / "eviction.svg")
    assert all(
        f"<!-- {text} -->" in labels_of(file) for text in ("warmdesk", "optimum", "25", "50", "room for modules")
    )
    before = file.read_bytes()
    report.draw_eviction({"rows": rows}, file)
    assert file.read_bytes() == before


def test_throughput_has_a_panel_for_speed_and_one_for_waiting(tmp_path: Path) -> None:
    rows = [
        row("arm", arm, "clients", clients, tokens_per_s=40.0 * clients, ttft_ms_p95=90.0)
        for arm in ("warmdesk", "llama.cpp bf16")
        for clients in (1, 16)
        if (arm, clients) != ("llama.cpp bf16", 16)  # stopped before it
    ]
    report.draw_throughput({"rows": rows}, file := tmp_path / "throughput.svg")
    wanted = ("warmdesk", "llama.cpp bf16", "tokens per second", "first token, 95 % within, ms", "clients at once")
    assert all(f"<!-- {text} -->" in labels_of(file) for text in wanted)


def test_a_plot_that_cannot_be_drawn_is_said_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_plot(None)
    need_plot(tmp_path / "a.svg")
    for name in ("a.png", "nowhere/a.svg"):
        with pytest.raises(DeskError, match=r"give an \.svg file"):
            need_plot(tmp_path / name)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DeskError, match="pip install matplotlib"):
        need_plot(tmp_path / "a.svg")
