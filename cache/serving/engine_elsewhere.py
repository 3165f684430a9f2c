"""What is done here for an engine elsewhere: prompts are arranged with its model's tokenizer, without its weights.

Not covered: how the engine is reached (`engine_process`, `cache.cluster.cluster_engine`).
"""

from collections.abc import Sequence

from cache.engine.arranging import Arranger
from cache.memory.keys import PUBLIC_TENANT, segment_key
from cache.model.loading import load_tokenizer
from cache.prompt.arrangement import Placement
from cache.prompt.parts import Text, TextModule
from cache.prompt.plan import Plan, Segment
from cache.serving.messages import Begun
from cache.serving.spec import EngineSpec


class EngineElsewhere:
    """The part of `cache.serving.interface.EngineInterface` about prompts."""

    def __init__(self, begun: Begun, spec: EngineSpec) -> None:
        """begun: what the engine has said of itself. Raises CacheError."""
        self.info, self.module_room, self._fingerprint = begun.info, begun.module_room, begun.fingerprint
        self.tokenizer = load_tokenizer(spec.model, converted=spec.converted)[0]
        self._arranger = Arranger(self.info, self.tokenizer, spec.placement, spec.slot)

    def arrange(
        self, parts: Sequence[TextModule | Text], placement: Placement | None = None, slot: int | None = None
    ) -> Plan:
        """Tokenise and place modules and texts in order. placement, slot: the engine's if None. Raises PromptError."""
        return self._arranger.arrange(parts, placement, slot)

    def segment(self, module: TextModule) -> Segment:
        """The segment `arrange` makes of a module; for position-independent models the same wherever it stands."""
        return self._arranger.segment(module)

    def key(self, segment: Segment, tenant: str = PUBLIC_TENANT) -> str:
        """Content address of a segment's module for this model."""
        return segment_key(segment, fingerprint=self._fingerprint, tenant=tenant)
