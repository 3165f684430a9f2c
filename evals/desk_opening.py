"""How long a large desk takes to open, until a question can be asked: `python -m evals.desk_opening --passages 20000`.

It writes a desk of made-up documents whose vectors are random, with a module file for each passage that has a true
header and hardly any keys and values, as opening reads headers alone. Then it opens the desk, one part after another.
Loading models is timed apart. The files have just been written, so the system has them in memory. Prints one JSON
document. Not covered: reading files into a desk, and answers.
"""

import argparse
import json
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from app.desk.parts import load_model_of
from app.desk.service import Service
from app.domain.documents import NewDocument, NewPassage
from app.domain.settings import Settings, load_settings
from app.knowledge.search import keywords_folder
from cache.memory.disk import DiskTier, ModuleHeader, file_name, save_module
from cache.memory.keys import PUBLIC_TENANT, digest
from cache.model.language_model import LanguageModel
from evals.machine import describe_machine
from retrieval.ranking.encoder import PassageToRead
from retrieval.ranking.scoring import Mixture, QuestionVectors, StatementVectors, short_form
from retrieval.search.embedding import Vectors
from retrieval.search.keyword_index import load_keywords
from retrieval.search.vector_index import VectorIndex, window_texts

PASSAGES_OF_DOCUMENT, SENTENCES, WORDS = 10, 10, 14
DIMENSION, SHORT = 384, 32
"""Numbers in a vector of a window or statement, and in that of a token: those of the bundled models."""
VOCABULARY = 20_000
AT_ONCE = 1_000
"""Passages that are stored together."""
ROWS = torch.zeros(2, 1, 1, 1, 1)


class RandomEmbedder:
    """Vectors of length 1 that mean nothing."""

    name, dimension = "random", DIMENSION

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        return random_vectors(self._rng, len(texts), DIMENSION)

    embed_queries = embed_documents

    def count_tokens(self, texts: Sequence[str]) -> int:
        return sum(len(text.split()) for text in texts)

    def knowledge(self, text: str) -> float:
        return 1.0

    def knows_word(self, word: str) -> bool:
        return True


class RandomRanker:
    """Vectors of statements and questions that mean nothing, a token for each word."""

    name, mixture = "random", Mixture(cosine=1.0, matches=1.0)

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def read(self, passages: Sequence[PassageToRead]) -> list[StatementVectors]:
        return [self._read([len(passage.text[a:b].split()) for a, b in passage.spans]) for passage in passages]

    def question(self, text: str) -> QuestionVectors:
        whole, tokens = random_vectors(self._rng, 1, DIMENSION)[0], random_vectors(self._rng, 4, SHORT)
        return QuestionVectors(whole=whole, tokens=tokens, weights=np.full(4, 0.25, np.float32), bar=0.0)

    def _read(self, words: Sequence[int]) -> StatementVectors:
        return StatementVectors(
            whole=random_vectors(self._rng, len(words), DIMENSION).astype(np.float16),
            tokens=short_form(random_vectors(self._rng, sum(words), SHORT)),
            ends=np.cumsum(words, dtype=np.int32),
        )


def random_vectors(rng: np.random.Generator, count: int, dimension: int) -> Vectors:
    """`[count, dimension]`, of length 1."""
    vectors = rng.standard_normal((count, dimension), np.float32)
    unit: Vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit


def open_desk(settings: Settings, load_model: Callable[[Settings], LanguageModel]) -> Service:
    """The desk with vectors that mean nothing."""
    return Service(settings, model=load_model, embedder=lambda _: RandomEmbedder(), ranker=lambda _: RandomRanker())


def make_desk(settings: Settings, passages: int) -> None:
    """Store made-up documents as an ingestion does, and a module file for each passage."""
    rng = random.Random(0)
    words = [f"{'abcdefghijklmnop'[number % 16]}{number:x}" for number in range(VOCABULARY)]
    settings.modules_folder.mkdir(parents=True)
    with open_desk(settings, no_model) as service:
        for first in range(0, passages, AT_ONCE):
            texts = [made_text(words, rng) for _ in range(first, min(first + AT_ONCE, passages))]
            new = [new_passage(service.search.embedder, text) for text in texts]
            documents = [
                (new_document(first + at), new[at : at + PASSAGES_OF_DOCUMENT])
                for at in range(0, len(new), PASSAGES_OF_DOCUMENT)
            ]
            changes = service.search.change(partial(service.library.replace, documents))
            stored = [id_ for replaced in changes for id_ in replaced.new]
            service.statements.of(service.library.passages(stored))
            headers = {id_: header_of(id_) for id_ in stored}
            for header in headers.values():
                save_module(settings.modules_folder / file_name(header.key), header, ROWS)
            service.library.set_module_keys({id_: header.key for id_, header in headers.items()})
        service.search.save()


def no_model(settings: Settings) -> LanguageModel:
    """Making a desk needs none."""
    raise NotImplementedError


def made_text(words: Sequence[str], rng: random.Random) -> str:
    """Sentences of words, the first ones the most frequent."""
    drawn = [words[int(len(words) * rng.random() ** 3)] for _ in range(SENTENCES * WORDS)]
    return " ".join(f"{' '.join(drawn[at : at + WORDS]).capitalize()}." for at in range(0, len(drawn), WORDS))


def new_document(number: int) -> NewDocument:
    """The document that begins with this passage."""
    return NewDocument(path=f"/made-up/{number}.md", title=f"Page {number}", content_hash=str(number))


def new_passage(embedder: Any, text: str) -> NewPassage:
    """A passage with the vectors of its windows."""
    heading = (text.split(maxsplit=1)[0],)
    return NewPassage(
        heading_path=heading,
        text=text,
        content_hash=digest(text),
        num_tokens=len(text.split()),
        embedding=embedder.embed_documents(window_texts(heading, text)),
    )


def header_of(passage: int) -> ModuleHeader:
    """The header of a passage's module."""
    hashed = digest(f"passage {passage}")
    return ModuleHeader(
        key=hashed,
        name=f"passage-{passage}",
        tenant=PUBLIC_TENANT,
        fingerprint="made up",
        prefix=hashed,
        tokens=hashed,
        start=100,
        num_tokens=SENTENCES * WORDS,
        left_context=hashed,
    )


@dataclass(slots=True)
class Stopwatch:
    """Seconds of each part, without what was loaded meanwhile."""

    parts: dict[str, float] = field(default_factory=dict)
    loading: float = 0.0

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time a part."""
        started, loading = time.perf_counter(), self.loading
        yield
        self.parts[name] = round(time.perf_counter() - started - (self.loading - loading), 3)

    @contextmanager
    def load(self) -> Iterator[None]:
        """Time what counts apart."""
        started = time.perf_counter()
        yield
        self.loading += time.perf_counter() - started


def measure_opening(settings: Settings, load_model: Callable[[Settings], LanguageModel]) -> dict[str, Any]:
    """Open a desk, so that a question could be asked; the result is ready for JSON, in seconds. seconds: of all parts
    together. of_these: what some parts do, done once more alone.
    """
    watch, again = Stopwatch(), Stopwatch()

    def load(settings: Settings) -> LanguageModel:
        with watch.load():
            return load_model(settings)

    with watch.part("database"):
        service = open_desk(settings, load)
    with service:
        for name, opened in {
            "search": lambda: service.search,
            "statements": lambda: service.statements,
            "engine": lambda: service.engine,
            "finder": lambda: service.finder,
            "rehearsal": service.prepare,
        }.items():
            with watch.part(name):
                opened()
        counts = service.library.counts()
        with again.part("vectors"):
            VectorIndex.load(settings.index_path, RandomEmbedder.name, DIMENSION)
        with again.part("keywords"):
            load_keywords(keywords_folder(settings.index_path))
        with again.part("module_headers"):
            modules = len(DiskTier(settings.modules_folder, settings.disk).entries)
    return {
        "machine": describe_machine(),
        "documents": counts.documents,
        "passages": counts.passages,
        "modules": modules,
        "seconds": round(sum(watch.parts.values()), 3),
        "parts": watch.parts,
        "of_these": again.parts,
        "model_loading": round(watch.loading, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=20_000)
    parser.add_argument("--json", action="store_true", help="print one line")
    asked = parser.parse_args()
    own = load_settings({}, os.environ)  # models that are unpacked already stay where they are
    with TemporaryDirectory(prefix="warmdesk-") as folder:
        settings = load_settings({"data_dir": folder}, os.environ)
        make_desk(settings, asked.passages)
        result = measure_opening(settings, lambda _: load_model_of(own))
    print(json.dumps(result, indent=None if asked.json else 2))


if __name__ == "__main__":
    main()
