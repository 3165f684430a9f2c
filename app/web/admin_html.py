"""The dashboard's tiles, memory meters and miss list as HTML. Pure functions from an Overview; everything is
escaped.
"""

from __future__ import annotations

from datetime import datetime

from app.domain.answers import MissRow, Overview
from app.domain.formatting import ago, count, milliseconds, percent, short_path, size
from app.domain.reuse_words import SOURCES, reason_words
from app.web.icons import icon
from app.web.markup import escape

SHOWN_MISSES = 30
_BY_SOURCE = (
    ("module", "Passages"),
    ("session", "Same conversation"),
    ("prefix", "Shared beginning"),
    ("computed", "Read now"),
)


def _tile(name: str, value: str, detail: str, kind: str = "") -> str:
    return f'<div class="wd-tile {kind}"><dt>{name}</dt><dd><b>{value}</b><span>{detail}</span></dd></div>'


def _tokens(overview: Overview) -> str:
    parts = {
        "module": overview.module_tokens,
        "session": overview.session_tokens,
        "prefix": overview.prefix_tokens,
        "computed": overview.computed_tokens,
    }
    whole = sum(parts.values())
    reused = whole - parts["computed"]
    bar = "".join(
        f'<span class="wd-part-{key}" style="width:{100 * parts[key] / (whole or 1):.2f}%"></span>'
        for key, _ in _BY_SOURCE
    )
    legend = "".join(
        f'<li><i class="wd-part-{key}"></i>{words}<b>{count(parts[key])}</b><em>{percent(parts[key], whole)}</em></li>'
        for key, words in _BY_SOURCE
    )
    return (
        '<div class="wd-tile wd-tile-wide"><dt>Prompt tokens reused</dt>'
        f"<dd><b>{percent(reused, whole)}</b><span>{count(reused)} of {count(whole)} tokens in all "
        "prompts</span></dd>"
        f'<dd class="wd-bar" aria-hidden="true">{bar}</dd><dd><ul class="wd-legend">{legend}</ul></dd></div>'
    )


def tiles_html(overview: Overview) -> str:
    """The headline numbers."""
    answers = count(overview.conversations, "conversation")
    return (
        f'<dl class="wd-tiles">{_tokens(overview)}'
        + _tile("First token, median", milliseconds(overview.ttft_ms_median), "from question to first word")
        + _tile("First token, slowest 5%", milliseconds(overview.ttft_ms_p95), "95th percentile")
        + _tile("Answers", count(overview.answers), f"in {answers}")
        + _tile(
            "Not answered",
            count(overview.refusals),
            f"{percent(overview.refusals, overview.answers)} of all answers",
        )
        + _tile(
            "Supported by passages",
            "–" if overview.grounding is None else f"{100 * overview.grounding:.0f}%",
            f"of what the model said; {count(overview.quoted, 'answer')} with quotations",
        )
        + "</dl>"
    )


def header_html(overview: Overview) -> str:
    """Title, what is served, and the way out."""
    facts = [fact for fact in (overview.model, overview.device.upper() if overview.device else "") if fact]
    facts += [count(overview.documents, "document"), count(overview.passages, "passage")]
    shown = "".join(f"<li>{escape(fact)}</li>" for fact in facts)
    return (
        '<header class="wd-admin-head"><div class="wd-brand"><span class="wd-logo" aria-hidden="true"></span>'
        f'<h1>Warmdesk <span>admin</span></h1></div><ul class="wd-facts">{shown}</ul>'
        '<nav><a href="/admin/documents">Documents</a><a href="/">Open chat</a>'
        '<form method="post" action="/admin/logout"><button type="submit">Sign out</button></form></nav></header>'
    )


def _meter(tier: str, overview: Overview) -> str:
    used, capacity = overview.tier_bytes.get(tier, 0), overview.tier_capacity.get(tier, 0)
    evicted = overview.evictions.get(tier, 0)
    share = min(100.0, 100 * used / capacity) if capacity else 0.0
    of = f"{size(used)} of {size(capacity)}" if capacity else size(used)
    name = escape(SOURCES.get(tier, tier))
    full = " wd-full" if share >= 90 else ""
    return (
        f"<li><div><b>{name}</b><span>{of}</span><em>{percent(used, capacity) if capacity else ''}</em></div>"
        f'<div class="wd-meter{full}" role="meter" aria-label="{name}" aria-valuemin="0" aria-valuemax="100"'
        f' aria-valuenow="{share:.0f}"><span style="width:{share:.2f}%"></span></div>'
        f"<small>{count(evicted, 'passage')} dropped to make room</small></li>"
    )


def memory_html(overview: Overview) -> str:
    """Memory of kept passages, tier by tier."""
    tiers = sorted({*overview.tier_bytes, *overview.tier_capacity}, key=lambda tier: (tier == "disk", tier))
    meters = "".join(_meter(tier, overview) for tier in tiers)
    return f'<section class="wd-panel"><h2>Memory</h2><ul class="wd-meters">{meters}</ul></section>'


def _miss(row: MissRow, now: datetime) -> str:
    return (
        f'<tr><td class="wd-when">{ago(row.created, now)}</td>'
        f'<td dir="auto"><b>{escape(short_path(row.document))}</b><span>{escape(row.passage)}</span></td>'
        f'<td class="wd-num">{count(row.tokens)}</td>'
        f'<td><b class="wd-reason-name">{escape(row.reason)}</b><span>'
        f"{escape(reason_words(row.reason))}</span></td>"
        f'<td dir="auto">{escape(row.question)}</td></tr>'
    )


def prefixes_html(overview: Overview) -> str:
    """The beginnings that later prompts shared, what saved most first."""
    head = "<h2>Beginnings that prompts shared</h2>"
    if not overview.prefixes:
        quiet = '<p class="wd-quiet">None since the start: no prompt went on from another one yet.</p>'
        return f'<section class="wd-panel">{head}{quiet}</section>'
    rows = "".join(
        f'<tr><td dir="auto">{escape(row.text)}</td><td class="wd-num">{count(row.tokens)}</td>'
        f'<td class="wd-num">{count(row.hits)}</td><td class="wd-num">{count(row.saved)}</td></tr>'
        for row in overview.prefixes
    )
    return (
        f'<section class="wd-panel">{head}<p class="wd-quiet">Since the start; each with the words it goes on with, '
        'its length from the beginning of the prompt, and what it saved.</p><div class="wd-scroll-x" tabindex="0" '
        'role="region" aria-label="Shared beginnings"><table class="wd-table"><thead><tr><th scope="col">Text</th>'
        '<th scope="col" class="wd-num">Tokens</th><th scope="col" class="wd-num">Uses</th>'
        f'<th scope="col" class="wd-num">Tokens saved</th></tr></thead><tbody>{rows}</tbody></table></div></section>'
    )


def _reasons(overview: Overview) -> str:
    """Why, over all answers: one line a reason."""
    rows = "".join(
        f'<li><b class="wd-reason-name">{escape(row.reason)}</b><span>{escape(reason_words(row.reason))}</span>'
        f"<em>{count(row.misses, 'passage')}, {count(row.tokens, 'token')}</em></li>"
        for row in overview.reasons
    )
    return f'<ul class="wd-reasons">{rows}</ul>' if rows else ""


def misses_html(overview: Overview, now: datetime) -> str:
    """Passages that had to be read while a customer waited, and why."""
    head = "<h2>Passages read while someone waited</h2>"
    if not overview.misses:
        quiet = '<p class="wd-quiet">None so far: every passage was ready.</p>'
        return f'<section class="wd-panel">{head}{quiet}</section>'
    rows = "".join(_miss(row, now) for row in overview.misses[:SHOWN_MISSES])
    return (
        f'<section class="wd-panel">{head}{_reasons(overview)}'
        f'<p class="wd-quiet">The latest {SHOWN_MISSES} at most, each with its cause.</p>'
        '<div class="wd-scroll-x" tabindex="0" role="region" aria-label="Missed passages"><table '
        'class="wd-table"><thead><tr>'
        '<th scope="col">When</th><th scope="col">Passage</th><th scope="col" class="wd-num">Tokens</th>'
        f'<th scope="col">Why</th><th scope="col">Question</th></tr></thead><tbody>{rows}</tbody></table>'
        "</div></section>"
    )


def answers_html(overview: Overview, now: datetime) -> str:
    """How answers are made, what is known of the model, and the answers that were corrected."""
    made = f"Policy {overview.policy}, wording {overview.answer_mode}." if overview.policy else ""
    known = (
        f'<p class="wd-quiet">Calibrated: {escape(overview.calibration)}</p>'
        if overview.calibration
        else '<p class="wd-warning">Nothing is known of this model with this adapter and system text: run '
        "<code>warmdesk calibrate</code>.</p>"
    )
    rows = "".join(
        f'<tr><td class="wd-when">{ago(row.created, now)}</td><td dir="auto">{escape(row.question)}</td>'
        f'<td dir="auto">{escape(row.shown)}</td><td class="wd-num">{100 * row.grounding:.0f}%</td>'
        f"<td>{'quoted' if row.quoted else 'left out'}</td></tr>"
        for row in overview.weak
    )
    table = (
        '<div class="wd-scroll-x" tabindex="0" role="region" aria-label="Corrected answers"><table class="wd-table">'
        '<thead><tr><th scope="col">When</th><th scope="col">Question</th><th scope="col">Shown instead</th>'
        '<th scope="col" class="wd-num">Support</th><th scope="col">How</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
        if rows
        else '<p class="wd-quiet">No answer had to be corrected so far.</p>'
    )
    return (
        f'<section class="wd-panel"><h2>Answers and what they rest on</h2><p>{escape(made)}</p>{known}{table}</section>'
    )


def welcome_html(overview: Overview) -> str:
    """A new desk: the next step instead of empty charts."""
    if overview.answers:
        return ""
    if not overview.documents:
        step = "Add your documents first: <code>warmdesk ingest FOLDER</code>. Then ask a question in the chat."
    else:
        ready = count(overview.documents, "document")
        step = f"{ready} ready. Ask a question in the chat, and its numbers appear here."
    return (
        f'<section class="wd-welcome">{icon("bolt")}<h2>Nothing to measure yet</h2><p>{step}</p>'
        '<a href="/">Open chat</a></section>'
    )
