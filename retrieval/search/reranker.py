"""Ranks passages with a cross-encoder, which reads question and passage together.

It is better than vectors and keywords, much slower, and optional. The network is used only if the caller names a model
of the hub.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from retrieval.errors import RetrievalError, first_line
from retrieval.search.retriever import PassageHit

RERANKED = 20  # number of passages to rerank
MAX_TOKENS = 512


class Reranker(Protocol):
    """Scores how well texts answer a question. Safe to call from several threads."""

    def scores(self, question: str, texts: Sequence[str]) -> list[float]:
        """Return one score per text; higher is better."""


class CrossEncoderReranker:
    """A cross-encoder by folder or hub name. Raises RetrievalError with the fix if it cannot be loaded."""

    def __init__(self, name_or_path: str, device: str = "cpu") -> None:
        from sentence_transformers import CrossEncoder  # takes seconds, and few servers use a reranker

        folder = Path(name_or_path).expanduser()
        is_local = folder.is_dir()
        try:
            name = str(folder) if is_local else name_or_path
            self._model = CrossEncoder(name, device=device, max_length=MAX_TOKENS, local_files_only=is_local)
        except (OSError, ValueError, RuntimeError) as error:
            reason = f"cannot be loaded ({first_line(error)}); give a folder or a hub name, or unset the setting"
            raise RetrievalError(f"reranker {name_or_path}: {reason}") from error

    def scores(self, question: str, texts: Sequence[str]) -> list[float]:
        pairs = [(question, text) for text in texts]
        return [float(score) for score in self._model.predict(pairs, show_progress_bar=False)]


def rerank(
    reranker: Reranker, question: str, found: Sequence[PassageHit], text_of: Callable[[PassageHit], str]
) -> list[PassageHit]:
    """Return the passages in the reranker's order, best first."""
    scores = reranker.scores(question, [text_of(hit) for hit in found])
    return [found[place] for place in sorted(range(len(found)), key=lambda place: -scores[place])]
