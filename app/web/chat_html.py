"""The chat as HTML: transcript, running answer, conversation list, empty state. Pure functions; everything is
escaped.

Not covered: the reuse strip (reuse_html) and behaviour (chat.js acts on the data-act attributes written
here).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta

from app.domain.answers import Answer, Citation, ConversationSummary, Turn
from app.domain.formatting import ago, count, short_path, utc
from app.web.icons import icon
from app.web.markup import answer_html, escape, plain_html
from app.web.reuse_html import reuse_html

SHOWN_TURNS = 40
_END = re.compile(r"((?:</(?:p|li|ul|ol)>)+)$")


def question_html(text: str) -> str:
    """What the reader wrote."""
    return (
        '<article class="wd-question"><h3 class="wd-sr">You asked</h3>'
        f'<div class="wd-bubble" dir="auto">{plain_html(text)}</div></article>'
    )


def _citation(number: int, citation: Citation) -> str:
    return (
        f'<details class="wd-citation"><summary><span class="wd-number">{number}</span>'
        f'<span class="wd-citation-name" dir="auto"><b>{escape(citation.title or citation.document)}</b>'
        f"<span>{escape(citation.passage)}</span></span>"
        '<span class="wd-score" title="Similarity of question and passage, at most 1">'
        f"{citation.score:.2f}<span> similarity</span></span>"
        f'{icon("chevron")}</summary><blockquote dir="auto">{plain_html(citation.quote)}</blockquote>'
        f'<p class="wd-path" dir="auto">{icon("file")}'
        f'<span title="{escape(citation.document)}">{escape(short_path(citation.document))}</span></p></details>'
    )


def _citations(answer: Answer) -> str:
    if answer.refused or not answer.citations:
        return ""
    entries = "".join(_citation(i, citation) for i, citation in enumerate(answer.citations, 1))
    noun = count(len(answer.citations), "source")
    return f'<section class="wd-citations" aria-label="Sources"><h4>{noun}</h4>{entries}</section>'


def _feedback(turn: Turn) -> str:
    pressed = {value: str(turn.feedback == value).lower() for value in ("up", "down")}
    identity = escape(turn.message_id)
    return (
        f'<div class="wd-actions" data-message="{identity}">'
        f'<button type="button" data-act="feedback" data-value="up" aria-pressed="{pressed["up"]}"'
        f' aria-label="Good answer" title="Good answer">{icon("up")}</button>'
        f'<button type="button" data-act="feedback" data-value="down" aria-pressed="{pressed["down"]}"'
        f' aria-label="Bad answer" title="Bad answer">{icon("down")}</button>'
        '<button type="button" data-act="copy" aria-label="Copy answer" title="Copy answer">'
        f"{icon('copy')}</button>"
        '<span class="wd-said" role="status"></span>'
        '<form class="wd-reason" data-act="reason" hidden><input type="text" name="reason" maxlength="500"'
        ' aria-label="What was wrong? (optional)" placeholder="What was wrong? (optional)" '
        'autocomplete="off">'
        '<button type="submit">Send</button></form></div>'
    )


def _notice(text: str | None) -> str:
    return f'<p class="wd-notice" dir="auto">{icon("info")}<span>{escape(text)}</span></p>' if text else ""


def turn_html(turn: Turn) -> str:
    """One stored message."""
    if turn.role == "user":
        return question_html(turn.text)
    answer = turn.answer
    refused = answer is not None and answer.refused
    head = '<p class="wd-refused">Not found in the documents</p>' if refused else ""
    body = f'<div class="wd-text">{answer_html(turn.text)}</div>'
    extras = f"{_notice(answer.notice)}{_citations(answer)}{_feedback(turn)}{reuse_html(answer)}" if answer else ""
    kind = " wd-is-refused" if refused else ""
    return f'<article class="wd-answer{kind}"><h3 class="wd-sr">Answer</h3>{head}{body}{extras}</article>'


def transcript_html(turns: Sequence[Turn], shown: int = SHOWN_TURNS) -> str:
    """The latest turns; how many older ones are not shown is said above them."""
    hidden = len(turns) - shown
    head = f'<p class="wd-older">{count(hidden, "older message")} not shown</p>' if hidden > 0 else ""
    return head + "".join(turn_html(turn) for turn in turns[max(0, hidden) :])


def live_html(question: str, text: str) -> str:
    """A running answer; before its first word, what is going on."""
    written = _END.sub(r'<span class="wd-caret"></span>\1', answer_html(text))
    body = f'<div class="wd-text">{written}</div>'
    if not text:
        dots = '<span class="wd-dots"><i></i><i></i><i></i></span>'
        body = f'<p class="wd-waiting">{dots}Looking in the documents</p>'
    return f'{question_html(question)}<article class="wd-answer" aria-busy="true">{body}</article>'


def error_html(question: str, message: str) -> str:
    """A question that got no answer, and the one line that says why."""
    line = escape(" ".join(message.split()))
    head = question_html(question) if question else ""
    return f'{head}<div class="wd-error" role="alert" dir="auto">{icon("alert")}<span>{line}</span></div>'


def empty_html(examples: Sequence[str], ready: bool) -> str:
    """What a new conversation shows: what the desk does, and questions to start with."""
    buttons = "".join(
        f'<li><button type="button" data-act="example" data-text="{escape(text)}"><span dir="auto">'
        f"{escape(text)}</span>"
        f"{icon('arrow')}</button></li>"
        for text in examples
    )
    waiting = (
        "" if ready else '<p class="wd-notice">' + icon("info") + "<span>The desk is still starting up.</span></p>"
    )
    return (
        '<div class="wd-empty"><h2>How can we help?</h2>'
        "<p>Ask in your own words. Answers come from this company’s documents, and every answer shows the "
        "passages it"
        " rests on.</p>"
        f'{waiting}<ul class="wd-examples" aria-label="Example questions">{buttons}</ul></div>'
    )


def _day(moment: datetime, now: datetime) -> str:
    days = (utc(now).date() - utc(moment).date()).days
    if days <= 0:
        return "Today"
    if days == 1:
        return "Yesterday"
    return "This week" if timedelta(days=days) < timedelta(days=7) else "Earlier"


def conversations_html(summaries: Sequence[ConversationSummary], open_id: str, now: datetime) -> str:
    """The list beside the chat, grouped by day."""
    if not summaries:
        return '<p class="wd-quiet wd-none">Your conversations will appear here.</p>'
    parts: list[str] = []
    group = ""
    for summary in summaries:
        day = _day(summary.updated, now)
        if day != group:
            parts.append(f"{'</ul>' if group else ''}<h3>{day}</h3><ul>")
            group = day
        identity, title = escape(summary.id), escape(summary.title or "Untitled")
        when = f'<span class="wd-when">{ago(summary.updated, now)}</span>' if day == "Today" else ""
        current = ' aria-current="true"' if summary.id == open_id else ""
        parts.append(
            f'<li><button type="button" class="wd-open" data-act="open" data-id="{identity}"{current}>'
            f'<span class="wd-title" dir="auto">{title}</span>{when}</button>'
            f'<button type="button" class="wd-delete" data-act="delete" data-id="{identity}"'
            f' aria-label="Delete conversation: {title}" title="Delete">{icon("trash")}</button></li>'
        )
    return "".join(parts) + "</ul>"
