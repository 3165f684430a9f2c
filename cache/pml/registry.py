"""Schemas by name, laid out once for a model, and the binding of prompts to them. Safe to use from any thread.

Adding a name twice is an error; replacing is a call of its own. Encoded modules are not kept here. The engine finds
them by content, so a replaced schema keeps every encoded module that did not change.
"""

import threading
from typing import Protocol

from cache.errors import PMLError
from cache.pml.binding import Bound, bind, module_segments
from cache.pml.layout import Layout, lay_out
from cache.pml.nodes import Prompt, Schema
from cache.pml.rules import mistake
from cache.prompt.plan import Segment
from cache.prompt.roles import NO_ROLES, Roles
from cache.prompt.tokenizer import ChatTokenizer, Tokenizer


class ModelLimits(Protocol):
    """What layout and binding need to know of a model, besides its tokenizer. `ModelInfo` is one."""

    @property
    def max_positions(self) -> int:
        """Usable position ids are 0 .. max_positions-1."""

    @property
    def is_position_independent(self) -> bool:
        """Whether a segment encoded once may be placed at any offset."""


class Registry:
    """Laid-out schemas.

    roles: strings of the chat template around turns. max_positions, position_independent: as in `ModelLimits`; None
    sets no limit.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        roles: Roles = NO_ROLES,
        max_positions: int | None = None,
        position_independent: bool = True,
    ) -> None:
        self.tokenizer = tokenizer
        self._roles, self._max_positions, self._position_independent = roles, max_positions, position_independent
        self._layouts: dict[str, Layout] = {}
        self._lock = threading.Lock()

    @classmethod
    def for_model(cls, tokenizer: ChatTokenizer, limits: ModelLimits) -> "Registry":
        """An empty registry for a loaded model."""
        return cls(
            tokenizer,
            roles=tokenizer.template.roles,
            max_positions=limits.max_positions,
            position_independent=limits.is_position_independent,
        )

    def lay_out(self, schema: Schema) -> Layout:
        """Give a schema its position ids without keeping it. Raises PMLError."""
        return lay_out(schema, self.tokenizer, roles=self._roles, max_positions=self._max_positions)

    def segments_of(self, layout: Layout) -> list[Segment]:
        """Every segment a schema can use, scaffold sets last. `Engine.encode` computes them ahead of use."""
        return module_segments(layout, position_independent=self._position_independent)

    def bind(self, prompt: Prompt) -> Bound:
        """Place a prompt for a schema of this registry. Raises PMLError."""
        return bind(prompt, self.of(prompt), position_independent=self._position_independent)

    def add(self, schema: Schema) -> Layout:
        """Lay a schema out and keep it. Raises PMLError, also if the name is taken, and then changes nothing."""
        layout = self.lay_out(schema)
        with self._lock:
            if schema.name in self._layouts:
                raise PMLError(f"schema {schema.name!r} exists; replace it, or choose another name", where="registry")
            self._layouts[schema.name] = layout
        return layout

    def replace(self, schema: Schema) -> Layout:
        """Lay a schema out and keep it, in place of one of that name. Raises PMLError, and then changes nothing."""
        layout = self.lay_out(schema)
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
                raise mistake(prompt, f"there is no schema {prompt.schema!r}; known: {self._known()}", "prompt")
            return layout

    def _known(self) -> str:
        return ", ".join(sorted(self._layouts)) or "none"
