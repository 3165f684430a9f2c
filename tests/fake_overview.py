"""A dashboard's worth of invented numbers for FakeDesk: 180 answers over five days, 75 modules, every miss
reason.
"""

import math
from datetime import timedelta

from app.domain.answers import DiskSpace, MissRow, ModuleRow, Overview, PrefixRow, ReasonRow
from app.domain.statistics import FirstTokenTimes, Interval, MemoryBudget, MemoryPlan, Savings, UsageSpan

PAGES = (
    "returns/returns-policy.md",
    "returns/return-in-store.md",
    "returns/refund-times.html",
    "shipping/delivery-costs-and-times.md",
    "shipping/express-delivery.md",
    "warranty/warranty-terms.md",
    "payments/payment-methods.md",
    "accounts/larkmoor-circle-points.md",
    "product-care/descale-km-450.md",
)
REASONS = (
    "never built", "evicted", "document changed", "model or template changed", "placement",
    "load failed", "bypassed",
)  # fmt: skip


def make_usage(since, until, step):
    """A desk that grows warm, with a pause in the middle of the time."""
    steps = round((until - since) / step)
    spans = []
    for i in range(steps):
        if 0.4 < i / steps < 0.55:
            continue
        read, found = 9_000 - 8_000 * i // steps, 2_000 + 9_000 * i // steps
        slow = 900.0 - 500 * i / steps + 60 * math.sin(i)
        spans.append(
            UsageSpan(
                start=since + step * i,
                answers={"answered": 9 + i % 4, "unsure": i % 3, "nothing": 1},
                tokens={"computed": read, "module": found, "session": 900, "prefix": 1_400},
                modules={"device": 10 + 30 * i // steps, "disk": 6, "computed": 20 - 19 * i // steps},
                misses={"never built": 3},
                warm=FirstTokenTimes(answers=6, p50_ms=120 + 8 * math.sin(i), p95_ms=190 + 30 * math.cos(i)),
                cold=FirstTokenTimes(answers=4, p50_ms=slow, p95_ms=1.4 * slow) if i % 5 else None,
            )
        )
    return spans


def make_usage_within(since, until, step):
    spans = make_usage(since, until, step)
    return UsageSpan(
        start=since,
        answers={name: sum(span.answers.get(name, 0) for span in spans) for name in ("answered", "unsure", "nothing")},
        tokens={"computed": 52_175, "module": 147_332, "session": 22_379, "prefix": 16_784},
        first=FirstTokenTimes(answers=len(spans), p50_ms=131.0, p95_ms=842.0),
    )


def make_overview(now):
    modules = tuple(
        ModuleRow(
            id=f"b2:{i:016x}",
            document=PAGES[i % len(PAGES)],
            passage=f"Section {i // len(PAGES) + 1} · {i % 4 + 1}",
            tokens=180 + (i * 53) % 240,
            num_bytes=(180 + (i * 53) % 240) * 46_080,
            tier=("device", "device", "disk", "none")[i % 4],
            hits=(i * 31) % 97,
            misses=i % 4,
            last_used=None if i % 11 == 0 else now - timedelta(minutes=3 + i * i * 2),
        )
        for i in range(75)
    )
    misses = tuple(
        MissRow(
            created=now - timedelta(minutes=7 + i * 45),
            document=PAGES[(i * 4) % len(PAGES)],
            passage=f"Section {i % 5 + 1} · {i % 3 + 1}",
            tokens=190 + i * 13,
            reason=reason,
            question=f"Can I return a duvet I have unpacked, order {i}?",
        )
        for i, reason in enumerate(REASONS)
    )
    reasons = tuple(
        ReasonRow(reason=reason, misses=40 - 5 * i, tokens=9_000 - 1_100 * i) for i, reason in enumerate(REASONS)
    )
    text = "user <b>Help page</b>: Returns {} > How long do I have"
    prefixes = tuple(
        PrefixRow(text=text.format(i), tokens=700 + 90 * i, hits=31 - 4 * i, saved=9_000 // (i + 1)) for i in range(5)
    )
    used = sum(row.num_bytes for row in modules if row.tier == "device")
    kept = sum(row.num_bytes for row in modules if row.tier != "none")
    prompt, reused = 238_670, 186_495
    return Overview(
        documents=37, passages=412, conversations=61, answers=180, answered=141, unsure=17, refusals=14, smalltalk=8,
        computed_tokens=prompt - reused, session_tokens=int(reused * 0.12), prefix_tokens=int(reused * 0.09),
        module_tokens=reused - int(reused * 0.12) - int(reused * 0.09),
        ttft_ms_median=131.0, ttft_ms_p95=842.0,
        tier_bytes={"device": used, "disk": kept}, tier_capacity={"device": 1 << 30, "disk": 4 << 30},
        evictions={"device": 12, "disk": 0},
        disk_space=DiskSpace(free=38 << 30, floor=512 << 20, is_short=False),
        modules=modules, prefixes=prefixes, reasons=reasons,
        misses=misses,
        model="SmolLM2-135M-Instruct", device="cpu",
    )  # fmt: skip


def make_savings():
    return Savings(
        samples=43,
        first_token_ms=342.0,
        without_reuse_ms=4_120.0,
        saved_ms=Interval(value=3_778.0, low=3_210.0, high=4_346.0),
        times_sooner=Interval(value=11.8, low=9.6, high=13.2),
        tokens_reused=0.91,
        compared=41,
        same=Interval(value=37 / 41, low=0.775, high=0.961),
        likeness=0.72,
    )


def make_memory_plan():
    sizes = ((64, 0.41, 812.0), (160, 0.63, 498.0), (320, 0.82, 241.0), (480, 0.93, 97.0), (640, 0.965, 44.0))
    budgets = [
        MemoryBudget(num_bytes=mib << 20, found=found, tokens=left, is_current=False) for mib, found, left in sizes
    ]
    current = MemoryBudget(num_bytes=1 << 30, found=0.965, tokens=44.0, is_current=True)
    return MemoryPlan(answers=1000, budgets=[*budgets, current], enough=640 << 20)
