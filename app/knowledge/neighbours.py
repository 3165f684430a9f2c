"""Neighbours: the passages each passage is encoded behind, so that its keys and values have seen related text
(FusionRAG, SIGMOD 2026). Chosen by embedding, recorded in the database, part of the module's key.

A choice stays as it is while passages come and go, so that most modules do, too; results therefore depend on the order
of ingestion. It is made anew when one of the chosen is changed or removed (the library then takes all of them away) and
when another number is asked for.

An encoded passage carries what its neighbours say, so whoever may read the passage must be allowed to read them:
neighbours are of the same collection.

Not covered: encoding (`ingestion`), how neighbours stand in front of a passage (`prompting`).
"""

from __future__ import annotations

from app.knowledge.search import Search
from app.storage.library import Library

NEIGHBOURS = "neighbours"
"""Fact that says how many neighbours were asked for when those recorded were chosen."""

CHOSEN_AT_ONCE = 500


def chosen_for(library: Library) -> int:
    """How many neighbours the recorded ones were chosen for."""
    return int(library.fact(NEIGHBOURS) or 0)


def choose_neighbours(library: Library, search: Search, count: int) -> frozenset[str]:
    """Give `count` neighbours (or as many as there are) to every passage that has none and, if another number was asked
    for before, to all. Passages that get others have no module then; gives the modules that are no passage's any more.
    The search must know all passages.

    Raises DeskError. If it is interrupted, the next call does the rest.
    """
    is_other = count != chosen_for(library)
    if not count and not is_other:
        return frozenset()
    due = frozenset(library.all_ids(only_alone=not is_other))
    loose: set[str] = set()
    for collection in library.collections():
        inside = library.ids_in([collection])
        ids = sorted(due & inside)
        for first in range(0, len(ids), CHOSEN_AT_ONCE):
            some = ids[first : first + CHOSEN_AT_ONCE]
            nearest = search.nearest(some, count, within=inside) if count else dict.fromkeys(some, ())
            loose |= set(library.set_neighbours(nearest))
    if is_other:
        library.set_fact(NEIGHBOURS, str(count))
    return frozenset(loose)
