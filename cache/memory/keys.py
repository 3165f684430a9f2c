"""Content addresses (keys) of encoded modules.

A key covers everything the KV depends on: model, dtype, position scheme (all in the model's fingerprint), who may
share it (tenant), the context before the segment while it was encoded (prefix and left context), its positions and its
token ids. Modules with equal keys are interchangeable. Keys begin with a tag of the hash algorithm (BLAKE2b-256). Also
the reports on a stored module or prefix: its source, uses and check.
"""

import hashlib
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cache.prompt.plan import Segment

ALGORITHM = "b2"
ENCODER_VERSION = "1"
"""Increase it when the code changes a module's keys and values, for example by another mask, other position ids or
another order of heads. It is part of a model's fingerprint, so other versions' modules are encoded again.
"""
PUBLIC_TENANT = "public"
TENANT_PATTERN = re.compile(r"[A-Za-z0-9._-]{1,128}")


def digest(*parts: bytes | str) -> str:
    """Return a tagged BLAKE2b-256 of parts. The length precedes each part, so different lists give different input."""
    hasher = hashlib.blake2b(digest_size=32)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        hasher.update(len(data).to_bytes(8, "little"))
        hasher.update(data)
    return f"{ALGORITHM}:{hasher.hexdigest()}"


def file_digest(path: Path) -> str:
    with open(path, "rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
BASE = "base"


def adapter_fingerprint(folder: Path) -> str:
    """Return the identity of a LoRA adapter and of the adapter it was trained on; missing files are skipped."""
    files = [folder / name for name in (CONFIG, WEIGHTS) if (folder / name).is_file()]
    below = adapter_fingerprint(folder / BASE) if (folder / BASE).is_dir() else ""
    return digest(*(file_digest(file) for file in files), below)


def token_bytes(tokens: tuple[int, ...]) -> bytes:
    return struct.pack(f"<{len(tokens)}q", *tokens)


def check_tenant(tenant: str) -> None:
    if not TENANT_PATTERN.fullmatch(tenant):
        raise ValueError(f"tenant {tenant!r}: use 1 to 128 letters, digits, '.', '_' or '-'")


def segment_key(segment: Segment, *, fingerprint: str, tenant: str = PUBLIC_TENANT) -> str:
    check_tenant(tenant)
    prefix = "" if segment.prefix is None else segment_key(segment.prefix, fingerprint=fingerprint, tenant=tenant)
    places = str(segment.start) if not segment.gaps else f"{segment.start} {segment.gaps}"
    left_context = (token_bytes(segment.left_context),) if segment.left_context else ()
    return digest("module", fingerprint, tenant, prefix, places, token_bytes(segment.tokens), *left_context)


Source = Literal["device", "host", "disk", "computed", "elsewhere"]
"""The source of a module's rows. elsewhere: the server of a remote model, which does not report the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixUse:
    """A computed prefix that later requests reused. tokens: its last part; num_tokens: its whole length."""

    tokens: tuple[int, ...]
    num_tokens: int
    hits: int

    @property
    def saved(self) -> int:
        return self.hits * len(self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleCheck:
    """Result of comparing a stored module with the same module computed again. largest_difference: relative to the
    largest number; None if the stored module cannot be read, for the reason in `problem`.
    """

    largest_difference: float | None
    problem: str = ""
