"""What a server has said so far: the text of an answer, why it ended, and what it counted.

Servers count reused tokens under different names, or not at all. What is not said is unknown, which is not 0.
"""

from collections.abc import Mapping
from typing import Any

from cache.engine.request import FinishReason, Usage
from cache.remote.thoughts import CLOSE, Thoughts

ENDINGS: dict[str, FinishReason] = {"length": "length", "max_tokens": "length"}
"""How an answer ended, by the server's word; any other is an ordinary end."""
THOUGHTS = ("reasoning_content", "reasoning", "thinking")
"""Fields in which servers send thoughts: vLLM, SGLang, llama.cpp; OpenRouter, newer vLLM; Ollama."""


class Reply:
    """An answer as it comes. text: so far, without thoughts. ending: why it ended, in the server's word."""

    def __init__(self) -> None:
        self.text = self.ending = ""
        self._thoughts, self._thinks_apart = Thoughts(), False
        self._usage: Mapping[str, Any] = {}
        self._timings: Mapping[str, Any] = {}

    def take(self, event: Mapping[str, Any]) -> str:
        """Take over an event, or a whole reply that was not streamed; gives the text that is new."""
        self._usage = _mapping(event.get("usage")) or self._usage
        self._timings = _mapping(event.get("timings")) or self._timings  # llama.cpp
        choice = _choice(event)
        said = _said(choice)
        self._thinks_apart = self._thinks_apart or any(said.get(name) for name in THOUGHTS)
        content = said.get("content")
        new = self._thoughts.without(content) if isinstance(content, str) else ""
        if (ending := choice.get("finish_reason")) is not None:
            self.ending = str(ending)
            new += self._thoughts.end()
        self.text += new
        return new

    @property
    def finish_reason(self) -> FinishReason:
        """The same for the engine."""
        return ENDINGS.get(self.ending, "stop")

    @property
    def has_thoughts(self) -> bool:
        """Whether the model thought before it answered."""
        return self._thinks_apart or self._thoughts.has_any

    @property
    def is_thought(self) -> bool:
        """Whether what was taken for the answer is a thought: its prompt has the beginning, it has the end."""
        return CLOSE in self.text

    @property
    def usage(self) -> Usage:
        """What the server counted; see `usage_of`."""
        return usage_of(self._usage, self._timings)


def has_words(event: Mapping[str, Any]) -> bool:
    """Whether the model said something in an event, be it only thinking."""
    return any(isinstance(said, str) and said for name, said in _said(_choice(event)).items() if name != "role")


def says_why_it_ends(event: Mapping[str, Any]) -> bool:
    """Whether it is the last event with words."""
    return _choice(event).get("finish_reason") is not None


def usage_of(usage: Mapping[str, Any], timings: Mapping[str, Any]) -> Usage:
    """A server's numbers as ours. What it reused is an exact prefix. If it does not say how much that is, no token
    counts as computed or as reused; if it says nothing of the prompt, `prompt_tokens` is 0.
    """
    cached = _first(
        _mapping(usage.get("prompt_tokens_details")).get("cached_tokens"),  # OpenAI, vLLM, SGLang, llama.cpp
        _mapping(usage.get("input_tokens_details")).get("cached_tokens"),
        usage.get("prompt_cache_hit_tokens"),  # DeepSeek
        usage.get("cache_read_input_tokens"),  # Anthropic
        usage.get("cached_tokens"),  # Moonshot
        timings.get("cache_n"),  # llama.cpp
    )
    prompt = _first(usage.get("prompt_tokens"), _anthropic_prompt(usage), _sum(timings, "cache_n", "prompt_n")) or 0
    prefix = min(cached or 0, prompt)
    return Usage(
        prompt_tokens=prompt,
        computed=0 if cached is None else prompt - prefix,
        prefix=prefix,
        completion_tokens=_first(usage.get("completion_tokens"), usage.get("output_tokens"), timings.get("predicted_n"))
        or 0,
    )


def _choice(event: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = event.get("choices")
    return _mapping(choices[0]) if isinstance(choices, list) and choices else {}


def _said(choice: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is new, or the whole message of a reply that was not streamed."""
    return _mapping(choice.get("delta") or choice.get("message"))


def _anthropic_prompt(usage: Mapping[str, Any]) -> int | None:
    """There, tokens that were read from the cache or written to it are counted apart."""
    apart = (usage.get(f"cache_{done}_input_tokens") for done in ("read", "creation"))
    given = _first(usage.get("input_tokens"))
    return None if given is None else given + sum(_first(number) or 0 for number in apart)


def _sum(values: Mapping[str, Any], *names: str) -> int | None:
    numbers = [_first(values.get(name)) for name in names]
    return None if None in numbers else sum(number or 0 for number in numbers)


def _first(*values: object) -> int | None:
    """The first that is a count."""
    counts = (value for value in values if isinstance(value, int) and not isinstance(value, bool) and value >= 0)
    return next(counts, None)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
