"""The dashboard's numbers, put together.

Token counts and times come from the stored answers, so they survive restarts; tiers and evictions come from the running
engine's module store, or from the files where no engine runs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from app.domain.answers import DiskSpace, ModuleRow, Overview, PrefixRow
from app.domain.documents import ModuleLabel, PassageState, StoredPassage
from app.domain.quality import WEAK
from app.domain.reuse_words import SYSTEM_TEXT
from app.knowledge.module_care import kept_modules
from app.knowledge.prompts import SYSTEM
from app.storage.library import Library
from app.storage.statistics import ModuleHits, Statistics
from cache.memory.contents import TierContents, contents_on_disk
from cache.memory.disk import DiskTier
from cache.memory.keys import PUBLIC_TENANT
from cache.serving.interface import EngineInterface

SHOWN_PREFIXES = 10
PREFIX_TOKENS = 24
"""Tokens of a prefix that are shown."""
NEVER_USED = ModuleHits(hits=0, misses=0, last_used=None)


def tiers_on_disk(folder: Path, capacity: int, floor: int | None) -> TierContents:
    """The disk tier, read from its files without an engine."""
    return contents_on_disk(DiskTier(folder, capacity, floor)) if folder.is_dir() else TierContents()


def prefix_rows(engine: EngineInterface) -> tuple[PrefixRow, ...]:
    """The prefixes of a running engine that saved most, with the words the last run of each begins with."""

    def text_of(tokens: Sequence[int]) -> str:
        return " ".join(engine.tokenizer.decode(tokens[:PREFIX_TOKENS]).split())

    return tuple(
        PrefixRow(text=text_of(use.tokens), tokens=use.num_tokens, hits=use.hits, saved=use.saved)
        for use in engine.prefix_uses(SHOWN_PREFIXES)
    )


def summarise(
    library: Library, statistics: Statistics, tiers: TierContents, prefixes: tuple[PrefixRow, ...]
) -> Overview:
    """All numbers; the names of model, policy and so on are left empty. Raises DeskError."""
    return Overview(
        **asdict(statistics.totals()),
        **asdict(library.counts()),
        tier_bytes=dict(tiers.num_bytes),
        tier_capacity=dict(tiers.capacity),
        evictions=dict(tiers.evictions),
        disk_space=None if tiers.space is None else DiskSpace(**asdict(tiers.space), is_short=tiers.space.is_short),
        modules=tuple(module_rows(library, statistics, tiers)),
        prefixes=prefixes,
        reasons=tuple(statistics.miss_reasons()),
        misses=tuple(statistics.misses()),
        points=tuple(statistics.points()),
        weak=tuple(statistics.weakly_supported(WEAK)),
    )


def module_rows(library: Library, statistics: Statistics, tiers: TierContents) -> Iterable[ModuleRow]:
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


def passage_states(
    passages: Sequence[StoredPassage], statistics: Statistics, tiers: TierContents
) -> list[PassageState]:
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
