"""A dashboard's worth of invented numbers for FakeDesk: 180 answers over five days, 75 modules, every miss
reason.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta

from app.domain.answers import AnswerPoint, MissRow, ModuleRow, Overview, PrefixRow, ReasonRow

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


def make_overview(now: datetime) -> Overview:
    points = []
    for i in range(180):
        prompt = 980 + (i * 137) % 700
        reused = int(prompt * min(0.95, 0.35 + i / 120)) if i % 17 else 104
        points.append(
            AnswerPoint(
                created=now - timedelta(hours=(180 - i) * 0.6),
                ttft_ms=90 + 900 * (1 - reused / prompt) + 25 * math.sin(i),
                prompt_tokens=prompt,
                reused_tokens=reused,
                policy="balanced",
            )
        )
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
    prefixes = tuple(
        PrefixRow(
            text=f"user <b>Help page</b>: Returns {i} > How long do I have",
            tokens=700 + 90 * i,
            hits=31 - 4 * i,
            saved=9_000 // (i + 1),
        )
        for i in range(5)
    )
    used = sum(row.num_bytes for row in modules if row.tier == "device")
    kept = sum(row.num_bytes for row in modules if row.tier != "none")
    prompt, reused = sum(p.prompt_tokens for p in points), sum(p.reused_tokens for p in points)
    return Overview(
        documents=37, passages=412, conversations=61, answers=180, answered=141, unsure=17, refusals=14, smalltalk=8,
        computed_tokens=prompt - reused, session_tokens=int(reused * 0.12), prefix_tokens=int(reused * 0.09),
        module_tokens=reused - int(reused * 0.12) - int(reused * 0.09),
        ttft_ms_median=131.0, ttft_ms_p95=842.0,
        tier_bytes={"device": used, "disk": kept}, tier_capacity={"device": 1 << 30, "disk": 4 << 30},
        evictions={"device": 12, "disk": 0}, modules=modules, prefixes=prefixes, reasons=reasons,
        misses=misses, points=tuple(points),
        model="SmolLM2-135M-Instruct", device="cpu",
    )  # fmt: skip
