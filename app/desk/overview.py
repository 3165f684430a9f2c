"""Compute the dashboard's numbers, the savings of reuse, and the memory size that is enough.

Token counts and times come from the stored answers, so they survive restarts. Tiers and evictions come from the running
engine, or from the files if no engine runs. `plan_memory` simulates recent answers with other memory sizes. Savings
have 95 % intervals: Student's t for the mean, order statistics for the median, Wilson's for shares. SciPy is not used,
because importing it takes a second; a test compares with it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from itertools import accumulate
from math import comb
from statistics import NormalDist, fmean, median, stdev
from typing import TYPE_CHECKING

from app.desk.calibration import Calibration, answer_mode_of, find_calibration, policy_of
from app.domain.answers import DiskSpace, ModuleRow, Overview, PrefixRow
from app.domain.documents import ModuleLabel, PassageState, StoredPassage
from app.domain.quality import WEAK
from app.domain.settings import Settings
from app.domain.statistics import Interval, MemoryBudget, MemoryPlan, Savings, SavingsSample
from app.domain.words import SYSTEM_TEXT, one_line
from app.knowledge.prompts import SYSTEM
from app.knowledge.warm import kept_modules
from app.storage.database import Database
from app.storage.library import Library
from app.storage.statistics import ModuleHits, Statistics
from cache.memory.disk import DiskTier, TierContents, contents_on_disk
from cache.memory.keys import PUBLIC_TENANT

if TYPE_CHECKING:  # `warmdesk stats` reads numbers without torch
    from cache.serving.interface import EngineInterface

ANSWERS = 1000  # number of recent answers that are replayed; some seconds of computing
SHARES = (0.1, 0.25, 0.5, 0.75, 1.0)  # memory sizes that are tried, as shares of what all used passages need
CLOSE = 0.02  # a size is enough if more memory would raise the hit rate by less than this


def plan_memory(prompts: Sequence[Sequence[tuple[str, int]]], current: int, bytes_per_token: int) -> MemoryPlan:
    """Simulate prompts, oldest first, with several memory sizes. prompts: key and length in tokens of the modules of
    each prompt. current: the configured size in bytes.
    """
    from cache.analysis.memory_plan import replay

    if not prompts:
        return MemoryPlan()
    everything = sum({key: max(1, tokens) for modules in prompts for key, tokens in modules}.values())
    slots = {max(1, int(share * everything)) for share in SHARES} | {max(1, current // bytes_per_token)}
    budgets = []
    for number in sorted(slots):
        replayed = replay(prompts, number)
        budgets.append(
            MemoryBudget(
                num_bytes=number * bytes_per_token,
                found=replayed.found / replayed.uses,
                tokens=replayed.missing_tokens / len(prompts),
                is_current=number == max(1, current // bytes_per_token),
            )
        )
    most = max(budget.found for budget in budgets)
    enough = next(budget.num_bytes for budget in budgets if budget.found >= most - CLOSE)
    return MemoryPlan(answers=len(prompts), budgets=budgets, enough=enough)


Z = NormalDist().inv_cdf(0.975)
ENOUGH = 8
"""Minimum number of samples for the interval of a mean or median. With fewer samples it would be too wide."""


def summarise_savings(samples: Sequence[SavingsSample]) -> Savings:
    if not samples:
        return Savings()
    prompt = sum(one.prompt_tokens for one in samples)
    likeness = [one.likeness for one in samples if one.likeness is not None]
    others = [value for value in likeness if value < 1]
    return Savings(
        samples=len(samples),
        first_token_ms=fmean(one.first_token_ms for one in samples),
        without_reuse_ms=fmean(one.without_reuse_ms for one in samples),
        saved_ms=_mean([one.saved_ms for one in samples]),
        times_sooner=_median([one.without_reuse_ms / max(one.first_token_ms, 0.01) for one in samples]),
        tokens_reused=1 - sum(one.computed_tokens for one in samples) / prompt if prompt else 0.0,
        compared=len(likeness),
        same=_share(len(likeness) - len(others), len(likeness)),
        likeness=fmean(others) if others else None,
    )


def _mean(values: Sequence[float]) -> Interval | None:
    if len(values) < ENOUGH:
        return None
    middle, free = fmean(values), len(values) - 1
    # Student's t by its expansion around the normal distribution (Abramowitz and Stegun 26.7.5).
    more = ((Z**3 + Z) / 4, (5 * Z**5 + 16 * Z**3 + 3 * Z) / 96, (3 * Z**7 + 19 * Z**5 + 17 * Z**3 - 15 * Z) / 384)
    t = Z + sum(term / free**power for power, term in enumerate(more, start=1))
    margin = t * stdev(values) / len(values) ** 0.5
    return Interval(value=middle, low=middle - margin, high=middle + margin)


def _median(values: Sequence[float]) -> Interval | None:
    if len(values) < ENOUGH:
        return None
    number, ordered = len(values), sorted(values)
    outside = next(
        k for k, below in enumerate(accumulate(comb(number, k) for k in range(number))) if below * 40 > 2**number
    )
    return Interval(value=median(values), low=ordered[outside - 1], high=ordered[number - outside])


def _share(number: int, of: int) -> Interval | None:
    if not of:
        return None
    share, whole = number / of, 1 + Z**2 / of
    middle = (share + Z**2 / (2 * of)) / whole
    margin = Z / whole * (share * (1 - share) / of + Z**2 / (4 * of**2)) ** 0.5
    return Interval(value=share, low=max(0.0, middle - margin), high=min(1.0, middle + margin))


SHOWN_PREFIXES = 10
PREFIX_TOKENS = 24
NEVER_USED = ModuleHits(hits=0, misses=0, last_used=None)


def prefix_rows(engine: "EngineInterface") -> tuple[PrefixRow, ...]:

    def text_of(tokens: Sequence[int]) -> str:
        return one_line(engine.tokenizer.decode(tokens[:PREFIX_TOKENS]))

    return tuple(
        PrefixRow(text=text_of(use.tokens), tokens=use.num_tokens, hits=use.hits, saved=use.saved)
        for use in engine.prefix_uses(SHOWN_PREFIXES)
    )


def summarise(
    library: Library, statistics: Statistics, tiers: TierContents, prefixes: tuple[PrefixRow, ...]
) -> Overview:
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


def stored_overview(settings: Settings, database: Database) -> Overview:
    """Return the dashboard's numbers while no server runs. Raises DeskError."""
    library = Library(database, settings.page_urls)
    summary = summarise(library, Statistics(database), stored_tiers(settings), ())
    return describe(summary, settings, find_calibration(settings))


def describe(overview: Overview, settings: Settings, calibration: Calibration | None) -> Overview:
    """Add the model, its device or server, the policy, the answer mode and the calibration."""
    server = settings.model_server
    return replace(
        overview,
        model=model_name(settings),
        device=settings.device if server is None else server.url,
        is_elsewhere=server is not None,
        policy=policy_of(settings, calibration),
        answer_mode=answer_mode_of(settings, calibration),
        calibration="" if calibration is None else calibration.line(),
    )


def model_name(settings: Settings) -> str:
    server = settings.model_server
    return server.name if server is not None else settings.model or "bundled"


def stored_tiers(settings: Settings) -> TierContents:
    """Return the encoded modules on disk. No engine is needed."""
    if settings.model_server is not None or not settings.modules_folder.is_dir():
        return TierContents()
    return contents_on_disk(DiskTier(settings.modules_folder, settings.disk, settings.disk_floor_bytes))


def module_rows(library: Library, statistics: Statistics, tiers: TierContents) -> Iterable[ModuleRow]:
    """Return a row per module, most saved tokens first, with its fastest tier or "none". PML modules are skipped."""
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
