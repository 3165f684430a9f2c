"""Search indexes of made-up passages: their memory, their files, and the processor time of a search and of a change.

Vectors are random. An exact search reads all of them, so its time does not depend on their values. Words are sampled by
Zipf's law. Every made-up passage has one window; real ones have about five. Out of scope: embedding, ranking, database.
"""

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from cache.memory.disk import return_freed_memory
from evals.peers.llama_cpp import resident_bytes
from evals.report import describe_machine, table
from retrieval.search.embedding import Vectors
from retrieval.search.keyword_index import KeywordIndex, load_keywords, save_keywords
from retrieval.search.vector_index import LARGEST, VectorIndex
from retrieval.text.terms import language_of

DIMENSION = 384
ADDED = 1000  # passages whose words are added together
VOCABULARY, WORDS = 50_000, 40  # words of all passages, and of each
ASKED = 6
NAME = "made up"
COLUMNS = {"what": "index", "windows": "windows", "memory": "memory, MiB", "file": "file, MiB"}
COLUMNS |= {"search": "search, ms", "change": "one passage changed, ms", "save": "save, s", "load": "load, s"}


def measure_index(vectors: int, keywords: int, searches: int) -> dict[str, Any]:
    """Measure both indexes. vectors, keywords: number of windows in each. searches: number of timed searches."""
    with tempfile.TemporaryDirectory() as name:
        rows = [_vectors(vectors, searches, Path(name, "vectors")), _keywords(keywords, searches, Path(name, "words"))]
    return {"machine": describe_machine(), "searches": searches, "rows": rows}


def _vectors(count: int, searches: int, file: Path) -> dict[str, Any]:
    random, before = np.random.default_rng(0), _memory()
    index = VectorIndex(NAME, DIMENSION)
    for first in range(0, count, LARGEST):
        number = min(LARGEST, count - first)
        index = index.updated((), list(range(first, first + number)), _directions(random, number))
    memory = _memory() - before
    asked = _directions(random, searches)
    search = median(_seconds(partial(index.search, one, 50)) for one in asked)
    change = _seconds(lambda: index.updated([count // 2], [count], asked[:1]))
    save = _seconds(lambda: index.save(file))
    load = _seconds(lambda: VectorIndex.load(file, NAME, DIMENSION))
    return _row("vectors", count, memory, file.stat().st_size, (search, change, save, load))


def _keywords(count: int, searches: int, folder: Path) -> dict[str, Any]:
    random, words = np.random.default_rng(0), [_spelt(number) for number in range(VOCABULARY)]
    upto = np.cumsum(1 / np.arange(1, VOCABULARY + 1))

    def text(number: int) -> str:
        return " ".join(words[rank] for rank in np.searchsorted(upto, random.random(number) * upto[-1]))

    language_of(text(WORDS))  # loads the language recogniser
    before = _memory()
    index = KeywordIndex()
    for first in range(0, count, ADDED):
        texts = {number: [text(WORDS)] for number in range(first, min(first + ADDED, count))}
        index = index.updated((), texts)
    memory = _memory() - before
    search = median(_seconds(lambda: index.scores(text(ASKED))) for _ in range(searches))
    change = _seconds(lambda: index.updated([count // 2], {count: [text(WORDS)]}))
    save = _seconds(lambda: save_keywords(index, folder))
    load = _seconds(lambda: load_keywords(folder))
    size = sum(one.stat().st_size for one in folder.iterdir())
    return _row("keywords", count, memory, size, (search, change, save, load))


def _row(what: str, windows: int, memory: int, file: int, seconds: tuple[float, float, float, float]) -> dict[str, Any]:
    search, change, save, load = seconds
    times = {"search": search * 1e3, "change": change * 1e3, "save": save, "load": load}
    return {"what": what, "windows": windows, "memory": memory >> 20, "file": file >> 20, **times}


def markdown(result: dict[str, Any], command: str) -> str:
    head = f"`{command}`: median of {result['searches']} searches; {result['machine']}."
    return f"{head}\n\n{table(result['rows'], COLUMNS)}\n"


def _directions(random: np.random.Generator, number: int) -> Vectors:
    rows: npt.NDArray[np.float32] = random.standard_normal((number, DIMENSION), np.float32)
    directions: Vectors = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return directions


def _spelt(number: int) -> str:
    """Return a made-up word of letters only, so that it counts as one word."""
    return "".join(chr(ord("a") + int(digit)) for digit in f"{number:05d}") + "x"


def _memory() -> int:
    return_freed_memory()
    return resident_bytes()


def _seconds(work: Callable[[], object]) -> float:
    """Return the processor time of work on one thread. Other programs on the machine change this time little."""
    started = time.process_time()
    work()
    return time.process_time() - started
