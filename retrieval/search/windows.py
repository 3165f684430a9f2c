"""Windows: the texts under which a passage can be found. The first is the whole passage, the others are short parts.

A passage is as long as a prompt module should be. That is too long for one vector, and the words of a question are far
apart in it. Each window has a vector and keywords of its own, and the best window decides. With windows the right
article of the sample help centre is among the first three for 96 % of its questions, with whole passages for 93 %.

Indexes hold window ids: the passage's id times WINDOWS_PER_PASSAGE, plus the window's place in the passage.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import count

import numpy as np
import numpy.typing as npt

from retrieval.documents.cutting import cut
from retrieval.documents.document import with_headings

WINDOWS_PER_PASSAGE = 4096  # at most; part of the format of index files
WINDOW_TOKENS = 60  # most of a part, headings not counted
CHARACTERS_PER_TOKEN = 4  # about what the embedder's tokenizer counts, without calling it


def window_texts(heading_path: Sequence[str], text: str) -> list[str]:
    """The whole passage, then its parts if it has several, each below the passage's headings."""
    parts = cut(text, lambda part: len(part) // CHARACTERS_PER_TOKEN, WINDOW_TOKENS)
    windows = [text, *parts] if len(parts) > 1 else [text]
    return [with_headings(tuple(heading_path), window) for window in windows[:WINDOWS_PER_PASSAGE]]


def window_ids(passages: Sequence[int]) -> npt.NDArray[np.int64]:
    """Window ids, given the passage id of each window in order."""
    places: defaultdict[int, Iterator[int]] = defaultdict(count)
    return np.array([passage * WINDOWS_PER_PASSAGE + next(places[passage]) for passage in passages], np.int64)


def passage_ids(window_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The passage of each window."""
    return window_ids // WINDOWS_PER_PASSAGE


def passage_id(window_id: int) -> int:
    """The passage of a window."""
    return window_id // WINDOWS_PER_PASSAGE
