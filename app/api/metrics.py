"""GET /metrics for Prometheus. A metric that vLLM also has gets vLLM's name, so dashboards for vLLM work.

Counters and histograms count from the server's start; gauges are read at each scrape. Readable from this machine, or
with a key of scope admin. docs/grafana.json is a dashboard.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

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
from app.domain.statistics import Served

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
    """Counters of answers, and the server's load. Each instance has its own registry, so their counts do not mix."""

    def __init__(self, desk: Service) -> None:
        self.registry = CollectorRegistry()
        self._desk = desk
        by_model, registry = ("model_name",), self.registry
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second, unused series for each metric

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
        registry.register(self)
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

    def describe(self) -> Iterable[Metric]:
        """Return nothing: when this is registered, documents and models may not be loaded yet."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Read the values for a scrape."""
        load = self._desk.load()
        used, room = load.num_bytes.get("device", 0), load.capacity.get("device", 0)
        model = partial(_labelled, GaugeMetricFamily, "model_name")
        yield model("vllm:num_requests_running", "Running requests", {load.model: load.running})
        yield model("vllm:num_requests_waiting", "Waiting requests", {load.model: load.waiting})
        yield model("vllm:kv_cache_usage_perc", "KV memory in use, 0 to 1", {load.model: used / room if room else 0.0})
        yield GaugeMetricFamily("warmdesk_documents", "Documents", load.documents)
        yield GaugeMetricFamily("warmdesk_passages", "Passages", load.passages)
        tier = partial(_labelled, GaugeMetricFamily, "tier")
        yield tier("warmdesk_tier_bytes", "Bytes held, by tier", load.num_bytes)
        yield tier("warmdesk_tier_capacity_bytes", "Capacity of a tier in bytes", load.capacity)
        yield _labelled(CounterMetricFamily, "kind", "warmdesk_evictions", "Evictions, by kind or tier", load.evictions)
        if load.disk_free is not None and load.disk_floor is not None:
            yield GaugeMetricFamily("warmdesk_disk_free_bytes", "Free bytes on the disk for passages", load.disk_free)
            yield GaugeMetricFamily("warmdesk_disk_floor_bytes", "Bytes that passages leave free", load.disk_floor)
        words, unwritten = "Passages not written to disk", {"failed": load.failed_writes, "slow": load.skipped_writes}
        yield _labelled(CounterMetricFamily, "reason", "warmdesk_unwritten_passages", words, unwritten)
        yield CounterMetricFamily("warmdesk_engine_restarts", "Restarts of the engine", load.restarts)
        yield CounterMetricFamily("warmdesk_memory_shortages", "Passes that lacked device memory", load.shortages)


def _labelled(
    kind: type[GaugeMetricFamily | CounterMetricFamily], label: str, name: str, words: str, values: Mapping[str, float]
) -> Metric:
    family = kind(name, words, labels=[label])
    for one, number in values.items():
        family.add_metric([one], number)
    return family


def metrics_router(desk: Service) -> APIRouter:
    router, meter = APIRouter(route_class=ApiRoute, tags=["operation"]), Meter(desk)

    @router.get("/metrics")
    def metrics(request: Request) -> Response:
        """Return the metrics for Prometheus."""
        is_local = request.client is not None and request.client.host in _LOCAL
        is_forwarded = any(name in request.headers for name in _FORWARDED)
        if (not is_local or is_forwarded) and "admin" not in caller_of(request).scopes:
            raise ApiError(401, "A key of scope admin is needed: send it as `Authorization: Bearer KEY`.", "no-key")
        return Response(meter.text(), media_type=CONTENT_TYPE_LATEST)

    return router
