"""What is noted about an encoded module besides its KV: its content address, and what tells why another one differs."""

from dataclasses import dataclass
from typing import Literal

from cache.memory.keys import digest, segment_key, token_bytes
from cache.prompt.plan import Segment

MissReason = Literal[
    "never built", "evicted", "document changed", "model or template changed", "placement", "load failed", "bypassed"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleHeader:
    """Identity of an encoded module; also kept in its file. prefix: key of the conditioning prefix. tokens,
    left_context: digests of the token ids, empty for no left context. gaps: `row+ids left out`, separated by spaces.
    """

    key: str
    name: str
    tenant: str
    fingerprint: str
    prefix: str
    tokens: str
    start: int
    num_tokens: int
    gaps: str = ""
    left_context: str = ""

    @classmethod
    def of(cls, segment: Segment, *, fingerprint: str, tenant: str) -> "ModuleHeader":
        """The header of a segment encoded by the model with that fingerprint."""
        prefix = segment.prefix
        return cls(
            key=segment_key(segment, fingerprint=fingerprint, tenant=tenant),
            name=segment.name,
            tenant=tenant,
            fingerprint=fingerprint,
            prefix="" if prefix is None else segment_key(prefix, fingerprint=fingerprint, tenant=tenant),
            tokens=digest(token_bytes(segment.tokens)),
            start=segment.start,
            num_tokens=len(segment.tokens),
            gaps=" ".join(f"{row}+{jump}" for row, jump in segment.gaps),
            left_context=digest(token_bytes(segment.left_context)) if segment.left_context else "",
        )

    def why_missing(self, known: "ModuleHeader | None") -> MissReason:
        """Why a module was not found although one of the same name and tenant was known (None: none was)."""
        if known is None or known.key == self.key:
            return "never built"
        if (known.fingerprint, known.prefix) != (self.fingerprint, self.prefix):
            return "model or template changed"
        if (known.tokens, known.left_context) != (self.tokens, self.left_context):
            return "document changed"
        return "placement" if (known.start, known.gaps) != (self.start, self.gaps) else "never built"
