"""The simulation of a fleet: it keeps the books, and evicts, routes and schedules as the product does."""

import json
import random
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from tiny import build

from app.cli.main import main
from cache.engine.request import Limits
from cache.errors import CapacityError, PlanError
from cache.memory.store import FIRST_COMPUTE_S, Cost
from cache.model.language_model import LanguageModel
from cache.planning.costs import BUNDLED, SHAPES, PassCosts, read_costs, threads_each, write_costs
from cache.planning.planning import Counted, fewest, plan_fleet
from cache.planning.simulation import DiskContents, Fleet, Job, SimulatedMemory, SimulatedReplica, Simulation
from cache.planning.traffic import (
    BY_CHANCE,
    BY_MODULES,
    BY_PREFIX,
    ROUTINGS,
    SimulatedRequest,
    TrafficShape,
    Zipfian,
    draw_requests,
    open_router,
    read_trace,
)

COSTS = PassCosts(
    model=BUNDLED,
    machine="none",
    threads=1,
    cores=1,
    bytes_per_token=23_040,
    weight_bytes=270_000_000,
    pass_s=0.02,
    prefill_row_s=0.001,
    decode_row_s=0.001,
    read_token_s=2e-7,
    pair_s=1e-7,
    request_s=0.0,
    load_token_s=5e-5,
)
TOKENS = 100  # of a document
TRAFFIC = TrafficShape(documents=400, requests_per_second=3, per_request=2, answer_tokens=8)


def memory_for(documents: int) -> int:
    return (documents * TOKENS + 500) * COSTS.bytes_per_token


def simulate(
    requests: list[SimulatedRequest],
    routing: str = BY_MODULES,
    *,
    replicas: int = 1,
    documents: int = 20,
    per_machine: int = 1,
    on_disk: int = 0,
) -> tuple[Simulation, list[Job]]:
    ended: list[Job] = []
    fleet = Fleet(replicas=replicas, memory=memory_for(documents), per_machine=per_machine)
    disk = DiskContents(on_disk)
    simulation = Simulation(fleet, COSTS, open_router(routing, 0), lambda _: TOKENS, disk, ended.append)
    simulation.run(iter(requests))
    return simulation, ended


def drawn(count: int = 300, shape: TrafficShape = TRAFFIC) -> list[SimulatedRequest]:
    return [*draw_requests(shape, count, seed=1)]


def request(*documents: int, at: float = 0.0, session: str | None = None, answer: int = 4) -> SimulatedRequest:
    return SimulatedRequest(at=at, documents=documents, question_tokens=10, answer_tokens=answer, session=session)


def test_what_is_in_use_stays_and_a_conversation_loses_its_rows_with_their_memory():
    memory = SimulatedMemory(3 * TOKENS, lambda _: 1e-3)
    pinned = memory.put(0, memory.device.reserve(TOKENS))
    prefix, known = memory.find_rows("a", TOKENS)
    assert known == 0
    memory.keep_rows(prefix, 0, memory.device.reserve_rows(TOKENS), TOKENS)
    prefix, known = memory.find_rows("a", TOKENS + 20)
    assert known == TOKENS
    memory.keep_rows(prefix, TOKENS, memory.device.reserve_rows(20), 20)
    with pytest.raises(CapacityError):
        memory.device.reserve(3 * TOKENS)
    memory.device.reserve(2 * TOKENS)
    assert memory.find_rows("a", TOKENS)[1] == 0
    assert {*memory.documents} == {"0"}
    assert pinned.refs == 1


@pytest.mark.parametrize("exponent", [0.0, 1.0, 1.4])
def test_zipf_without_a_table(exponent):
    rng, popularity = random.Random(0), Zipfian(50, exponent)
    counts = Counter(popularity.draw(rng) for _ in range(4_000))
    weights = [(rank + 1) ** -exponent for rank in range(50)]
    for rank in (0, 1, 5, 49):
        expected = 4_000 * weights[rank] / sum(weights)
        assert abs(counts[rank] - expected) < 5 * expected**0.5
    assert set(counts) <= set(range(50))


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        '{"t": 0, "documents": [[]], "question_tokens": 1, "answer_tokens": 1}',
        '{"t": 0, "documents": [1], "question_tokens": 1e999, "answer_tokens": 1}',
        "[" * 100_000,
    ],
)
def test_a_bad_line_of_a_trace_is_named(tmp_path, line):
    file = tmp_path / "trace.jsonl"
    good = '{"t": 0, "documents": ["a", 1], "question_tokens": 5, "answer_tokens": 5, "session": "s"}'
    file.write_text(f"{good}\n\n{line}\n")
    with pytest.raises(PlanError, match=r"trace\.jsonl, line 3 is not a request"):
        read_trace(file)


def test_a_trace_is_read_in_the_order_of_its_times(tmp_path):
    file = tmp_path / "trace.jsonl"
    lines = [
        {"t": t, "documents": [name, "x"], "question_tokens": 5, "answer_tokens": 5} for t, name in ((2, 1), (1, "y"))
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    trace = read_trace(file)
    assert [(one.at, one.documents) for one in trace] == [(1, (2, 1)), (2, (0, 1))]


def test_one_request_takes_what_its_passes_take():
    _, (job,) = simulate([request(0, at=5.0)])
    assert job.sources == {0: "computed"}
    encoding = COSTS.pass_seconds(TOKENS, 0, TOKENS, TOKENS * (TOKENS + 1) / 2)
    prompt = COSTS.pass_seconds(10, 0, TOKENS + 10, 10 * (TOKENS + 5.5))
    assert job.first_token == pytest.approx(5 + encoding + prompt, rel=1e-3)
    decode = 3 * COSTS.pass_seconds(0, 1, TOKENS + 10 + 2, TOKENS + 10 + 2)
    assert job.ended == pytest.approx(5 + encoding + prompt + decode, rel=1e-3)


def test_a_document_that_several_answers_see_is_read_once():
    costs = replace(COSTS, decode_row_s=0.0, pair_s=0.0, read_token_s=1.0)
    replica = SimulatedReplica("", costs, 10_000, lambda _: TOKENS, lambda _: False)
    for name, document in (("a", 0), ("b", 0), ("c", 1)):
        replica.submit(Job(name, request(document), 0.0, 0, 4))
    seconds = {}
    while replica.num_requests:
        replica.begin_passes(0.0, 1.0)
        assert replica.passes is not None
        seconds[len(replica.passes.rows)] = replica.passes.seconds
        replica.end_passes()
    rows = 3 * (10 + 2)  # of questions, and of two tokens of each answer, in the middle of three passes
    assert seconds[3] == pytest.approx(costs.pass_s + 2 * TOKENS + rows, abs=1)


def test_a_document_that_was_computed_is_found_or_loaded_afterwards():
    again = request(0, at=10.0)
    assert [job.sources[0] for job in simulate([request(0), again])[1]] == ["computed", "device"]
    others = [request(1 + one, at=1.0 + one) for one in range(6)]
    _, jobs = simulate([request(0), *others, replace(again, at=20.0)], documents=1, on_disk=50)
    assert jobs[-1].sources == {0: "disk"}


def test_requests_that_wait_for_one_document_compute_it_once():
    simulation, jobs = simulate([request(0), request(0, at=0.001), request(0, at=0.002)])
    assert [job.sources[0] for job in jobs] == ["computed", "device", "device"]
    encoding = COSTS.pass_seconds(TOKENS, 0, 0, 0)
    assert simulation.now < simulate([request(0)])[0].now + encoding


def test_later_turns_find_what_earlier_ones_computed():
    _, jobs = simulate([request(0, session="s"), request(0, at=9.0, session="s")])
    assert (jobs[1].past, jobs[1].reused) == (14, 14)


def test_every_token_of_a_prompt_has_one_source():
    requests = [replace(one, session=str(n % 30)) for n, one in enumerate(drawn())]
    for routing in ROUTINGS:
        counted, asked = Counted(0, 0.0, lambda _: TOKENS), 0
        _, jobs = simulate(requests, routing, replicas=3, documents=20, on_disk=40)
        for job in jobs:
            assert job.sources.keys() == set(job.request.documents)
            asked += len(job.request.documents) * TOKENS + job.past + job.request.question_tokens
            counted.add(job)
        assert len(jobs) == len(requests)
        assert counted.sources.total() == asked
        assert set(counted.sources) == {"device", "disk", "computed", "history", "prompt"}


def test_memory_is_given_back_and_passes_take_no_time_twice():
    simulation, jobs = simulate(drawn(), replicas=2, documents=8)
    for replica in simulation.replicas.values():
        assert replica.num_requests == 0
        assert replica.passes is None
        replica.memory.device.check_integrity()
        assert replica.busy_s <= simulation.now
    for job in jobs:
        assert job.first_token is not None
        assert job.ended is not None
        assert job.submitted < job.first_token <= job.ended <= simulation.now


def test_one_replica_finds_what_a_replay_of_its_requests_finds(monkeypatch):
    monkeypatch.setattr(Cost, "measured", lambda *_: None)  # what is computed costs the same all the time
    requests = [
        replace(one, at=10.0 * n) for n, one in enumerate(drawn(400, replace(TRAFFIC, documents=60, per_request=1)))
    ]
    _, jobs = simulate(requests, documents=15)
    memory, hits = SimulatedMemory(memory_for(15) // COSTS.bytes_per_token, lambda _: FIRST_COMPUTE_S), 0
    device = memory.device
    for number, one in enumerate(requests):
        (document,) = one.documents
        is_hit = str(document) in memory.documents
        if not is_hit:
            device.release(memory.put(document, device.reserve(TOKENS)))
        held = memory.find(document)
        assert held is not None
        own = device.reserve_rows(one.question_tokens + one.answer_tokens)
        if is_hit:
            hits += 1
            device.count_use([held])
        device.release(held)
        memory.keep_rows(memory.find_rows(str(number), 0)[0], 0, own, one.question_tokens + one.answer_tokens)
    assert 50 < hits < 390
    assert sum(job.sources[job.request.documents[0]] == "device" for job in jobs) == hits


def test_a_request_that_does_not_fit_is_an_error_and_one_too_many_is_refused(monkeypatch):
    with pytest.raises(PlanError, match="does not fit"):
        simulate([request(*range(30))])
    monkeypatch.setattr("cache.planning.simulation.LIMITS", Limits(running=2, waiting=3))
    _, jobs = simulate([request(0)] * 9)
    assert sum(job.ended is None for job in jobs) == 4


def test_passes_are_planned_with_the_cost_of_a_row_that_was_measured():
    """What passes cost by themselves makes rows of short ones dearer: chunks become smaller still."""
    replica = SimulatedReplica("", COSTS, 10_000, lambda _: 1000, lambda _: False)
    replica.submit(Job("a", request(0), 0.0, 0, 4))
    chunks = []
    while replica.num_requests:
        replica.begin_passes(0.0, 4.0)
        assert replica.passes is not None
        chunks.append(max(replica.passes.rows.values()))
        replica.end_passes()
    assert chunks[0] == 500
    assert chunks[1] < 450


def test_engines_wait_for_memory_and_then_share_cores():
    """Of six threads on four cores four share one, and an engine waits for the slower of its two."""
    costs = replace(COSTS, cores=4, threads=1, crowded=1.3)
    assert [costs.slowdown(busy, 0.0) for busy in (1, 2, 4, 8)] == pytest.approx([1, 1.1, 1.3, 2.6])
    assert [costs.shares_cores(busy) for busy in (4, 5)] == [False, True]
    costs = replace(COSTS, cores=4, threads=2)
    slow = sum(costs.slowdown(3, chance / 1000) == 2 for chance in range(1000)) / 1000
    assert slow == pytest.approx(8 / 9, abs=2e-3)


def test_replicas_of_one_machine_share_it():
    at_once = [replace(one, at=0.0) for one in drawn(60)]
    apart, shared = (simulate(at_once, replicas=2, per_machine=count)[0].now for count in (1, 2))
    assert 1.5 * apart < shared < 2.5 * apart


@cache
def plan_of(routing: str, replicas: int = 4, seed: int = 0) -> Any:
    traffic = replace(TRAFFIC, requests_per_second=4)
    fleet = Fleet(replicas=replicas, memory=memory_for(40))
    return plan_fleet(fleet, routing, COSTS, traffic, document_tokens=TOKENS, requests=600, seed=seed)


def test_routing_by_modules_finds_more_than_by_chance():
    by_modules, by_prefix, by_chance = (plan_of(routing) for routing in (BY_MODULES, BY_PREFIX, BY_CHANCE))
    assert by_modules.hit_rate > by_prefix.hit_rate > by_chance.hit_rate
    assert by_modules.ttft_p95 < by_chance.ttft_p95


def test_a_seed_repeats_a_plan_and_another_one_does_not():
    assert plan_of(BY_MODULES) == plan_of.__wrapped__(BY_MODULES)
    assert plan_of(BY_MODULES) != plan_of(BY_MODULES, seed=1)


def test_the_smallest_fleet_that_is_quick_enough():
    rows = [plan_of(BY_MODULES, replicas) for replicas in (1, 4, 8)]
    assert fewest(rows, 0.0) is None
    assert fewest(rows, rows[1].ttft_p95) == rows[1]
    assert fewest([replace(row, refused=0.1) for row in rows], 1e9) is None


def test_costs_are_scaled_by_what_passes_read_and_compute(tmp_path):
    scaled = COSTS.scaled_to("Llama-3.1-8B")
    assert scaled.is_scaled
    assert not COSTS.scaled_to(BUNDLED).is_scaled
    assert SHAPES["Llama-3.1-8B"].weights == pytest.approx(7.5e9, rel=0.01)
    assert scaled.bytes_per_token == 131_072
    assert scaled.prefill_row_s / COSTS.prefill_row_s == pytest.approx(65.7, rel=0.05)
    write_costs(COSTS, tmp_path / "costs.json")
    assert read_costs(tmp_path / "costs.json") == COSTS
    (tmp_path / "costs.json").write_text("{}")
    with pytest.raises(PlanError, match="no costs"):
        read_costs(tmp_path / "costs.json")


@pytest.fixture
def costs_file(tmp_path, monkeypatch):
    file = tmp_path / f"costs-{threads_each(1)}.json"
    write_costs(COSTS, file)
    monkeypatch.setenv("WARMDESK_DATA_DIR", str(tmp_path))
    return file


def warmdesk(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["warmdesk", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_the_command_prints_one_document(costs_file, monkeypatch, capsys):
    load = ("--documents", "1000", "--requests-per-second", "0.5", "--replicas", "1,2", "--requests", "100")
    assert warmdesk(monkeypatch, "plan", *load, "--model", "Qwen2.5-0.5B", "--ttft-target", "1000", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["costs_are"] == "scaled, not measured"
    assert [(row["replicas"], row["routing"]) for row in document["rows"]] == [(n, r) for n in (1, 2) for r in ROUTINGS]
    assert document["enough"]["replicas"] == 1
    assert document["machine_memory"] > document["replica_memory"]
    assert warmdesk(monkeypatch, "plan", *load, "--ttft-target", "0") == 0
    assert "None of these keeps" in capsys.readouterr().out


def test_a_model_file_is_measured_once(costs_file, monkeypatch, capsys):
    file = costs_file.with_name("own.gguf")
    file.write_bytes(bytes(5000))
    loaded = list[str]()

    def measure(model: LanguageModel, name: str, weight_bytes: int, threads: int) -> PassCosts:
        per_token = model.info.kv.bytes_per_token
        return replace(COSTS, model=name, weight_bytes=weight_bytes, bytes_per_token=per_token, threads=threads)

    def load(name: str, **_: Any) -> LanguageModel:
        loaded.append(name)
        return build()

    monkeypatch.setattr("cache.model.loading.load_model", load)
    monkeypatch.setattr("cache.planning.costs.measure_costs", measure)
    traffic = ("--documents", "40", "--requests-per-second", "0.1", "--replicas", "1", "--requests", "100", "--json")
    for _ in range(2):
        assert warmdesk(monkeypatch, "plan", "--model", str(file), *traffic) == 0
        document = json.loads(capsys.readouterr().out)
        assert (document["model"], document["costs_are"]) == ("own", "measured")
        assert document["costs"]["weight_bytes"] == 5000
        assert document["costs"]["bytes_per_token"] == build().info.kv.bytes_per_token
    assert loaded == [str(file)]
    file.write_bytes(bytes(6000))
    assert warmdesk(monkeypatch, "plan", "--model", str(file), *traffic) == 0
    assert json.loads(capsys.readouterr().out)["costs"]["weight_bytes"] == 6000
    other = ("plan", "--model", "Qwen3-4B", "--costs", str(costs_file.with_name(f"costs-own-{threads_each(1)}.json")))
    assert warmdesk(monkeypatch, *other, *traffic) == 1
    assert "'own' cannot be scaled" in capsys.readouterr().err


def test_mistakes_are_one_line(costs_file, monkeypatch, capsys, tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text("{}\n")
    for arguments, said in {
        (): "--trace FILE",
        ("--documents", "5"): "--trace FILE",
        ("--trace", str(trace)): "line 1",
        ("--trace", str(tmp_path / "none")): "No such file",
        ("--documents", "5", "--requests-per-second", "1", "--model", "x"): "give a GGUF file",
        ("--documents", "5", "--requests-per-second", "1", "--replicas", "1001"): "at most 1000",
        ("--documents", "5", "--requests-per-second", "1", "--replica-memory", "much"): "8 GiB",
    }.items():
        assert warmdesk(monkeypatch, "plan", *arguments, "--json") == 1
        printed = capsys.readouterr()
        assert said in json.loads(printed.out)["error"]["message"]
        assert printed.err.count("\n") == 1
