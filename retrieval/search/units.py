"""Units: the texts under which a passage can be found, one for the whole of it and one for each stretch.

A passage is as long as a prompt module should be, which is too long for one vector, and in so long a text the words of
a question stand far apart. With short stretches, each scored by meaning and by words, and the best one deciding, the
right article of the sample help centre is among the first three for 96 % of its questions, with wholes for 93 %.

A unit has a number of its own, from which that of its passage can be read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from retrieval.documents.cutting import cut
from retrieval.documents.document import with_headings

UNITS = 4096
"""Units a passage can have, at most: its number times this, plus the place among its units, is the unit's number."""
STRETCH_TOKENS = 60
CHARACTERS_PER_TOKEN = 4
"""Roughly the embedder's own count, with its tokenizer left alone."""


def unit_texts(heading_path: Sequence[str], text: str) -> list[str]:
    """The whole passage, then its stretches if it has several, all below its headings."""
    stretches = cut(text, lambda part: len(part) // CHARACTERS_PER_TOKEN, STRETCH_TOKENS)
    parts = [text, *stretches] if len(stretches) > 1 else [text]
    return [with_headings(tuple(heading_path), part) for part in parts[:UNITS]]


def unit_ids(passages: Sequence[int]) -> npt.NDArray[np.int64]:
    """Numbers of units, given the passage of each in their order."""
    seen: Counter[int] = Counter()
    ids = np.zeros(len(passages), np.int64)
    for place, passage in enumerate(passages):
        ids[place] = passage * UNITS + seen[passage]
        seen[passage] += 1
    return ids


def passage_of(unit: int) -> int:
    """The passage of a unit."""
    return unit // UNITS
