"""The bench for GPUs: its references, the time that it keeps, and all rows on a CPU."""

import logging
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from forked import Forked, run_module
from tiny import oracle_logits, stock

from app.cli.bench import chosen
from app.cli.main import main
from app.domain.errors import DeskError
from cache.attention.forward_pass import Pass, Rotation, matmul
from evals.gpu import correctness
from evals.gpu.plan import MINUTES, NO_TIME, PLANS, TRIAL, Goal, GpuRow, RowPlan
from evals.gpu.run import NO_GPU, LastError, markdown, measure, measure_gpu
from evals.gpu.session import Session, tensors_of, twin
from evals.peers.random_prompts import RandomDocuments
from evals.report import read_section

CPU = torch.device("cpu")
PAGE = Path(__file__).parent.parent / "docs" / "gpu.md"
DIFFERENCES = {"float32": 1e-4, "bfloat16": 2e-2}


@pytest.fixture(scope="module")
def trial(models):
    pytest.importorskip("torchao", reason="needs pip install -e '.[gpu]'")
    names = [plan.name for plan in PLANS]
    forks = SimpleNamespace(Popen=lambda command, **options: Forked(run_module, command), PIPE=subprocess.PIPE)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("evals.gpu.run.subprocess", forks)  # imports would take longer than the rows
        return measure_gpu(
            device="cpu", size="tiny", models=models, names=names, minutes=MINUTES, report=lambda line: None
        )


def test_a_trial_run_measures_every_row_and_judges_none(trial):
    assert {row["row"] for row in trial["rows"]} == {plan.name for plan in PLANS}
    assert [row["note"] for row in trial["rows"] if row["value"] is None] == [
        "the engine's bookkeeping is consistent; a CPU has no device memory to count"
    ]
    assert all(row["met"] is None and TRIAL in row["what"] for row in trial["rows"])
    assert (trial["is_gpu"], trial["note"], trial["size"]) == (False, NO_GPU, "tiny")
    assert {"device", "card", "torch", "transformers", "seconds"} <= set(trial)
    assert "this is no evidence for a GPU" in markdown(trial, "command")
    found = {row["row"]: row for row in trial["rows"] if row["goal"]}
    for name in ("ttft-8b", "ttft-4b", "decode-64-8b"):
        assert found[name]["ratio"] > 0, name
    for name in ("ttft-8b", "ttft-host-8b", "decode-1-8b", "decode-64-8b"):
        assert found[name]["of_floor"] > 0, name
    assert "host" in found["ttft-host-8b"]["note"]
    assert "disk" in found["ttft-disk-8b"]["note"]
    assert 0.5 < found["kv-memory-8b"]["value"] <= 1.2
    rows = [row for row in trial["rows"] if row["row"] in ("attention", "logits")]
    assert len(rows) == 6
    for row in rows:
        allowed = next(size for name, size in DIFFERENCES.items() if name in row["what"])
        assert row["value"] < allowed, row
    places = " ".join(row["what"] for row in trial["rows"] if row["row"] == "many-modules" and row["unit"] == "ms")
    assert all(f"the slowest from: {place}" in places for place in ("host", "disk"))


FAKE = """
import json, sys, time
print(json.dumps({"card": {"device": "cuda:0", "card": "fake"}}), flush=True)
for line in sys.stdin:
    row = json.loads(line)["row"]
    value = dict.fromkeys(("best", "p95", "baseline", "ratio", "floor", "of_floor", "met"))
    value |= {"row": row, "what": "w", "shape": "", "value": 2.0, "unit": "ms", "goal": "", "note": "", "runs": 1}
    print(json.dumps({"line": value}), flush=True)
    if row == "attention": sys.exit(3)
    if row == "ttft-8b": time.sleep(60)
    print(json.dumps({"done": "OutOfMemoryError: too large" if row == "decode-64-8b" else ""}), flush=True)
"""


def faked(code: str, names: str, minutes: float) -> tuple[list[tuple[str, Any, str]], list[str]]:
    """Row, value and note of what a process with this code measures, and what was reported."""
    said: list[str] = []
    result = measure_gpu(
        device="cuda",
        size="full",
        models=Path("."),
        names=names.split(","),
        minutes=minutes,
        report=said.append,
        command=(sys.executable, "-c", code),
    )
    return [(row["row"], row["value"], row["note"]) for row in result["rows"]], said


def test_rows_that_fail_end_or_hang_do_not_stop_the_others():
    names = "card,attention,ttft-8b,decode-64-8b,kv-memory-8b"
    rows, said = faked(FAKE, names, minutes=0.2)
    assert rows == [
        ("card", 2.0, ""),
        ("attention", 2.0, ""),
        ("attention", None, "not measured further: its process ended (exit status 3): see its stderr"),
        ("ttft-8b", 2.0, ""),
        ("ttft-8b", None, "not measured further: it took more than 2 times its share of 1 s, or there is no time left"),
        ("decode-64-8b", 2.0, ""),
        ("decode-64-8b", None, "not measured further: OutOfMemoryError: too large"),
        ("kv-memory-8b", 2.0, ""),
    ]
    assert len(said) == len(rows)


def test_what_does_not_fit_into_the_time_says_so():
    rows, _ = faked(FAKE, "card,many-modules", minutes=0.001)
    assert rows == [("card", None, NO_TIME), ("many-modules", None, NO_TIME)]


def test_a_device_that_cannot_be_used_is_one_line():
    with pytest.raises(DeskError, match="no such device"):
        faked('import json; print(json.dumps({"unusable": "no such device"}))', "card", minutes=1)
    rows, _ = faked("exit(1)", "card", minutes=1)
    assert rows == [("card", None, "not measured: its process could not start: see its stderr")]


def test_why_a_row_failed_is_told_with_what_the_engine_failed_with(tmp_path, monkeypatch):
    told: list[dict[str, Any]] = []
    seen = LastError()
    log = logging.getLogger("engine")
    log.addHandler(seen)

    def fail(session: Session, plan: RowPlan) -> Iterator[GpuRow]:
        yield plan.line(session, value=1.0).judged(Goal(at_most=2))
        try:
            raise ValueError("the kernel\nis wrong")
        except ValueError:
            log.exception("the engine failed")
        raise RuntimeError("ask again")

    monkeypatch.setattr("evals.gpu.decoding.measure_limits", fail)
    session = Session(CPU, "tiny", tmp_path, tmp_path)
    why = measure(session, "card", told.append, seen)
    assert why == "RuntimeError: ask again (ValueError: the kernel)"
    assert [(message["line"]["value"], message["line"]["met"]) for message in told] == [(1.0, None)]


def test_a_wrong_kernel_is_far_from_the_reference():
    """Of many keys one is left out, and modules are placed a little elsewhere."""
    chunks = correctness.random_chunks(0, 60)
    right = correctness.kernels(CPU)["matmul"]
    assert correctness.difference(right, chunks, torch.float32, CPU) < 1e-5

    def shortened(q: Any, k: Any, v: Any, group: int, causal: bool, scale: float, bias: Any) -> Any:
        return (
            matmul(q, k, v, group, causal, scale, bias)
            if causal
            else matmul(q, k[:, :, 1:], v[:, :, 1:], group, causal, scale, bias)
        )

    wrong = partial(Pass, kernel=shortened, device=CPU, rotation=correctness.rotation_of(correctness.HEAD_DIM))
    assert correctness.difference(wrong, chunks, torch.float32, CPU) > 1e-3
    turned = Rotation(1.001 * correctness.rotation_of(correctness.HEAD_DIM).frequencies)
    nothing = partial(Pass, kernel=lambda q, *_: (q * torch.nan, q[..., 0].float()), device=CPU, rotation=turned)
    assert correctness.difference(nothing, chunks, torch.float32, CPU) == correctness.NOT_A_NUMBER
    moved = partial(Pass, kernel=matmul, device=CPU, rotation=turned)
    assert correctness.difference(moved, chunks, torch.float32, CPU) > 1e-3


def test_kernels_for_gpus_are_among_those_compared(monkeypatch):
    pytest.importorskip("triton", reason="needs pip install -e '.[gpu]'")
    from cache.gpu.tiled_pass import TiledPass

    monkeypatch.setattr(correctness, "kinds_to_compare", lambda device: {"Triton": TiledPass})
    tiled = correctness.kernels(CPU)["Triton"]
    assert correctness.difference(tiled, correctness.random_chunks(1, 20)[:2], torch.float32, CPU) < 1e-4


def test_one_pass_of_transformers_is_the_oracle():
    hf = stock()
    documents = RandomDocuments.make(36, 300, random.Random(0), module_tokens=12)
    plan = documents.plan((7, 8, 9), documents.modules[::-1])
    torch.testing.assert_close(correctness.one_pass(hf, plan), oracle_logits(hf, plan), atol=1e-5, rtol=1e-5)


def test_a_twin_has_the_same_tensors_and_modules_of_its_own():
    hf = stock()
    other = twin(hf)
    assert [id(tensor) for tensor in tensors_of(other)] == [id(tensor) for tensor in tensors_of(hf)]
    other.set_attn_implementation("eager")
    assert hf.config._attn_implementation != "eager"
    assert not {id(module) for module in hf.modules()} & {id(module) for module in other.modules()}


def test_the_page_has_every_row():
    head, tail = read_section(PAGE, "gpu")
    section = PAGE.read_text(encoding="utf-8")[len(head) : -len(tail)]
    assert set(re.findall(r"^\| `([\w.-]+)` \|", section, re.MULTILINE)) == {plan.name for plan in PLANS}


def test_the_command_writes_into_a_page_and_draws(tmp_path, monkeypatch):
    asked: dict[str, Any] = {}

    def measure(**options: Any) -> dict[str, Any]:
        asked.update(options)
        rows = [GpuRow(row="r", what="w", shape="s", unit="ms", value=10.0, floor=8.0).as_json()]
        return {"device": "cuda", "seconds": 1.0, "note": "", "rows": rows}

    monkeypatch.setattr("evals.gpu.run.measure_gpu", measure)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    page, plot = tmp_path / "gpu.md", tmp_path / "gpu.svg"
    page.write_text("<!-- begin: gpu -->\n<!-- end: gpu -->\n")
    options = ["--rows=card", f"--write={page}", f"--plot={plot}", f"--data-dir={tmp_path}"]
    monkeypatch.setattr(sys, "argv", ["warmdesk", "bench", "gpu", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert (asked["device"], asked["size"], asked["names"], asked["minutes"]) == ("cuda", "full", ("card",), 10)
    assert "`warmdesk bench gpu --device cuda --rows card`" in page.read_text()
    assert "(gpu.svg)" in page.read_text()
    assert plot.is_file()
    with pytest.raises(DeskError, match="--rows has 'ttft'"):
        chosen("card, ttft", ("card",), "--rows")
