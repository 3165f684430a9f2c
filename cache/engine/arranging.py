"""Prompts for one model: texts and modules to plans. Needs the model's tokenizer and numbers, not its weights."""

from collections.abc import Sequence

from cache.model.language_model import ModelInfo
from cache.prompt.arrangement import Placement, arrange, module_segment
from cache.prompt.parts import Text, TextModule
from cache.prompt.plan import Plan, Segment
from cache.prompt.tokenizer import CachingTokenizer, Tokenizer

REMEMBERED_RUNS, REMEMBERED_CHARS = 1024, 8000
"""Texts whose tokens are remembered, and how long one may be: some 20 KiB each for passages, at most some 300 KiB."""


class Arranger:
    """Arranges prompts as an engine does. Safe to use from any thread. placement, slot: unless `arrange` is told
    otherwise.
    """

    def __init__(self, info: ModelInfo, tokenizer: Tokenizer, placement: Placement, slot: int) -> None:
        self._info, self._placement, self._slot = info, placement, slot
        self._tokenizer = CachingTokenizer(tokenizer, REMEMBERED_RUNS, REMEMBERED_CHARS)

    def arrange(
        self, parts: Sequence[TextModule | Text], placement: Placement | None = None, slot: int | None = None
    ) -> Plan:
        """Tokenise and place modules and texts in order. placement, slot: the engine's if None. Raises PromptError."""
        info = self._info
        return arrange(
            parts,
            self._tokenizer,
            position_independent=info.is_position_independent,
            max_positions=info.max_positions,
            placement=(placement or self._placement) if info.places_modules else "contiguous",
            slot=slot or self._slot,
        )

    def segment(self, module: TextModule) -> Segment:
        """The segment `arrange` makes of a module; for position-independent models the same wherever it stands."""
        info = self._info
        return module_segment(module, self._tokenizer, room=info.max_positions if info.is_position_independent else 0)

    def clear(self) -> None:
        """Forget all texts."""
        self._tokenizer.clear()
