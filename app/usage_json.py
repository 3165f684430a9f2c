"""Token counts as JSON, with the contract's keys."""

from __future__ import annotations

from typing import Any

from app.answers import AnswerUsage
from cache.request import Usage


def usage_json(usage: AnswerUsage | Usage) -> dict[str, Any]:
    """Where the prompt's tokens came from."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "computed_tokens": usage.computed,
        "prompt_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "session": usage.session,
            "prefix": usage.prefix,
            "module": usage.module,
        },
    }
