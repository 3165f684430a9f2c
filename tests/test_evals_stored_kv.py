"""The distance of modules of 8 bits, on a tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny import build

from app.domain.settings import Settings
from evals.next_token import NextTokenDistance
from evals.stored_kv import measure


def test_a_distance_is_the_mean_over_questions_and_none_to_itself() -> None:
    right = torch.tensor([[0.5, 0.5], [0.25, 0.75]]).log()
    other = torch.tensor([[0.5, 0.5], [0.75, 0.25]]).log()
    distance = NextTokenDistance()
    distance.add(right, right)
    distance.add(right, other)
    found = distance.summary()
    worst = 0.5 * torch.tensor(3.0).log().item()  # 0.25 log(1/3) + 0.75 log 3
    assert found["kl_of_the_worst_token"] == pytest.approx(worst)
    assert found["kl_of_the_worst_question"] == pytest.approx(worst / 2)
    assert found["kl_mean"] == pytest.approx(worst / 4)
    assert (found["questions"], found["tokens"], found["top_1"]) == (2, 4, 0.75)


def test_modules_of_eight_bits_are_a_little_off(tmp_path: Path) -> None:
    found = measure(build(), Settings(data_dir=tmp_path), 2)
    kl, tokens = found["kl_mean"], found["tokens"]
    assert isinstance(kl, float)
    assert isinstance(tokens, int)
    assert 0 < kl < 0.01
    assert found["questions"] == 2
    assert tokens > 20
