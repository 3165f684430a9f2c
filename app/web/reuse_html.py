"""The reuse strip under an answer: how many prompt tokens were reused, where each module came from, why one
was missed.

Pure functions from values to escaped HTML. The words are in `app.domain.reuse_words`.
"""

from __future__ import annotations

from app.domain.answers import Answer, AnswerTimings, UsedModule
from app.domain.formatting import count, milliseconds, short_path
from app.domain.reuse_words import APPROXIMATE, EXACT, SOURCES, SYSTEM_TEXT, reason_words, reuse_line
from app.web.icons import icon
from app.web.markup import escape

_STAGES = (
    ("retrieve", "Find passages"),
    ("load", "Load what was read"),
    ("prefill", "Read the rest"),
)


def _stages(timings: AnswerTimings) -> str:
    values = [(name, words, max(0.0, getattr(timings, name))) for name, words in _STAGES]
    spent = sum(value for _, _, value in values)
    values.append(("other", "Other until the first token", max(0.0, timings.ttft - spent)))
    values.append(("write", "Write the answer", max(0.0, timings.total - timings.ttft)))
    whole = sum(value for _, _, value in values) or 1.0
    bar = "".join(
        f'<span class="wd-stage-{name}" style="width:{100 * value / whole:.2f}%"></span>' for name, _, value in values
    )
    rows = "".join(
        f'<div><dt><i class="wd-stage-{name}"></i>{words}</dt><dd>{milliseconds(value)}</dd></div>'
        for name, words, value in values
    )
    total = f"<div class='wd-total'><dt>Total</dt><dd>{milliseconds(timings.total)}</dd></div>"
    return f'<div class="wd-bar" aria-hidden="true">{bar}</div><dl class="wd-stages">{rows}{total}</dl>'


def _module_row(module: UsedModule) -> str:
    why = ""
    if module.source == "computed":
        why = f'<span class="wd-why">{escape(reason_words(module.miss_reason))}</span>'
    return (
        f'<tr><td class="wd-doc" dir="auto" title="{escape(module.id)}">'
        f"{escape(short_path(module.document) or SYSTEM_TEXT)}</td>"
        f'<td class="wd-num">{count(module.tokens)}</td>'
        f'<td><span class="wd-source wd-source-{escape(module.source)}">'
        f"{escape(SOURCES.get(module.source, module.source))}</span>{why}</td></tr>"
    )


def _modules(modules: tuple[UsedModule, ...]) -> str:
    if not modules:
        return '<p class="wd-quiet">No document passages were in this prompt.</p>'
    rows = "".join(_module_row(module) for module in modules)
    return (
        '<div class="wd-scroll-x"><table class="wd-table"><caption class="wd-sr">Document passages in the '
        "prompt</caption>"
        '<thead><tr><th scope="col">Document</th><th scope="col" class="wd-num">Tokens</th>'
        f'<th scope="col">Came from</th></tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _accounts(answer: Answer) -> str:
    usage = answer.usage
    parts = (
        ("From document passages", usage.module),
        ("From this conversation", usage.session),
        ("From a shared beginning", usage.prefix),
        ("Read now", usage.computed),
    )
    items = "".join(
        f"<div><dt>{words}</dt><dd>{count(tokens)}</dd></div>"
        for words, tokens in parts
        if tokens or words == "Read now"
    )
    return f'<dl class="wd-accounts">{items}</dl>'


def _support(answer: Answer) -> str:
    """How well the passages support the answer."""
    return "" if answer.grounding is None else f" · Supported by passages: {100 * answer.grounding:.0f}%"


def reuse_html(answer: Answer) -> str:
    """The line as the summary of a collapsible block with accounts, modules and stage timings."""
    label, words = ("Exact", EXACT) if answer.exact else ("Approximate", APPROXIMATE)
    kind = "exact" if answer.exact else "approximate"
    return (
        f'<details class="wd-reuse"><summary>{icon("chevron")}<span class="wd-reuse-line">'
        f"{escape(reuse_line(answer))}</span>"
        f'<span class="wd-badge wd-badge-{kind}" title="{escape(words)}">{label}</span></summary>'
        f'<div class="wd-reuse-body"><p class="wd-quiet">{escape(words)}</p>'
        f"<h4>Prompt tokens</h4>{_accounts(answer)}<h4>Passages</h4>{_modules(answer.modules)}"
        f"<h4>Time</h4>{_stages(answer.timings)}"
        f'<p class="wd-quiet">Policy: {escape(answer.policy)}{_support(answer)}</p></div></details>'
    )
