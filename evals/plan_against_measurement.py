"""What `warmdesk plan` predicts beside what is measured: one engine as `bench throughput` loads it, and several engines
on this machine behind the routing of a cluster, each in a process of its own, with room for a part of the modules. The
engines share the processors, as those of a cluster do.

Answers are as long as was asked for, unless the model ends one; `answer_tokens` says how long they were on average.
Both get the same questions in the same order. Costs are measured before, in a run of their own, and nothing is fitted
to what is compared. Hit rate: of module tokens. Time to the first token: from asking, at the client.
"""

import argparse
import json
import os
import random
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

from cache.engine.request import Request
from cache.model.loading import load_model
from cache.planning.calibration import measure_costs
from cache.planning.costs import BUNDLED, PassCosts, threads_each
from cache.planning.planning import Counted, percentile
from cache.planning.routers import BY_MODULES, open_router
from cache.planning.simulation import START_EVERY_S, DiskContents, Fleet, Simulation
from cache.planning.traffic import SimulatedRequest
from cache.prompt.plan import Plan, Segment, Span
from cache.routing.affinity import Affinity, Wanted
from cache.serving.engine_process import EngineProcess
from cache.serving.messages import EngineSpec
from evals.machine import describe_machine
from evals.random_prompts import Zipf, answer_of, tokens

MODULE_TOKENS, QUESTION_TOKENS, ANSWER_TOKENS = 200, 24, 48
REPORT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedLoad:
    """engines: their number. room: for how many modules each has memory, rows of requests besides."""

    engines: int
    modules: int
    room: int
    passages: int
    clients: int
    requests: int
    zipf: float = 1.0

    @property
    def memory_tokens(self) -> int:
        """Of each engine."""
        rows = (self.clients + 8) * (QUESTION_TOKENS + 2 * ANSWER_TOKENS)
        return self.room * MODULE_TOKENS + rows


LOADS = {
    "one": ComparedLoad(engines=1, modules=50, room=40, passages=4, clients=4, requests=80),
    "three": ComparedLoad(engines=3, modules=60, room=25, passages=1, clients=6, requests=150, zipf=0.9),
    "one_busier": ComparedLoad(engines=1, modules=80, room=40, passages=2, clients=8, requests=160, zipf=0.8),
    "three_busier": ComparedLoad(engines=3, modules=90, room=30, passages=2, clients=9, requests=240, zipf=1.1),
    "one_wider": ComparedLoad(engines=1, modules=120, room=60, passages=3, clients=6, requests=160, zipf=1.1),
    "three_wider": ComparedLoad(engines=3, modules=120, room=50, passages=1, clients=8, requests=320, zipf=1.0),
    "three_pairs": ComparedLoad(engines=3, modules=70, room=40, passages=2, clients=6, requests=240, zipf=0.9),
}
"""The simulation was mended until it fitted the first four, before the others were ever measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HitsAndTimes:
    """Seconds; the share of module tokens that were in memory; tokens of an answer."""

    hit_rate: float
    ttft_p50: float
    ttft_p95: float
    answer_tokens: float


def draw(load: ComparedLoad) -> list[SimulatedRequest]:
    """The questions, the same in every call."""
    rng = random.Random(1)
    segments = [Segment(name=str(number), tokens=(0,)) for number in range(load.modules)]
    popularity = Zipf(load.zipf, segments)
    return [
        SimulatedRequest(
            at=0.0,
            documents=tuple(int(one.name) for one in popularity.draw_different(load.passages, rng)),
            question_tokens=QUESTION_TOKENS,
            answer_tokens=rng.randint(ANSWER_TOKENS // 2, ANSWER_TOKENS * 3 // 2),
        )
        for _ in range(load.requests)
    ]


def predict(load: ComparedLoad, costs: PassCosts) -> HitsAndTimes:
    """By simulation, from empty memory."""
    counted = Counted(0, costs.request_s, lambda _: MODULE_TOKENS)
    fleet = Fleet(
        replicas=load.engines,
        memory=load.memory_tokens * costs.bytes_per_token,
        per_machine=load.engines,
    )
    router = open_router(BY_MODULES, 0)
    simulation = Simulation(fleet, costs, router, lambda _: MODULE_TOKENS, DiskContents(0), counted.add)
    simulation.run(iter(draw(load)), load.clients)
    found, used = (sum(column) for column in zip(*counted.hits, strict=True))
    return figures(found, used, counted.ttfts, [one.answer_tokens for one in draw(load)])


def figures(found: int, used: int, ttfts: Sequence[float], answers: Sequence[int]) -> HitsAndTimes:
    """Rounded. answers: tokens of each."""
    return HitsAndTimes(
        answer_tokens=round(mean(answers), 1),
        hit_rate=round(found / used, 3),
        ttft_p50=round(percentile(ttfts, 50), 3),
        ttft_p95=round(percentile(ttfts, 95), 3),
    )


class RoutedEngines:
    """Engines behind the routing of a cluster."""

    def __init__(self, engines: Sequence[EngineProcess], segments: Sequence[Segment]) -> None:
        self._engines = {str(number): engine for number, engine in enumerate(engines)}
        self._keys = {segment: engines[0].key(segment) for segment in segments}
        self._affinity, self._lock = Affinity(), threading.Lock()
        self._affinity.set_replicas([*self._engines])

    def ask(self, name: str, plan: Plan, answer_tokens: int) -> tuple[float, int, int]:
        """Seconds to the first piece of text, tokens of modules that were in memory, and of the answer."""
        started = time.perf_counter()
        modules = {self._keys[segment]: len(segment.tokens) for segment in plan.segments()}
        wanted = Wanted(modules=modules, own_tokens=QUESTION_TOKENS)
        with self._lock:
            replica = self._affinity.rank(wanted)[0]
            self._affinity.sent(name, replica, wanted)
        generation = self._engines[replica].submit(Request(plan=plan, sampling=answer_of(answer_tokens)))
        next(iter(generation), None)
        ttft = time.perf_counter() - started
        completion = generation.completion
        with self._lock:
            self._affinity.ended(name)
        found = sum(use.tokens for use in completion.modules if use.source == "device")
        return ttft, found, completion.usage.completion_tokens

    def report(self, is_over: threading.Event) -> None:
        """Tell the router again and again what engines hold."""
        known = {*self._keys.values()}
        while not is_over.wait(REPORT_S):
            for name, engine in self._engines.items():
                held = {header.key for tier, header, _ in engine.contents().modules if tier == "device"}
                with self._lock:
                    self._affinity.report(name, held & known, sum(engine.load()))


def measure(load: ComparedLoad, folder: Path, threads: int) -> HitsAndTimes:
    """By asking engines, from empty memory."""
    requests = draw(load)
    with open_engines(load, folder, threads) as engines:
        rng, vocabulary = random.Random(2), engines[0].info.vocabulary
        drawn = [tokens(MODULE_TOKENS, vocabulary, rng) for _ in range(load.modules)]
        segments = [Segment(name=str(number), tokens=ids) for number, ids in enumerate(drawn)]
        plans = [plan_of([segments[one] for one in request.documents], vocabulary, rng) for request in requests]
        for engine in engines:  # a first answer is slower, and is not counted
            engine.submit(Request(plan=plan_of([], vocabulary, rng), sampling=answer_of(8))).completion  # noqa: B018
        routed, is_over = RoutedEngines(engines, segments), threading.Event()
        reporter = threading.Thread(target=routed.report, args=(is_over,))
        reporter.start()

        def ask(number: int) -> tuple[float, int, int]:
            if number < load.clients:
                time.sleep(START_EVERY_S * number)
            return routed.ask(str(number), plans[number], requests[number].answer_tokens)

        try:
            with ThreadPoolExecutor(load.clients) as pool:
                answers = [*pool.map(ask, range(len(plans)))]
        finally:
            is_over.set()
            reporter.join()
    used = load.requests * load.passages * MODULE_TOKENS
    ttfts, found, lengths = zip(*answers, strict=True)
    return figures(sum(found), used, ttfts, lengths)


@contextmanager
def open_engines(load: ComparedLoad, folder: Path, threads: int) -> Iterator[list[EngineProcess]]:
    """In processes of their own, without a disk tier."""
    model = load_model(None, device="cpu", converted=folder)
    spec = EngineSpec(
        model=None,
        converted=folder,
        modules=folder / "none",
        memory=load.memory_tokens * model.info.kv.bytes_per_token,
        threads=threads,
    )
    with ExitStack() as stack:
        yield [stack.enter_context(closing(EngineProcess(spec))) for _ in range(load.engines)]


def plan_of(placed: Sequence[Segment], vocabulary: int, rng: random.Random) -> Plan:
    """A question behind modules."""
    spans, at = [], 0
    for segment in placed:
        spans.append(Span(start=at, tokens=segment.tokens, segment=segment))
        at += len(segment.tokens)
    return Plan(spans=(*spans, Span(start=at, tokens=tokens(QUESTION_TOKENS, vocabulary, rng))))


def main() -> None:
    """Print the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loads", default=",".join(LOADS), help="comma-separated; default: all")
    parser.add_argument("--models", type=Path, help="folder with the unpacked model")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder, results = arguments.models or Path(temporary), {}
        for name in arguments.loads.split(","):
            load = LOADS[name]
            threads = threads_each(load.engines)
            costs = measure_costs(load_model(None, device="cpu", converted=folder), BUNDLED, threads)
            predicted = predict(load, costs)
            measured = measure(load, folder, threads)
            results[name] = {
                "load": asdict(load),
                "costs": asdict(costs),
                "predicted": asdict(predicted),
                "measured": asdict(measured),
                "hit_rate_off": round(predicted.hit_rate - measured.hit_rate, 3),
                "ttft_p50_ratio": round(predicted.ttft_p50 / measured.ttft_p50, 2),
            }
    machine = f"{describe_machine()}, load average {os.getloadavg()[0]:.1f}"
    print(json.dumps({"machine": machine, "results": results}, indent=2))


if __name__ == "__main__":
    main()
