"""Time to the first token, with documents reused and not, against transformers on the same weights.

Every request asks a new question of `question_tokens` about the same documents in a new order, the situation of a
support desk. Arms:
  full_prefill   transformers computes the whole prompt (its default attention, a fresh cache)
  no_reuse       this engine computes the whole prompt
  prefix_cache   transformers keeps the previous request's cache and computes what is behind the common prefix
  reuse          this engine places the documents it has read before and computes the question
Encoding the documents is not part of `reuse`; it is reported apart, because it is paid once.

Decoding is measured behind the same prompt: transformers' `generate` with its cache, against the engine.
Prompts are random token ids, which take the same time as text. Not covered: quality, retrieval, disk.
"""

import copy
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from cache.engine.engine import Engine
from cache.engine.request import Request, Reuse
from cache.engine.sampling import Sampling
from cache.model.language_model import LanguageModel, ModelInfo
from cache.model.loading import find_device, load_stock
from cache.prompt.model_tokenizer import ModelTokenizer
from cache.prompt.plan import Plan, Segment, Span
from evals.machine import describe_machine

SYSTEM_TOKENS = 40
MODULE_TOKENS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyRow:
    """One arm at one size. decode_tokens_per_s is the best of the repeats, None where it was not measured."""

    arm: str
    threads: int
    document_tokens: int
    question_tokens: int
    ttft_ms_min: float
    ttft_ms_median: float
    runs: int
    decode_tokens_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Documents:
    """A system text and modules behind it, as token ids."""

    system: Segment
    modules: tuple[Segment, ...]

    @classmethod
    def make(cls, size: int, vocabulary: int, rng: random.Random) -> "Documents":
        """About `size` tokens of documents in modules of at most MODULE_TOKENS."""
        system = Segment(name="system", tokens=tokens(SYSTEM_TOKENS, vocabulary, rng))
        modules = [
            Segment(
                name=f"module-{at}",
                tokens=tokens(min(MODULE_TOKENS, size - at), vocabulary, rng),
                start=SYSTEM_TOKENS,
                prefix=system,
            )
            for at in range(0, size, MODULE_TOKENS)
        ]
        return cls(system, tuple(modules))

    def plan(self, question: tuple[int, ...], rng: random.Random) -> Plan:
        """A prompt with the modules in random order."""
        spans, at = [], 0
        for segment in (self.system, *rng.sample(self.modules, len(self.modules))):
            spans.append(Span(start=at, tokens=segment.tokens, segment=segment))
            at += len(segment.tokens)
        return Plan(spans=(*spans, Span(start=at, tokens=question)))


class Transformers:
    """The baseline: a stock model, whole prompts."""

    def __init__(self, hf: Any) -> None:
        self.hf = hf
        self._cached: tuple[list[int], Any] | None = None

    @torch.inference_mode()
    def first_token(self, prompt: list[int], *, keep: bool) -> float:
        """Seconds to the first token. keep: start from the common prefix with the previous prompt."""
        started = time.perf_counter()
        past, known = None, 0
        if keep and self._cached is not None:
            before, past = self._cached
            known = next((i for i, (a, b) in enumerate(zip(before, prompt, strict=False)) if a != b), len(before))
            past.crop(known - len(before))
        ids = torch.tensor([prompt[known:]])
        result = self.hf(input_ids=ids, past_key_values=past, use_cache=True, logits_to_keep=1)
        result.logits[0, -1].argmax().item()
        if keep:
            self._cached = (prompt, result.past_key_values)
        return time.perf_counter() - started

    @torch.inference_mode()
    def decode_rate(self, prompt: list[int], new_tokens: int) -> float:
        """Tokens per second of `generate` after the prompt, prefill taken off."""
        ids = torch.tensor([prompt])
        mask = torch.ones_like(ids)
        seconds = {}
        for count in (1, new_tokens + 1):
            started = time.perf_counter()
            self.hf.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=False,
                min_new_tokens=count,
                max_new_tokens=count,
            )
            seconds[count] = time.perf_counter() - started
        return new_tokens / (seconds[new_tokens + 1] - seconds[1])


class Ours:
    """The engine under test."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def first_token(self, plan: Plan, reuse: Reuse) -> float:
        """Seconds to the first token."""
        request = Request(plan=plan, sampling=Sampling(max_tokens=1), reuse=reuse)
        return self.engine.submit(request).completion.timings.ttft / 1e3

    def decode_rate(self, plan: Plan, new_tokens: int, reuse: Reuse) -> float:
        """Tokens per second after the first."""
        request = Request(plan=plan, sampling=Sampling(max_tokens=new_tokens + 1), reuse=reuse)
        completion = self.engine.submit(request).completion
        seconds = (completion.timings.total - completion.timings.ttft) / 1e3
        return (completion.usage.completion_tokens - 1) / seconds


def measure(
    *,
    model: str | None,
    converted: Path,
    sizes: tuple[int, ...],
    threads: tuple[int, ...],
    question_tokens: int,
    repeats: int,
    decode_at: int,
    report: Callable[[str], None],
) -> dict[str, Any]:
    """Run all arms; the result is ready for JSON. report: called with a line per finished row."""
    before = torch.get_num_threads()
    machine = describe_machine()
    hf, hf_tokenizer, fingerprint = load_stock(model, device=find_device("cpu"), converted=converted)
    baseline = Transformers(copy.deepcopy(hf))
    tokenizer = ModelTokenizer(hf_tokenizer)
    ours = LanguageModel(hf, tokenizer, name=model or "bundled", fingerprint=fingerprint, compiled=converted)
    ours.info = no_stop_tokens(ours.info)
    rows: list[LatencyRow] = []
    try:
        for count in threads:
            torch.set_num_threads(count)
            for size in sizes:
                memory = (2 * size + 4096) * ours.info.kv.bytes_per_token
                engine = Engine(ours, memory=memory).start()
                try:
                    for row in measure_size(
                        baseline,
                        Ours(engine),
                        size,
                        count,
                        question_tokens,
                        repeats,
                        decode=size == decode_at,
                    ):
                        rows.append(row)
                        report(describe(row))
                finally:
                    engine.close()
    finally:
        torch.set_num_threads(before)
    return {
        "machine": machine,
        "model": ours.info.name,
        "dtype": str(ours.info.kv.dtype).removeprefix("torch."),
        "module_tokens": MODULE_TOKENS,
        "system_tokens": SYSTEM_TOKENS,
        "rows": [asdict(row) for row in rows],
    }


def measure_size(
    baseline: Transformers,
    ours: Ours,
    size: int,
    threads: int,
    question_tokens: int,
    repeats: int,
    *,
    decode: bool,
) -> Iterator[LatencyRow]:
    """All arms for documents of one size, in turn within each repeat so that drift of the machine hits all alike."""
    rng = random.Random(size)
    vocabulary = baseline.hf.config.vocab_size
    documents = Documents.make(size, vocabulary, rng)

    def plan() -> Plan:
        return documents.plan(tokens(question_tokens, vocabulary, rng), rng)

    def prompt() -> list[int]:
        return [token for span in plan().spans for token in span.tokens]

    arms: dict[str, Callable[[], float]] = {
        "full_prefill": lambda: baseline.first_token(prompt(), keep=False),
        "no_reuse": lambda: ours.first_token(plan(), "off"),
        "prefix_cache": lambda: baseline.first_token(prompt(), keep=True),
        "reuse": lambda: ours.first_token(plan(), "on"),
    }
    ours.first_token(plan(), "on")  # encodes the documents
    baseline.first_token(prompt()[: 2 * question_tokens], keep=False)
    times: dict[str, list[float]] = {arm: [] for arm in arms}
    for _ in range(repeats):
        for arm, run in arms.items():
            times[arm].extend(run() for _ in range(3 if arm == "reuse" else 1))
    rates: dict[str, float] = {}
    if decode:
        rates["full_prefill"] = max(baseline.decode_rate(prompt(), 64) for _ in range(repeats))
        rates["no_reuse"] = max(ours.decode_rate(plan(), 64, "off") for _ in range(repeats))
        rates["reuse"] = max(ours.decode_rate(plan(), 64, "on") for _ in range(repeats))
    for arm, seconds in times.items():
        yield LatencyRow(
            arm=arm,
            threads=threads,
            document_tokens=size,
            question_tokens=question_tokens,
            ttft_ms_min=round(min(seconds) * 1e3, 2),
            ttft_ms_median=round(statistics.median(seconds) * 1e3, 2),
            runs=len(seconds),
            decode_tokens_per_s=round(rates[arm], 1) if arm in rates else None,
        )


def tokens(count: int, vocabulary: int, rng: random.Random) -> tuple[int, ...]:
    """Random ordinary token ids."""
    return tuple(rng.randrange(vocabulary // 4, vocabulary) for _ in range(count))


def no_stop_tokens(info: ModelInfo) -> ModelInfo:
    """The same model, generating until the limit, so that decode rates are over the same number of tokens."""
    return replace(info, stop_tokens=frozenset())


def describe(row: LatencyRow) -> str:
    """A row for people."""
    rate = f"  decode {row.decode_tokens_per_s:6.1f} tokens/s" if row.decode_tokens_per_s else ""
    return (
        f"{row.threads} threads  {row.document_tokens:5d} document tokens  {row.arm:13s}"
        f" first token min {row.ttft_ms_min:9.1f} ms  median {row.ttft_ms_median:9.1f} ms{rate}"
    )
