"""How an index is kept in segments, as in Lucene: what is added becomes a segment of its own, and segments of like size
are merged, so that adding costs about as much as what is added, and the others are shared with the index before it.
"""

from collections.abc import Callable, Sequence, Sized
from typing import TypeVar

LARGEST = 20_000
"""Windows of a segment beyond which it is not merged, so that no change copies more than that at once."""

S = TypeVar("S", bound=Sized)


def parted(number: int) -> list[slice]:
    """Where to cut so many windows, so that no segment is larger than that."""
    return [slice(first, first + LARGEST) for first in range(0, number, LARGEST)]


def merged(segments: Sequence[S], join: Callable[[Sequence[S]], S]) -> list[S]:
    """Merge neighbours until each is twice as large as the next: there are few, and a window is merged seldom. Empty
    ones are left out. join: makes one segment of several.
    """
    done: list[S] = []
    for segment in filter(len, segments):
        done.append(segment)
        while len(done) > 1 and len(done[-2]) < 2 * len(done[-1]) and len(done[-2]) + len(done[-1]) <= LARGEST:
            done[-2:] = [join(done[-2:])]
    return done
