"""Each benchmark of speed and memory on a tiny model, and the sections of pages that they write."""

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from test_cache_packed import write
from tiny import build, stock

from app.cli.bench import need
from app.domain.errors import DeskError
from app.domain.settings import Settings
from cache.model.gguf_file import GGUFFile
from cache.native.decoder import load_library
from cache.prompt.parts import Text
from cache.prompt.tokenizer import NAMED, ChatTemplate
from evals.peers.llama_cpp import LlamaCpp, LlamaServer, resident_bytes
from evals.peers.random_prompts import RandomDocuments, no_stop_tokens
from evals.peers.transformers_peer import ContinuousBatching, TransformersPeer
from evals.report import draw_eviction, draw_latency, read_section, write_section
from evals.speed import decode, desk, eviction, index, latency, memory, throughput, use_cases
from evals.speed import models as speed
from evals.speed.models import Deadline, Measured, ModelCost
from evals.speed.throughput import LoadTest, run_load


@pytest.fixture
def measured():
    model = build()
    model.info = no_stop_tokens(model.info)
    return Measured(model=model, cost=ModelCost.of(stock()))


def test_the_store_is_replayed_beside_the_policies(tmp_path):
    traces = [eviction.draw_trace(modules=40, requests=60, exponent=1.0, seed=seed) for seed in (1, 2)]
    result = eviction.measure_eviction(traces, [8, 40], "drawn")
    assert set(json.loads(json.dumps(result))) == {"machine", "trace", "traces", "requests", "modules", "rows"}
    rows = {(row["policy"], row["budget"]): row for row in result["rows"]}
    assert {policy for policy, _ in rows} == {"warmdesk", "lru", "lfu", "informed", "optimum"}
    assert all(row["of_optimum_least"] <= row["of_optimum"] <= row["of_optimum_most"] for row in result["rows"])
    assert all(row["hit_rate"] <= rows["optimum", row["budget"]]["hit_rate"] for row in result["rows"])
    assert rows["warmdesk", 40]["of_optimum"] == 1
    assert rows["warmdesk", 40]["evictions"] == 0
    assert rows["warmdesk", 8]["evictions"] > 0
    assert "| 8 | optimum |" in eviction.markdown(result, "warmdesk bench eviction")
    draw_eviction(result, file := tmp_path / "eviction.svg")
    assert "<!-- optimum -->" in file.read_text(encoding="utf-8")


def test_a_recorded_trace_is_read(tmp_path):
    file = tmp_path / "trace.jsonl"
    file.write_text('{"modules": ["a", "b", "a"]}\n\n{"modules": ["c"]}\n')
    assert eviction.read_trace(file) == eviction.Trace([["a", "b"], ["c"]])
    file.write_text('["a"]\n')
    with pytest.raises(DeskError, match="line 1 is not a trace"):
        eviction.read_trace(file)
    with pytest.raises(DeskError, match=r"nowhere\.jsonl"):
        eviction.read_trace(tmp_path / "nowhere.jsonl")
    with pytest.raises(DeskError, match="a request has 3 modules"):
        eviction.measure_eviction([eviction.Trace([["a", "b", "c"]])], [2], "recorded")


def test_the_floor_of_the_machine_is_measured(measured, monkeypatch):
    monkeypatch.setattr(speed, "READ_BYTES", 1 << 16)
    monkeypatch.setattr(speed, "PRODUCT", (4, 16, 16))
    found = speed.measure_floor(torch.float32)
    assert found.bytes_per_s > 0
    assert found.flops > 0
    assert set(speed.describe_floor(found)) == {"threads", "memory_gb_per_s", "products_gop_per_s", "products"}
    assert speed.allowed(ModelCost.of(stock()), found, 100)["decode_tokens_per_s"] > 0
    monkeypatch.setattr(Measured, "load", lambda *_: measured)
    result = speed.measure_floors(Settings(data_dir=Path()), (1,), (100,), print)
    assert "% |" in speed.markdown(json.loads(json.dumps(result)), "warmdesk bench floor")  # also without a GGUF file


def test_indexes_of_made_up_passages_are_measured():
    result = index.measure_index(300, 30, 2)
    rows = {row["what"]: row for row in json.loads(json.dumps(result))["rows"]}
    assert {what: row["windows"] for what, row in rows.items()} == {"vectors": 300, "keywords": 30}
    assert all(row["search"] > 0 and row["load"] > 0 for row in rows.values())
    assert "| vectors | 300 |" in index.markdown(result, "warmdesk bench index")


def test_limits_and_costs_of_packed_weights(models, tmp_path, monkeypatch):
    """Operations of 8 bits, and the bytes that a file's weights have, by those of the head and of the layers."""
    monkeypatch.setattr(speed, "READ_BYTES", 1 << 16)
    monkeypatch.setattr(speed, "STEPS", 1000)
    found = speed.measure_floor(torch.bfloat16, load_library(models, torch.bfloat16))
    assert (found.products, found.flops > 0) in [("8-bit", True), ("bfloat16", True)]
    write(tmp_path / "m.gguf", "llama", "Q4_1")
    cost = ModelCost.of_file(GGUFFile(tmp_path / "m.gguf"))
    assert (cost.layer_weights, cost.head_weights) == (2 * (256 * (256 + 128 + 128 + 256) + 3 * 256 * 512), 320 * 256)
    assert 20 / 32 < cost.weight_bytes < 34 / 32  # of 4 bits in the layers, and of 8 in the head
    assert cost.kv_bytes == 2 * 2 * 2 * 64 * 2


def test_what_begins_too_late_is_left_out():
    said: list[str] = []
    assert Deadline(said.append, 60).allows("a")
    assert not Deadline(said.append, 0).allows("8 conversations, warmdesk")
    assert said == ["skipped, because no time is left: 8 conversations, warmdesk"]


def test_the_engine_answers_a_load(measured):
    load = LoadTest(documents=3, passages=2, answer_tokens=4, requests=3)
    documents = RandomDocuments.make(600, 300, random.Random(0), throughput.MODULE_TOKENS)
    plans = throughput.draw_plans(documents, load, 300, 3)
    assert plans == throughput.draw_plans(documents, load, 300, 3)  # every arm gets the same
    with throughput.open_warmdesk(measured, documents, load, clients=2) as ask:
        asked = [*zip(plans, load.draw_answers(3), strict=True)]
        row = run_load("warmdesk", ask, asked, 2, allowed=1e9)
    assert {"arm", "clients", "requests_per_s", "ttft_ms_p50", "ttft_ms_p95"} <= row.keys()
    assert row["refused"] == 0 < row["tokens_per_s"]


def test_decoding_is_measured_for_one_and_for_several(measured):
    rng = random.Random(0)
    documents = RandomDocuments.make(50, 300, rng, module_tokens=25)
    plans = [documents.shuffled((7, 8, 9), rng) for _ in range(2)]
    with decode.open_warmdesk(measured, documents, plans, repeats=1) as measure:
        assert measure() > 0
    assert decode.served_rate([lambda: (1.0, 3.0), lambda: (2.0, 4.0)]) == 2 * (decode.ANSWER_TOKENS - 1) / 3


def test_conversations_that_share_modules_hold_one_copy(measured, monkeypatch):
    monkeypatch.setattr(memory, "MODULE_TOKENS", 60)
    monkeypatch.setattr(memory, "ANSWER_TOKENS", 3)
    row = memory.measure_conversations(measured, conversations=4, modules=3)
    shared, used = row["shared_tokens"], row["used_tokens"]
    assert shared == 40 + 3 * 60
    assert row["separate_tokens"] == 4 * (shared + 24 + 3)
    assert shared < used <= 1.2 * (shared + row["private_tokens"])


def test_transformers_answers_beside_each_other():
    with ContinuousBatching(stock(), tokens=1024) as batching:
        assert batching.answer([5, 6, 7] * 10, 3) > 0


def test_what_llama_cpp_needs_is_said_in_one_line(tmp_path, monkeypatch):
    with pytest.raises(DeskError, match=r"reads only \.gguf files"):
        LlamaCpp.find("owner/model", None)
    with pytest.raises(DeskError, match="there is no program"):
        LlamaCpp.find("model.gguf", tmp_path / "llama-server")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DeskError, match="pip install xllamacpp"):
        LlamaCpp.find("model.gguf", None)


SERVER = """
import http.server, json, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self): self.send_response(200); self.end_headers()
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        timings = {"predicted_per_second": asked["n_predict"], "cache_n": len(asked["prompt"])}
        self.send_response(200); self.end_headers()
        for event in ({"content": "a"}, {"content": "b", "timings": timings}):
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\\n\\n")
    def log_message(self, *_): pass
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def test_a_server_is_asked_and_stopped(tmp_path):
    program = tmp_path / "server.py"
    program.write_text(SERVER)
    with LlamaServer((sys.executable, str(program)), tmp_path, threads=1, slots=1, context=9) as server:
        answer = server.answer([1, 2, 3], 5)
        assert 1 << 20 < server.resident_bytes < resident_bytes() or sys.platform != "linux"
    assert answer.cached_tokens == 3
    assert 0 < answer.ttft_s <= answer.total_s
    with pytest.raises(DeskError, match=r"did not start: .*no such model"):
        LlamaServer((sys.executable, "-c", "exit('no such model')"), tmp_path, threads=1, slots=1, context=9)


def test_a_plot_that_cannot_be_drawn_is_said_before_the_work(tmp_path, monkeypatch):
    need("latency", None)
    need("latency", None, tmp_path / "a.svg")
    for name in ("a.png", "nowhere/a.svg"):
        with pytest.raises(DeskError, match=r"give an \.svg file"):
            need("latency", None, tmp_path / name)
    monkeypatch.setattr("app.cli.bench.find_spec", lambda name: None)
    with pytest.raises(DeskError, match="pip install matplotlib"):
        need("latency", None, tmp_path / "a.svg")


FLOOR = speed.Floor(threads=1, bytes_per_s=1e9, flops=1e9)


def test_every_arm_is_measured_as_often_as_asked(measured, tmp_path):
    rows = [
        *latency.measure_size(measured, TransformersPeer(stock()), None, 120, FLOOR, 2, decode=True, arms=latency.ARMS)
    ]
    runs = {"full_prefill": 2, "no_reuse": 2, "prefix_cache": 2, "reuse": 6}
    assert {row["arm"]: row["runs"] for row in rows} == runs
    (only,) = latency.measure_size(
        measured, TransformersPeer(stock()), None, 100, FLOOR, 1, decode=False, arms=("reuse", "llama.cpp same file")
    )
    assert (only["arm"], only["faster"], only["decode_tokens_per_s"]) == ("reuse", None, None)
    (full,) = [row for row in rows if row["arm"] == "full_prefill"]
    others = [row for row in rows if row is not full]
    assert (full["faster"], full["than_llama_cpp"]) == (1, None)
    assert all(row["faster"] == pytest.approx(full["ttft_ms_min"] / row["ttft_ms_min"], rel=0.02) for row in others)
    assert [row["arm"] for row in rows if row["decode_tokens_per_s"] is None] == ["prefix_cache"]
    promised = {"arm", "threads", "document_tokens", "question_tokens", "ttft_ms_min", "ttft_ms_median"}
    assert {*promised, "decode_tokens_per_s", "model", "times_floor"} <= full.keys()
    found = [row | {"document_tokens": n, "ttft_ms_min": n * row["ttft_ms_min"]} for row in rows for n in (1, 2)]
    result = {
        "machine": "machine",
        "dtype": "float32",
        "llama_cpp": None,
        "rows": found,
        "slopes": latency.slopes(found),
    }
    assert "| llama | 1 | 2 | reuse |" in latency.markdown(result, "warmdesk bench latency")
    assert "prefix_cache" in latency.describe(rows[-1])
    draw_latency(result, file := tmp_path / "latency.svg")
    assert "<!-- full_prefill -->" in file.read_text(encoding="utf-8")


PAGE = "# Evidence\n\n<!-- begin: speed -->\nold\n<!-- end: speed -->\n\nbehind\n"
SCHEMAS = Path(__file__).parent.parent / "data" / "schemas"


def test_a_section_is_replaced_and_nothing_else(tmp_path):
    page = tmp_path / "evidence.md"
    page.write_text(PAGE)
    write_section(page, "speed", "new\n")
    write_section(page, "speed", "newer")
    assert page.read_text() == PAGE.replace("old", "newer")
    assert [path.name for path in tmp_path.iterdir()] == ["evidence.md"]


@pytest.mark.parametrize(
    "content", ["", "<!-- begin: speed -->", "<!-- end: speed --><!-- begin: speed -->", PAGE + PAGE]
)
def test_a_page_without_the_section_is_left_alone(content, tmp_path):
    page = tmp_path / "evidence.md"
    page.write_text(content)
    with pytest.raises(DeskError, match="must contain"):
        write_section(page, "speed", "new")
    assert page.read_text() == content
    with pytest.raises(DeskError, match=r"nowhere\.md"):
        read_section(tmp_path / "nowhere.md", "speed")


class Words:
    template = ChatTemplate(open="", to_user="", to_answer="", to_next="", roles=NAMED["chatml"])
    filler = 0
    sink_prefix: tuple[int, ...] = ()

    def encode(self, run: Sequence[Text]) -> list[int]:
        return [min(len(word), 255) for word in "".join(piece.text for piece in run).split()]

    def decode(self, tokens: Sequence[int]) -> str:
        return "x" * len(tokens)


def test_the_three_use_cases_of_the_paper_are_measured():
    model = build()
    model.tokenizer = Words()
    rows = [*use_cases.measure_model(model, SCHEMAS, threads=1, repeats=1)]
    assert [row["use_case"] for row in rows] == ["code generation", "personalisation", "parameters"]
    assert all(0 < row["computed_tokens"] < row["prompt_tokens"] / 2 for row in rows)
    result = {"machine": "m", "dtype": "float32", "repeats": 1, "rows": rows}
    page = use_cases.markdown(result, "warmdesk bench prompt-cache")
    assert page.count("\n|") == 5
    assert "`warmdesk bench prompt-cache` on m" in page


STUB = """
import json, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer({"status": "ready"})

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.answer({"warmdesk": {"timings_ms": {"ttft": 300.0, "retrieve": 40.0}}})

    def answer(self, document):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(document).encode())

if sys.argv[1] == "serve":
    HTTPServer(("127.0.0.1", int(sys.argv[-1])), Handler).serve_forever()
if sys.argv[1] == "ingest" and "--json" not in sys.argv:
    time.sleep(60)
print(json.dumps({"passages": 7, "key": "wd_1", "documents": [1, 2, 3]}))
"""


def test_a_whole_desk_is_measured_from_outside(tmp_path, monkeypatch):
    """With a stub for the program: the real one takes minutes."""
    program = tmp_path / "warmdesk"
    program.write_text(f"#!{sys.executable}\n{STUB}")
    program.chmod(0o700)
    monkeypatch.setattr(desk, "WARMDESK", str(program))
    monkeypatch.setattr(desk, "KILLED_AFTER_S", (0.1,))
    monkeypatch.setattr(desk, "PERIOD_S", 0.0)
    monkeypatch.setattr(desk, "IDLE_S", 0.1)
    lines: list[str] = []
    given = {"documents": tmp_path, "questions": ["a?", "b?"], "repeats": 1, "report": lines.append}
    result = desk.measure_desk(kept=None, **given)
    rows = {row["what"]: row for row in json.loads(json.dumps(result))["rows"]}
    assert rows["search quiet"] == {"what": "search quiet", "unit": "ms", "figure": 2, "median": 40.0, "p95": 40.0}
    assert rows["first token while passages are encoded"]["p95"] == 300.0
    assert rows["resident memory, engine and pages"]["figure"] > 1
    assert len(lines) == len(rows)
    assert "| first token quiet | 2 | 300.0 | 300.0 | ms |" in desk.markdown(result, "warmdesk bench desk")
    again = {row["what"] for row in desk.measure_desk(kept=tmp_path, **given)["rows"]}
    assert rows.keys() - again == {"documents kept by an ingest killed after 0.1 s", "passages indexed, whole command"}
