"""Errors that readers get for requests that cannot be computed."""

import logging

from cache.engine.device_memory import NO_MEMORY, is_shortage
from cache.engine.request import Request
from cache.errors import CacheError, CapacityError
from cache.model.language_model import ModelInfo

log = logging.getLogger(__name__)


def problem_of_prompt(request: Request, info: ModelInfo) -> str | None:
    """Return why a model cannot read a prompt or its given answer; None if it can."""
    needed = request.plan.next_position
    runs = (*(span.tokens for span in request.plan.spans), request.begun, request.teacher_forced)
    strange = next((token for run in runs for token in run if not 0 <= token < info.vocabulary), None)
    if strange is not None:
        return f"the prompt has token {strange}, the model has {info.vocabulary}"
    if needed > info.max_positions:
        return f"the prompt needs {needed} positions, the model has {info.max_positions}"
    return None


def failure_of(what: str, error: Exception) -> CacheError:
    """Return the reader's error for a failure. An unforeseen error may name files and addresses, so its text is only in
    the log.
    """
    if isinstance(error, CacheError):
        return error
    log.error("%s could not be computed", what, exc_info=error)
    if is_shortage(error):
        return CapacityError(NO_MEMORY)
    return CacheError(f"{what} could not be computed, the log says why: ask again")
