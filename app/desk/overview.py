"""The dashboard's numbers: counters and records, summarised.

Token counts and times come from the stored answers, so they survive restarts; tiers and evictions from the module
store, live where an engine runs and read from the files where none does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from app.domain.answers import ModuleRow, Overview, PrefixRow
from app.domain.reuse_words import SYSTEM_TEXT
from app.knowledge.prompting import SYSTEM
from app.storage.history import History
from app.storage.library import Library
from cache.engine.engine import Engine
from cache.memory.keys import PUBLIC_TENANT
from cache.memory.module_header import ModuleHeader
from cache.memory.store import PrefixUse

SHOWN_PREFIXES = 10
SUPPORTED = 0.5
"""Grounding up to which something in an answer was found to be unsupported (see `grounding.CheckedSentence`)."""
PREFIX_TOKENS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiers:
    """What is where. device, disk: headers of the modules in each tier."""

    device: tuple[ModuleHeader, ...] = ()
    disk: tuple[ModuleHeader, ...] = ()
    bytes_per_token: dict[str, int] = field(default_factory=dict)
    num_bytes: dict[str, int] = field(default_factory=dict)
    capacity: dict[str, int] = field(default_factory=dict)
    evictions: dict[str, int] = field(default_factory=dict)
    prefixes: tuple[PrefixRow, ...] = ()


def tiers_of(engine: Engine) -> Tiers:
    """The tiers of a running engine."""

    store, per_token = engine.store, engine.model.info.kv.bytes_per_token

    def device() -> tuple[tuple[ModuleHeader, ...], int, dict[str, int]]:
        headers = tuple(resident.header for resident in store.entries.values())
        used = store.allocator.capacity - store.allocator.free_slots
        return headers, used * per_token, dict(store.evictions)

    headers, used, evictions = engine.call(lambda _: device())
    disk = store.disk
    num_bytes, capacity = {"device": used}, {"device": store.allocator.capacity * per_token}
    if disk is not None:
        num_bytes["disk"], capacity["disk"] = disk.num_bytes, disk.capacity
        evictions["disk"] = disk.evictions
    on_disk = tuple(disk.headers()) if disk is not None else ()
    keys = {header.key: per_token for header in (*headers, *on_disk)}
    return Tiers(
        device=headers,
        disk=on_disk,
        bytes_per_token=keys,
        num_bytes=num_bytes,
        capacity=capacity,
        evictions=evictions,
        prefixes=tuple(prefix_row(engine, use) for use in engine.call(lambda store: store.prefix_uses(SHOWN_PREFIXES))),
    )


def prefix_row(engine: Engine, use: PrefixUse) -> PrefixRow:
    """A prefix with the words its last run begins with."""
    text = " ".join(engine.model.tokenizer.decode(use.tokens[:PREFIX_TOKENS]).split())
    return PrefixRow(text=text, tokens=use.num_tokens, hits=use.hits, saved=use.saved)


def summarise(
    library: Library,
    history: History,
    tiers: Tiers,
    *,
    model: str,
    device: str,
    policy: str,
    answer_mode: str,
    calibration: str,
) -> Overview:
    """One consistent picture for people. Raises DeskError."""
    counts, sums = library.counts(), history.sums()
    return Overview(
        documents=counts.documents,
        passages=counts.passages,
        conversations=sums.conversations,
        answers=sums.answers,
        refusals=sums.refusals,
        computed_tokens=sums.computed_tokens,
        session_tokens=sums.session_tokens,
        prefix_tokens=sums.prefix_tokens,
        module_tokens=sums.module_tokens,
        ttft_ms_median=sums.ttft_ms_median,
        ttft_ms_p95=sums.ttft_ms_p95,
        tier_bytes=tiers.num_bytes,
        tier_capacity=tiers.capacity,
        evictions=tiers.evictions,
        modules=tuple(module_rows(library, history, tiers)),
        prefixes=tiers.prefixes,
        reasons=tuple(history.miss_reasons()),
        misses=tuple(history.misses()),
        points=tuple(history.points()),
        grounding=sums.grounding,
        quoted=sums.quoted,
        weak=tuple(history.weakly_supported(SUPPORTED)),
        policy=policy,
        answer_mode=answer_mode,
        calibration=calibration,
        model=model,
        device=device,
    )


def module_rows(library: Library, history: History, tiers: Tiers) -> Iterable[ModuleRow]:
    """Every module of the desk in its fastest tier, what saved most first; not those of PML prompts."""
    headers = {header.key: ("disk", header) for header in tiers.disk}
    headers |= {header.key: ("device", header) for header in tiers.device}
    headers = {key: entry for key, entry in headers.items() if entry[1].tenant == PUBLIC_TENANT}
    labels = library.module_labels(list(headers))
    hits = history.module_hits()
    rows = []
    for key, (tier, header) in headers.items():
        label, used = labels.get(key), hits.get(key)
        rows.append(
            ModuleRow(
                id=key,
                document=SYSTEM_TEXT if header.name == SYSTEM else header.name if label is None else label.document,
                passage="" if label is None else label.passage,
                tokens=header.num_tokens,
                num_bytes=header.num_tokens * tiers.bytes_per_token.get(key, 0),
                tier=tier,
                hits=0 if used is None else used.hits,
                misses=0 if used is None else used.misses,
                last_used=None if used is None else used.last_used,
            )
        )
    return sorted(rows, key=lambda row: (-row.saved, row.document, row.passage))
