"""GET /metrics for Prometheus: vLLM's names for what vLLM measures, so that its dashboards work, and our own.

Counters and histograms count from the start; gauges are read at each scrape. Readable from this machine, or with a key
of scope admin. docs/grafana.json is a dashboard.
"""

from collections.abc import Iterable, Iterator

from fastapi import APIRouter, Request
from fastapi.responses import Response
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from app.access.identity import caller_of
from app.api.wire import ApiError, ApiRoute
from app.desk.service import Service
from app.domain.statistics import Load, Served

TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0),
)
LATENCY_BUCKETS = (0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 240.0)
STAGE_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
SOURCES = ("computed", "session", "prefix", "module")
_LOCAL = ("127.0.0.1", "::1")
_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")


class Meter:
    """Counters of answers. Each has its own registry, so several desks in one process do not mix."""

    def __init__(self, desk: Service) -> None:
        self.registry = CollectorRegistry()
        self._desk = desk
        by_model, registry = ("model_name",), self.registry
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each, without a use

        def histogram(name: str, words: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, words, by_model, buckets=buckets, registry=registry)

        def counter(name: str, words: str, *labels: str) -> Counter:
            return Counter(name, words, (*by_model, *labels), registry=registry)

        self._ttft = histogram("vllm:time_to_first_token_seconds", "Arrival to first token", TTFT_BUCKETS)
        self._total = histogram("vllm:e2e_request_latency_seconds", "Arrival to last token", LATENCY_BUCKETS)
        self._queue = histogram("vllm:request_queue_time_seconds", "Waiting for the engine", STAGE_BUCKETS)
        self._prefill = histogram("vllm:request_prefill_time_seconds", "Computing the prompt", STAGE_BUCKETS)
        self._prompt = counter("vllm:prompt_tokens", "Tokens of prompts")
        self._generated = counter("vllm:generation_tokens", "Tokens of answers")
        self._asked = counter("vllm:prefix_cache_queries", "Prompt tokens looked up in the cache")
        self._found = counter("vllm:prefix_cache_hits", "Prompt tokens reused from the cache")
        self._sources = counter("warmdesk_prompt_tokens", "Prompt tokens by source", "source")
        self._answers = counter("warmdesk_answers", "Answers by outcome", "outcome")
        self._retrieve = histogram("warmdesk_retrieve_seconds", "Search and decision", STAGE_BUCKETS)
        self._load = histogram("warmdesk_load_seconds", "Finding modules and loading them from disk", STAGE_BUCKETS)
        ProcessCollector(registry=registry)
        registry.register(LoadCollector(desk))
        desk.listen(self.count)

    def count(self, served: Served) -> None:
        model, usage, timings = self._desk.models().language, served.usage, served.timings
        self._answers.labels(model, served.outcome).inc()
        self._total.labels(model).observe(timings.total / 1e3)
        if served.outcome != "plain":
            self._retrieve.labels(model).observe(timings.retrieve / 1e3)
        if not usage.prompt_tokens and not timings.prefill:  # the model was not asked
            return
        for metric, milliseconds in (
            (self._ttft, timings.ttft),
            (self._queue, served.queue_ms),
            (self._prefill, timings.prefill),
            (self._load, timings.load),
        ):
            metric.labels(model).observe(max(0.0, milliseconds) / 1e3)
        for total, number in (
            (self._prompt, usage.prompt_tokens),
            (self._generated, usage.completion_tokens),
            (self._asked, usage.prompt_tokens if usage.is_reuse_known else 0),
            (self._found, usage.cached_tokens),
        ):
            total.labels(model).inc(number)
        for source in SOURCES:
            self._sources.labels(model, source).inc(getattr(usage, source))

    def text(self) -> bytes:
        return generate_latest(self.registry)


class LoadCollector:
    """Gauges that are read at a scrape."""

    def __init__(self, desk: Service) -> None:
        self._desk = desk

    def collect(self) -> Iterator[Metric]:
        load = self._desk.load()
        yield from gauges(load)
        for name, words, values in (
            ("warmdesk_tier_bytes", "Bytes held, by tier", load.num_bytes),
            ("warmdesk_tier_capacity_bytes", "Capacity of a tier in bytes", load.capacity),
        ):
            family = GaugeMetricFamily(name, words, labels=["tier"])
            for tier, number in values.items():
                family.add_metric([tier], number)
            yield family
        evictions = CounterMetricFamily("warmdesk_evictions", "Evictions, by kind or tier", labels=["kind"])
        for kind, number in load.evictions.items():
            evictions.add_metric([kind], number)
        yield evictions
        yield from disk(load)
        yield CounterMetricFamily("warmdesk_engine_restarts", "Restarts of the engine", load.restarts)
        words = "Forward passes that ran out of device memory and were repeated with fewer tokens"
        yield CounterMetricFamily("warmdesk_memory_shortages", words, load.shortages)

    def describe(self) -> Iterable[Metric]:
        """Nothing before a scrape: the desk may not be open yet."""
        return ()


def gauges(load: Load) -> Iterator[Metric]:
    used, room = load.num_bytes.get("device", 0), load.capacity.get("device", 0)
    for name, words, number in (
        ("vllm:num_requests_running", "Running requests", load.running),
        ("vllm:num_requests_waiting", "Waiting requests", load.waiting),
        ("vllm:kv_cache_usage_perc", "Share of the KV memory in use, 0 to 1", used / room if room else 0.0),
    ):
        family = GaugeMetricFamily(name, words, labels=["model_name"])
        family.add_metric([load.model], number)
        yield family
    yield GaugeMetricFamily("warmdesk_documents", "Documents", load.documents)
    yield GaugeMetricFamily("warmdesk_passages", "Passages", load.passages)


def disk(load: Load) -> Iterator[Metric]:
    if load.disk_free is not None and load.disk_floor is not None:
        yield GaugeMetricFamily(
            "warmdesk_disk_free_bytes", "Free bytes on the disk with encoded passages", load.disk_free
        )
        yield GaugeMetricFamily(
            "warmdesk_disk_floor_bytes", "Bytes of it that encoded passages leave free", load.disk_floor
        )
    words = "Encoded passages that were not written, because the disk failed or was slow"
    unwritten = CounterMetricFamily("warmdesk_unwritten_passages", words, labels=["reason"])
    unwritten.add_metric(["failed"], load.failed_writes)
    unwritten.add_metric(["slow"], load.skipped_writes)
    yield unwritten


def metrics_router(desk: Service) -> APIRouter:
    router, meter = APIRouter(route_class=ApiRoute, tags=["operation"]), Meter(desk)

    @router.get("/metrics")
    def metrics(request: Request) -> Response:
        """Numbers for Prometheus."""
        if not may_read(request):
            raise ApiError(401, "A key of scope admin is needed: send it as `Authorization: Bearer KEY`.", "no-key")
        return Response(meter.text(), media_type=CONTENT_TYPE_LATEST)

    return router


def may_read(request: Request) -> bool:
    """Whether a request is from a program of this machine without a proxy, or has a key of scope admin."""
    is_local = request.client is not None and request.client.host in _LOCAL
    if is_local and not any(name in request.headers for name in _FORWARDED):
        return True
    return "admin" in caller_of(request).scopes
