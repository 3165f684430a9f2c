"""Neighbours: related passages that stand before a passage while it is encoded, so that its keys and values have
attended to them (FusionRAG, SIGMOD 2026). Chosen by embedding, recorded in the database, part of the module's key.

A passage's neighbours are not chosen again when passages are added, so that most modules can be kept; the result
therefore depends on the order of ingestion. They are chosen again when one of them is changed or removed (the library
then deletes all neighbours of the passage) and when the setting `neighbours` has changed.

The encoding of a passage contains information from its neighbours, so whoever may read the passage must be allowed to
read them: neighbours are of the same collection.

Not covered: encoding (`warm`), how neighbours are written before a passage (`prompts`).
"""

from collections.abc import Sequence

from app.knowledge.search import Search
from app.storage.library import Library

NEIGHBOURS = "neighbours"
"""Fact: the setting `neighbours` with which the recorded ones were chosen."""
CHOOSING = "choosing neighbours"
"""Fact: while they are chosen anew for all, how many each gets, and the last passage that has them."""
NOTHING_CHOSEN = "0 0"
CHOSEN_AT_ONCE = 100
"""Passages whose neighbours are recorded in one transaction."""


def chosen_for(library: Library) -> int:
    """The number of neighbours that was set when the recorded ones were chosen."""
    return int(library.fact(NEIGHBOURS) or 0)


def choose_neighbours(library: Library, search: Search, count: int) -> frozenset[str]:
    """Choose `count` neighbours (fewer if there are not so many passages) for every passage that has none; for all
    passages if `count` has changed. A passage whose neighbours change loses its module; returns the modules that no
    passage has any more. The search must know all passages.

    Raises DeskError. If it is interrupted, the next call does the rest.
    """
    is_other = count != chosen_for(library)
    if not count and not is_other:
        return frozenset()
    due = set(library.all_ids(only_alone=True))
    if is_other:
        due.update(id_ for id_ in library.all_ids() if id_ > chosen_until(library, count))
    inside = {name: library.ids_in([name]) for name in library.collections()}
    ids, unused = sorted(due), set[str]()
    for first in range(0, len(ids), CHOSEN_AT_ONCE):
        some = ids[first : first + CHOSEN_AT_ONCE]
        chosen: dict[int, Sequence[int]] = dict.fromkeys(some, ())
        if count:
            for within in inside.values():
                chosen |= search.nearest([id_ for id_ in some if id_ in within], count, within=within)
        unused |= set(library.set_neighbours(chosen))
        if is_other:
            library.set_fact(CHOOSING, f"{count} {some[-1]}")
    if is_other:
        library.set_fact(NEIGHBOURS, str(count))
        library.set_fact(CHOOSING, NOTHING_CHOSEN)
    return frozenset(unused)


def chosen_until(library: Library, count: int) -> int:
    """The last passage for which an interrupted call chose so many; 0 for none."""
    wanted, last = (library.fact(CHOOSING) or NOTHING_CHOSEN).split()
    return int(last) if int(wanted) == count else 0
