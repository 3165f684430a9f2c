"""transformers as a peer, on the same weights: complete prompts, its cache of the previous prompt, `generate`, and its
continuous batching, which shares the pages of common prefixes.
"""

import itertools
import queue
import threading
import time
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

from app.domain.settings import Settings
from cache.model.loading import find_device, load_stock
from evals.peers.random_prompts import TEMPERATURE, TOP_K

PAGE_TOKENS = 256
BATCH_TOKENS = 512  # rows of one pass of continuous batching, as many as this engine's
NO_TOKEN = -1


class TransformersPeer:
    """An unchanged transformers model that answers one prompt at a time."""

    def __init__(self, hf: Any) -> None:
        self.hf = hf
        self.cached: tuple[list[int], Any] | None = None

    @classmethod
    def load(cls, settings: Settings) -> "TransformersPeer":
        return cls(load_stock(settings.model, device=find_device("cpu"), converted=settings.models_folder)[0])

    @torch.inference_mode()
    def first_token(self, prompt: list[int], *, keep: bool) -> float:
        started = time.perf_counter()
        past, known = None, 0
        if keep and self.cached is not None:
            before, past = self.cached
            known = next((i for i, (a, b) in enumerate(zip(before, prompt, strict=False)) if a != b), len(before))
            past.crop(known - len(before))
        ids = torch.tensor([prompt[known:]], device=self.hf.device)
        result = self.hf(input_ids=ids, past_key_values=past, use_cache=True, logits_to_keep=1)
        result.logits[0, -1].argmax().item()
        if keep:
            self.cached = (prompt, result.past_key_values)
        return time.perf_counter() - started

    @torch.inference_mode()
    def decode_rate(self, prompt: list[int], new_tokens: int) -> float:
        ids = torch.tensor([prompt], device=self.hf.device)
        mask = torch.ones_like(ids)
        seconds = {}
        for count in (1, new_tokens + 1):
            started = time.perf_counter()
            self.hf.generate(
                input_ids=ids, attention_mask=mask, do_sample=False, min_new_tokens=count, max_new_tokens=count
            )
            seconds[count] = time.perf_counter() - started
        return new_tokens / (seconds[new_tokens + 1] - seconds[1])

    def batch_rate(self, prompts: list[list[int]], new_tokens: int, room: int) -> float:
        """Return tokens per second of continuous batching while all answers run (from the last first token to the first
        end), or during the whole run if they never all run. room: tokens of its cache. Raises RuntimeError if a prompt
        is not answered.
        """
        self.hf.set_attn_implementation("sdpa")
        outputs = self.hf.generate_batch(
            prompts,
            generation_config=sampled(),
            continuous_batching_config=batches_of(room),
            record_timestamps=True,
            max_new_tokens=new_tokens,
        )
        if len(outputs) < len(prompts) or any(output.error for output in outputs.values()):
            why = next((output.error for output in outputs.values() if output.error), "some answers are missing")
            raise RuntimeError(f"transformers could not answer: {why}")
        times = [output.timestamps for output in outputs.values()]
        begin, end = max(min(one) for one in times), min(max(one) for one in times)
        if begin >= end:
            begin, end = min(min(one) for one in times), max(max(one) for one in times)
        return float(sum(begin < at <= end for one in times for at in one) / (end - begin))


class ContinuousBatching:
    """Runs transformers' continuous batching; a context manager. tokens: room for all prompts and answers."""

    def __init__(self, hf: Any, tokens: int) -> None:
        hf.set_attn_implementation("sdpa")
        self._manager = hf.init_continuous_batching(sampled(), batches_of(tokens))
        self._names = itertools.count()
        self._outputs: dict[str, queue.SimpleQueue[Any]] = {}
        self._closing = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> "ContinuousBatching":
        self._manager.start()
        self._reader.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.set()
        self._reader.join()
        self._manager.stop(block=True)

    def answer(self, prompt: list[int], new_tokens: int) -> float:
        """Ask for `new_tokens` tokens. Returns the seconds to the first token. Thread-safe."""
        name = str(next(self._names))
        outputs = self._outputs[name] = queue.SimpleQueue()
        started = time.perf_counter()
        self._manager.add_request(
            prompt, request_id=name, max_new_tokens=new_tokens, streaming=True, eos_token_id=NO_TOKEN
        )
        output = outputs.get()
        ttft = time.perf_counter() - started
        while not output.is_finished():
            output = outputs.get()
        del self._outputs[name]
        if output.error:
            raise RuntimeError(f"transformers could not answer: {output.error}")
        return ttft

    def _read(self) -> None:
        while not self._closing.is_set():
            output = self._manager.get_result(timeout=0.1)
            if output is not None:
                self._outputs[output.request_id].put(output)


def sampled() -> GenerationConfig:
    return GenerationConfig(do_sample=True, temperature=TEMPERATURE, top_k=TOP_K, eos_token_id=NO_TOKEN)


def batches_of(tokens: int) -> ContinuousBatchingConfig:
    return ContinuousBatchingConfig(
        page_size=PAGE_TOKENS, num_blocks=tokens // PAGE_TOKENS + 1, max_batch_tokens=BATCH_TOKENS
    )
