"""Embedders: their interface, a sentence-transformers model, and a wrapper that embeds each text of a question once.

Every vector has length 1, so an inner product is a cosine. Callers pass whole passages; an embedder truncates texts
that are too long for it. The network is used only if the caller names a model of the hub. Out of scope: the
bundled embedder's layers, in compiled code (`minilm`) and in PyTorch (`network`).

A question is compared with the FAQ, then searched, alone and with the previous question. `OneQuestionEmbedder` stores
these vectors only during the question. A longer cache would reveal, by its speed, which questions other customers
asked.
"""

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import yaml

from retrieval.errors import RetrievalError, first_line
from retrieval.search.minilm import (
    BundledTokenizer,
    Compiled,
    FastEncoder,
    Weights,
    bundled_folder,
    bundled_weights,
    library_in,
)
from retrieval.text.terms import language_of

if TYPE_CHECKING:
    from retrieval.search.network import NetworkEncoder

Vectors: TypeAlias = npt.NDArray[np.float32]


class Embedder(Protocol):
    """Turns texts into vectors. Safe to call from several threads."""

    @property
    def name(self) -> str:
        """Name of the embedder. An index with another embedder's vectors cannot be used."""

    @property
    def dimension(self) -> int:
        """Length of a vector."""

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """Embed documents. Returns one row of length 1 per text, shape `[texts, dimension]`."""

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """Embed questions, which some models embed differently. Returns the same shape."""

    def count_tokens(self, texts: Sequence[str]) -> int:
        """Return the number of tokens that the model reads of all texts together, without truncated tokens."""

    def knowledge(self, text: str) -> float:
        """Return how well the embedder knows the language of a text (not just its script), from 0 to 1."""

    def knows_word(self, word: str) -> bool:
        """Return whether a lower-case word is one token of the embedder."""


_KNOWN: ContextVar[dict[str, Vectors] | None] = ContextVar("vectors of the question", default=None)
_CHANGED, _OPEN = threading.Condition(), list[str]()  # the questions that are being searched
PATIENCE_S = 1.0  # longest wait of a batch of passages for questions, so that documents are also indexed under load


@contextmanager
def one_question() -> Iterator[None]:
    """Mark this thread as searching for a question: it embeds each text only once, and batches of passages wait."""
    before = _KNOWN.set({})
    with _CHANGED:
        _OPEN.append("question")
    try:
        yield
    finally:
        _KNOWN.reset(before)
        with _CHANGED:
            _OPEN.pop()
            _CHANGED.notify_all()


def is_question() -> bool:
    """Return whether this thread is searching for a question. A customer then waits for its texts."""
    return _KNOWN.get() is not None


def short_batches(texts: Sequence[str], is_fast: bool = False) -> Iterator[list[int]]:
    """Yield batches of texts of similar length, as positions in `texts`, the longest first. A batch takes a fraction of
    a second, and waits while questions are searched. is_fast: for compiled code. Safe to use from any thread.
    """
    characters = _CHARACTERS_AT_ONCE * (8 if is_fast else 1)
    by_length = sorted(range(len(texts)), key=lambda place: len(texts[place]))  # little padding in a batch
    while by_length:
        most = min(_TEXTS_AT_ONCE, len(by_length), characters // max(len(texts[by_length[-1]]), 1))
        size = 1 << max(most.bit_length() - 1, 0)  # a power of two: few different sizes
        if not is_question():  # else the question itself needs the texts
            with _CHANGED:
                _CHANGED.wait_for(lambda: not _OPEN, PATIENCE_S)
        places, by_length = by_length[-size:], by_length[:-size]
        yield places


class OneQuestionEmbedder:
    """Wraps an embedder and calls it once for each text inside `one_question`. Safe to use from any thread."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self.name, self.dimension = embedder.name, embedder.dimension
        self.embed_documents, self.knowledge = embedder.embed_documents, embedder.knowledge
        self.knows_word, self.count_tokens = embedder.knows_word, embedder.count_tokens

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        known = _KNOWN.get()
        if known is None or not texts:
            return self._embedder.embed_queries(texts)
        if missing := [text for text in dict.fromkeys(texts) if text not in known]:
            known |= zip(missing, self._embedder.embed_queries(missing), strict=True)
        return np.stack([known[text] for text in texts])


def encoder_of(weights: Weights, compiled: Compiled | None, *, half: bool = False) -> "FastEncoder | NetworkEncoder":
    """Return an encoder in compiled code, or in PyTorch if `compiled` is None or fails. half: see `NetworkEncoder`."""
    library = None if compiled is None else library_in(compiled.folder)
    if compiled is not None and library is not None:
        return FastEncoder(weights, library, compiled.threads)
    from retrieval.search.network import NetworkEncoder  # PyTorch takes seconds and 150 MB

    return NetworkEncoder(weights, half=half)


class TextModel:
    """The bundled embedder, with the part of `SentenceTransformer`'s interface that `SentenceEmbedder` uses."""

    max_seq_length = 512
    """Size of the position table. The files say 256, which would cut off the ends of passages."""

    def __init__(self, compiled: Compiled | None = None) -> None:
        self.tokenizer, self.encoder = BundledTokenizer(), encoder_of(bundled_weights(), compiled, half=True)
        self._model_card_text = (bundled_folder() / "README.md").read_text(encoding="utf-8")

    def get_embedding_dimension(self) -> int:
        return self.encoder.hidden

    def encode_document(self, texts: list[str], **_: object) -> Vectors:
        ids = self.tokenizer(texts, truncation=True, max_length=self.max_seq_length)["input_ids"]
        return self.encoder.means(ids, of_question=True)

    encode_query = encode_document


_BUNDLED_NAME = "all-MiniLM-L6-v2"
_TEXTS_AT_ONCE = 16
_PACKED_AT_ONCE = 64  # texts; the vectors of their tokens have 25 MB at most
_CHARACTERS_AT_ONCE = 2000  # of a batch, with its padding: half a second of one thread
_FOREIGN = 0.7
"""Maximum knowledge of a language that the model card does not name. Half of the cosine then counts (retriever). In a
test with 28 German questions, alone or among 133 English passages, half of the cosine found as many documents first as
the whole cosine. A quarter of it found one fewer, keywords alone five fewer.
"""
# Torch caches kernels for every shape of a batch, half a megabyte each. Padding limits the number of shapes.
_OPTIONS: dict[str, Any] = {
    "normalize_embeddings": True,
    "show_progress_bar": False,
    "processing_kwargs": {"text": {"pad_to_multiple_of": 8}},
}


class SentenceEmbedder:
    """An embedder by folder or hub name; None is the bundled model, which can run in compiled code. Raises
    RetrievalError if it cannot be loaded.
    """

    def __init__(self, name_or_path: str | None = None, compiled: Compiled | None = None) -> None:
        folder = bundled_folder() if name_or_path is None else _folder(name_or_path)
        self.name = name_or_path or _BUNDLED_NAME
        try:
            self._model = TextModel(compiled) if name_or_path is None else _load(name_or_path, folder)
        except (OSError, ValueError, RuntimeError) as error:
            reason = (
                f"cannot be loaded from the model hub ({first_line(error)}); check name and network, "
                f"give a model folder, or unset it to use the bundled {_BUNDLED_NAME}"
                if folder is None
                else f"{folder} does not hold a usable sentence-transformers model ({first_line(error)})"
            )
            raise RetrievalError(f"embedder {self.name}: {reason}") from error
        encoder = self._model.encoder if isinstance(self._model, TextModel) else None
        self._fast = encoder if isinstance(encoder, FastEncoder) else None
        dimension = self._model.get_embedding_dimension()
        if dimension is None:
            raise RetrievalError(f"embedder {self.name}: the model has no fixed dimension; choose another")
        self.dimension = dimension
        self._languages = languages_of_card(self._model._model_card_text or "")
        # The library does not promise that threads may share a model. The lock is held for one batch, so that a
        # question does not wait for a whole document.
        self._lock = threading.Lock()

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        if self._fast is not None and texts:
            return self._packed(self._fast, texts, of_question=is_question())
        for places in short_batches(texts):
            with self._lock:
                vectors[places] = self._model.encode_document([texts[place] for place in places], **_OPTIONS)
        return of_length_one(vectors)

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        if not texts:
            return np.zeros((0, self.dimension), np.float32)
        if self._fast is not None:
            return self._packed(self._fast, texts, of_question=True)
        with self._lock:
            vectors = self._model.encode_query(list(texts), **_OPTIONS)
        return of_length_one(np.asarray(vectors, dtype=np.float32))

    def _packed(self, fast: FastEncoder, texts: Sequence[str], *, of_question: bool) -> Vectors:
        means = list[Vectors]()
        for first in range(0, len(texts), _PACKED_AT_ONCE):
            ids = self._ids(texts[first : first + _PACKED_AT_ONCE])
            means.append(fast.means(ids, of_question=of_question))
        return of_length_one(np.concatenate(means))

    def count_tokens(self, texts: Sequence[str]) -> int:
        return sum(map(len, self._ids(texts)))

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        with self._lock:
            encoded = self._model.tokenizer(list(texts), truncation=True, max_length=self._model.max_seq_length)
        ids: list[list[int]] = encoded["input_ids"]
        return ids

    def knowledge(self, text: str) -> float:
        """Return the share of characters in known tokens, less if tokens are parts of characters. A tokenizer splits an
        unknown script into unknown tokens or single bytes. The share is limited if the model card does not name the
        language of the text: an English model has tokens for German but knows little of it.
        """
        is_foreign = self._languages and language_of(text, self._languages[0]) not in self._languages
        return min(self._known_share(text), _FOREIGN if is_foreign else 1.0)

    def _known_share(self, text: str) -> float:
        text = "".join(text.encode("utf-8", "ignore").decode().split())
        with self._lock:
            found = self._model.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        unknown = self._model.tokenizer.unk_token_id
        tokens = zip(found["input_ids"], found["offset_mapping"], strict=True)
        spans = [span for token, span in tokens if token != unknown]
        known = {at for span in spans for at in range(*span)}
        return len(known) / len(text) * min(1.0, len(known) / len(spans)) if known else float(not text)

    def knows_word(self, word: str) -> bool:
        with self._lock:
            tokens = self._model.tokenizer(word, add_special_tokens=False)["input_ids"]
        return len(tokens) == 1 and tokens[0] != self._model.tokenizer.unk_token_id


def _load(name_or_path: str, folder: Path | None) -> Any:
    from sentence_transformers import SentenceTransformer  # takes seconds and 300 MB

    from retrieval.search.network import is_half_fast

    model = SentenceTransformer(str(folder or name_or_path), device="cpu", local_files_only=folder is not None)
    return model.bfloat16() if is_half_fast() else model


def of_length_one(vectors: Vectors) -> Vectors:
    length = np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
    scaled: Vectors = (vectors / length).astype(np.float32)
    return scaled


def languages_of_card(text: str) -> tuple[str, ...]:
    """Return the languages that a model card (README.md) names; none if it names none or "multilingual"."""
    header = re.match(r"\s*---\s*\n(.*?)\n---", text, re.DOTALL)
    try:
        card = yaml.safe_load(header[1]) if header else None
    except yaml.YAMLError:
        card = None
    named = card.get("language") or () if isinstance(card, dict) else ()
    codes = ["no" if code is False else str(code) for code in ([named] if isinstance(named, str) else named)]
    return () if "multilingual" in codes else tuple(code.partition("-")[0] for code in codes)


def _folder(name_or_path: str) -> Path | None:
    folder = Path(name_or_path).expanduser()
    if folder.is_dir():
        return folder
    if folder.is_absolute() or name_or_path.startswith((".", "~")) or name_or_path.count("/") > 1:
        raise RetrievalError(f"embedder {name_or_path}: no such folder; give a model folder or a hub name")
    return None
