"""The dashboard's numbers, put together.

Token counts and times come from the stored answers, so they survive restarts; tiers and evictions come from the running
engine's module store, or from the files where no engine runs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from app.domain.answers import ModuleRow, Overview, PrefixRow
from app.domain.documents import ModuleLabel, PassageState, StoredPassage
from app.domain.quality import WEAK
from app.domain.reuse_words import SYSTEM_TEXT
from app.knowledge.module_care import kept_modules
from app.knowledge.prompts import SYSTEM
from app.storage.library import Library
from app.storage.statistics import ModuleHits, Statistics
from cache.engine.engine import Engine
from cache.memory.disk import DiskTier
from cache.memory.keys import PUBLIC_TENANT
from cache.memory.kv_format import kept_bytes_per_token
from cache.memory.module_header import ModuleHeader
from cache.memory.store import PrefixUse

SHOWN_PREFIXES = 10
PREFIX_TOKENS = 24
"""Tokens of a prefix that are shown."""
NEVER_USED = ModuleHits(hits=0, misses=0, last_used=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiers:
    """What the tiers hold. modules: tier, header and bytes, the slowest tier first. num_bytes, capacity, evictions: by
    tier.
    """

    modules: tuple[tuple[str, ModuleHeader, int], ...] = ()
    num_bytes: dict[str, int] = field(default_factory=dict)
    capacity: dict[str, int] = field(default_factory=dict)
    evictions: dict[str, int] = field(default_factory=dict)
    prefixes: tuple[PrefixRow, ...] = ()


def tiers_of(engine: Engine) -> Tiers:
    """The tiers of a running engine."""
    store, per_token = engine.store, engine.model.info.kv.bytes_per_token

    def in_memory() -> tuple[list[ModuleHeader], list[ModuleHeader], int, dict[str, int]]:
        device, host = store.device, store.host
        used = device.allocator.capacity - device.allocator.free_slots
        headers, kept = ([entry.header for entry in tier.entries.values()] for tier in (device, host))
        return headers, kept, used * per_token, dict(device.evictions)

    headers, kept, used, evictions = engine.call(lambda _: in_memory())
    num_bytes, capacity = {"device": used}, {"device": store.device.allocator.capacity * per_token}
    modules = [("device", header) for header in headers]
    if (host := store.host).capacity:
        num_bytes["host"], capacity["host"], evictions["host"] = host.num_bytes, host.capacity, host.evictions
        modules = [("host", header) for header in kept] + modules
    if (disk := store.disk) is not None:
        num_bytes["disk"], capacity["disk"], evictions["disk"] = disk.num_bytes, disk.capacity, disk.evictions
        modules = [("disk", header) for header in disk.headers()] + modules
    per_kept = kept_bytes_per_token(engine.model.info.kv, store.kv_storage)
    sizes = {"device": per_token, "host": per_kept, "disk": per_kept}
    return Tiers(
        modules=tuple((tier, header, header.num_tokens * sizes[tier]) for tier, header in modules),
        num_bytes=num_bytes,
        capacity=capacity,
        evictions=evictions,
        prefixes=tuple(prefix_row(engine, use) for use in engine.call(lambda store: store.prefix_uses(SHOWN_PREFIXES))),
    )


def tiers_on_disk(folder: Path, capacity: int) -> Tiers:
    """The disk tier, read from its files without an engine."""
    if not folder.is_dir():
        return Tiers()
    disk = DiskTier(folder, capacity)
    return Tiers(
        modules=tuple(("disk", entry.header, entry.num_bytes) for entry in disk.entries.values()),
        num_bytes={"disk": disk.num_bytes},
        capacity={"disk": disk.capacity},
    )


def prefix_row(engine: Engine, use: PrefixUse) -> PrefixRow:
    """A prefix with the words its last run begins with."""
    text = " ".join(engine.model.tokenizer.decode(use.tokens[:PREFIX_TOKENS]).split())
    return PrefixRow(text=text, tokens=use.num_tokens, hits=use.hits, saved=use.saved)


def summarise(library: Library, statistics: Statistics, tiers: Tiers) -> Overview:
    """All numbers; the names of model, policy and so on are left empty. Raises DeskError."""
    return Overview(
        **asdict(statistics.totals()),
        **asdict(library.counts()),
        tier_bytes=tiers.num_bytes,
        tier_capacity=tiers.capacity,
        evictions=tiers.evictions,
        modules=tuple(module_rows(library, statistics, tiers)),
        prefixes=tiers.prefixes,
        reasons=tuple(statistics.miss_reasons()),
        misses=tuple(statistics.misses()),
        points=tuple(statistics.points()),
        weak=tuple(statistics.weakly_supported(WEAK)),
    )


def module_rows(library: Library, statistics: Statistics, tiers: Tiers) -> Iterable[ModuleRow]:
    """Every module of the desk in its fastest tier, the one that saved most tokens first; none of PML prompts. Modules
    of passages that are in no tier have the tier "none".
    """
    modules = {
        header.key: (tier, header.name, header.num_tokens, num_bytes)
        for tier, header, num_bytes in tiers.modules
        if header.tenant == PUBLIC_TENANT
    }
    for one in library.module_sizes():
        if one.module_key is not None:
            modules.setdefault(one.module_key, ("none", "", one.num_tokens, 0))
    labels, hits, kept = library.module_labels(list(modules)), statistics.module_hits(), kept_modules(library)
    rows = []
    for key, (tier, name, tokens, num_bytes) in modules.items():
        unlabelled = ModuleLabel(document=SYSTEM_TEXT if name == SYSTEM else name, passage="")
        rows.append(
            ModuleRow(
                id=key,
                tokens=tokens,
                num_bytes=num_bytes,
                tier=tier,
                is_kept=key in kept,
                **asdict(labels.get(key, unlabelled)),
                **asdict(hits.get(key, NEVER_USED)),
            )
        )
    return sorted(rows, key=lambda row: (-row.saved, row.document, row.passage))


def passage_states(passages: Sequence[StoredPassage], statistics: Statistics, tiers: Tiers) -> list[PassageState]:
    """How the model has each of these passages, in the fastest tier."""
    tier_of = {header.key: tier for tier, header, _ in tiers.modules if header.tenant == PUBLIC_TENANT}
    used = statistics.module_hits()
    return [
        PassageState(
            passage=passage,
            tier=tier_of.get(passage.module_key or "", "none"),
            last_used=used.get(passage.module_key or "", NEVER_USED).last_used,
        )
        for passage in passages
    ]
