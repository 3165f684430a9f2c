"""Measure how messages that ask for a look-up are recognised: started, offered, or not recognised."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.desk.service import Service
from app.lookups.lookups import Asking
from evals.answers.helpdesk import Figure, share

OWNER = "eval"


def measure_lookups(service: Service, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the outcome of each message, and by kind and language the shares of started and of started or offered. For
    a wish, only the right look-up counts, which may be one of two that are offered. rows: {message, lookup: a name or
    None, kind, language}, or questions, which ask for no look-up.
    """
    service.prepare()
    known = {"lookup": None, "kind": "question", "language": "en"}
    judged = [{**known, **row, **_heard(service, row.get("message") or row["question"])} for row in rows]
    groups = sorted({(row["kind"], row["language"]) for row in judged})
    groups += [(kind, "all") for kind in sorted({row["kind"] for row in judged})] + [("no wish", "all")]
    summary = {f"{kind} {language}": _summary(judged, kind, language) for kind, language in groups}
    return {"rows": judged, "summary": summary}


def _heard(service: Service, message: str) -> dict[str, Any]:
    heard = service.lookups.hear(message, Asking(owner=OWNER, conversation_id=None))
    if heard is None:
        return {"heard": [], "state": None}
    turn = heard.turn
    offered = [one.name for one in service.lookups.all() if set(turn.choices) & set(one.title.values())]
    return {"heard": offered if turn.state == "offered" else [turn.name], "state": turn.state}


def _summary(judged: Sequence[Mapping[str, Any]], kind: str, language: str) -> dict[str, Figure]:
    of_kind = [row for row in judged if row["kind"] == kind or (kind == "no wish" and row["lookup"] is None)]
    some = [row for row in of_kind if language in ("all", row["language"])]
    is_right = [bool(row["heard"]) and row["lookup"] in (None, *row["heard"]) for row in some]
    starts = [right and row["state"] != "offered" for right, row in zip(is_right, some, strict=True)]
    return {"started": share(starts), "started or offered": share(is_right)}


def markdown(result: Mapping[str, Any]) -> list[str]:
    lines = ["| messages | n | started | started or offered |", "|---|---|---|---|"]
    for name, figures in result["summary"].items():
        cells = [f"{one['value']:.1%} ({one['low']:.1%} to {one['high']:.1%})" for one in figures.values()]
        lines.append(f"| {name} | {figures['started']['n']} | {' | '.join(cells)} |")
    return lines
