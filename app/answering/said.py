"""The words of a model as they come, and what there is to say where there are none.

Without this an answer of which nothing came would be checked, and would seem to say that the documents answer nothing.
"""

from collections.abc import Iterator

from app.domain.errors import DeskError
from cache.engine.request import Generation


def said(generation: Generation) -> Iterator[str]:
    """Its pieces. Raises DeskError if it ends without a word because it was stopped, or because a model elsewhere said
    nothing, and CacheError.
    """
    has_words = False
    for piece in generation:
        has_words = has_words or bool(piece)
        yield piece
    if has_words:
        return
    completion = generation.completion
    if completion.finish_reason == "cancelled":
        raise DeskError("there is no answer: it was stopped before it began", code="no-answer")
    if completion.silence:
        raise DeskError(completion.silence, code="engine")
