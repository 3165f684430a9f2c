"""Letting the model read passages ahead of questions: every passage without its module is encoded, as far as the tiers
hold them.

Encoding waits for questions, which the engine serves first. Not covered: which passages there are (`ingestion`), what
they are encoded behind (`neighbours`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass

from app.domain.documents import StoredPassage
from app.domain.progress import Progress
from app.knowledge.prompting import PassageText, PromptBuilder
from app.storage.library import Library
from cache.engine.engine import Engine

JOBS_IN_FLIGHT = 4
"""Batches of passages queued for encoding at once: enough to fill the engine's passes."""
AT_ONCE = 32
"""Passages in a batch."""


@dataclass(slots=True, kw_only=True)
class Warmed:
    """encoded, kept: modules. waiting: passages for whose modules no tier has room; they are encoded when a question
    needs them.
    """

    encoded: int = 0
    kept: int = 0
    waiting: int = 0


class Warming:
    """Encodes passages of one desk."""

    def __init__(self, library: Library, engine: Engine, prompts: PromptBuilder) -> None:
        self.library, self.engine, self.prompts = library, engine, prompts

    def run(self, documents: Sequence[str], progress: Progress) -> Warmed:
        """Encode what is not encoded yet, of these documents and then elsewhere."""
        inside = self.library.ids_of(documents)
        others = [id_ for id_ in self.library.all_ids(only_unencoded=True) if id_ not in inside]
        return self.encode([*sorted(inside), *others], progress)

    def encode(self, ids: Sequence[int], progress: Progress) -> Warmed:
        """Encode what is not encoded yet of these passages, a few batches ahead of the engine."""
        warmed = Warmed()
        running: dict[Future[int], int] = {}

        def collect(*, everything: bool) -> None:
            while running and (everything or len(running) >= JOBS_IN_FLIGHT):
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    count, encoded = running.pop(future), future.result()
                    warmed.encoded += encoded
                    warmed.kept += count - encoded
                    progress("encoding", warmed.encoded + warmed.kept, len(ids) - warmed.waiting)

        room = self.room_for()
        for passages in self._batches(ids):
            segments = [self.engine.segment(self.prompts.module(passage_of(p))) for p in passages]
            fitting = 0
            while fitting < len(segments) and room >= len(segments[fitting].tokens):
                room -= len(segments[fitting].tokens)
                fitting += 1
            warmed.waiting += len(segments) - fitting
            keys = [self.engine.store.key(segment) for segment in segments]
            changed = {p.id: key for p, key in zip(passages, keys, strict=True) if p.module_key != key}
            if changed:
                self.library.set_module_keys(changed)
            if fitting:
                running[self.engine.encode(segments[:fitting])] = fitting
            collect(everything=False)
        collect(everything=True)
        self.engine.store.flush()
        return warmed

    def room_for(self) -> int:
        """Tokens whose modules the largest tier holds: encoding more would only push out what was encoded before."""
        store, per_token = self.engine.store, self.engine.model.info.kv.bytes_per_token
        on_disk = 0 if store.disk is None else store.disk.capacity // per_token
        return max(on_disk, store.allocator.capacity)

    def _batches(self, ids: Sequence[int]) -> Iterator[list[StoredPassage]]:
        for first in range(0, len(ids), AT_ONCE):
            yield self.library.passages(ids[first : first + AT_ONCE])


def passage_of(passage: StoredPassage) -> PassageText:
    """A stored passage as the prompt needs it."""
    return PassageText(
        name=f"{passage.document}#{passage.ordinal}",
        title=passage.title,
        heading_path=passage.heading_path,
        text=passage.text,
        neighbours=tuple(passage_of(neighbour) for neighbour in passage.neighbours),
    )
