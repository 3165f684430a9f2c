"""Schemas by name, laid out once. Safe to use from any thread.

Adding a name twice is an error; replacing is a call of its own. Encoded modules are not held here: they are found by
what they contain, so a replaced schema keeps every module that did not change.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from cache.errors import PMLError
from cache.layout import Layout
from cache.pml import Prompt, Schema


class Registry:
    """Laid-out schemas. place: lays a schema out for the model at hand; may raise PMLError."""

    def __init__(self, place: Callable[[Schema], Layout]) -> None:
        self._place = place
        self._layouts: dict[str, Layout] = {}
        self._lock = threading.Lock()

    def add(self, schema: Schema) -> Layout:
        """Lay a schema out and keep it. Raises PMLError, also if the name is taken; then nothing changes."""
        layout = self._place(schema)
        with self._lock:
            if schema.name in self._layouts:
                raise PMLError(f"schema {schema.name!r} exists; replace it, or choose another name", where="registry")
            self._layouts[schema.name] = layout
        return layout

    def replace(self, schema: Schema) -> Layout:
        """Lay a schema out in place of the one of that name, if there is one. Raises PMLError; then nothing changes."""
        layout = self._place(schema)
        with self._lock:
            self._layouts[schema.name] = layout
        return layout

    def remove(self, name: str) -> None:
        """Forget a schema. Raises PMLError if there is none of that name."""
        with self._lock:
            if self._layouts.pop(name, None) is None:
                raise PMLError(f"there is no schema {name!r} to remove; known: {self._known()}", where="registry")

    def of(self, prompt: Prompt) -> Layout:
        """The layout a prompt is for. Raises PMLError."""
        with self._lock:
            layout = self._layouts.get(prompt.schema)
            if layout is None:
                raise PMLError(
                    f"<prompt>: there is no schema {prompt.schema!r}; known: {self._known()}",
                    where="prompt",
                    line=prompt.line or None,
                )
            return layout

    def _known(self) -> str:
        return ", ".join(sorted(self._layouts)) or "none"
