"""The output of commands for people, and bars of progress on stderr. Lists do not import rich, to be quicker."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.domain.answers import Answer, Overview, reuse_line
from app.domain.documents import PAGE_REASONS, READ, ReasonCount, StoredDocument, SyncedFolder
from app.domain.progress import STAGES
from app.domain.progress import Progress as Report
from app.domain.setting_types import ModelServer
from app.domain.statistics import Savings
from app.domain.words import size

if TYPE_CHECKING:  # printing a list needs no libraries of its subject
    from app.desk.doctor import Check
    from app.storage.people import ApiKey


def print_ingest(report: dict[str, Any]) -> None:
    for failed in report["failed"]:
        print(f"skipped {failed['path']}: {failed['reason']}")
    for warning in report["warnings"]:
        print(f"note {warning['path']}: {warning['reason']}")
    for unread in report["modules"]["failed"]:
        print(f"not encoded: {unread['passage']}: {unread['reason']}")
    changes, modules, timings = report["changes"], report["modules"], report["timings_s"]
    print(
        f"{report['documents']} documents ({report['unchanged']} unchanged, {report['replaced']} replaced), "
        f"{len(report['failed'])} skipped, {report['removed']} removed"
    )
    rate = "" if report["passages_per_s"] is None else f", {report['passages_per_s']:.0f} per second"
    new, kept, dropped = changes["new"], changes["kept"], changes["dropped"]
    print(f"{report['passages']} passages: {new} new{rate}, {kept} kept, {dropped} dropped")
    print(
        f"{modules['encoded']} passages encoded, {modules['kept']} were already encoded, {modules['dropped']} dropped"
        + (f", {modules['waiting']} wait for a question: memory is full" if modules["waiting"] else "")
    )
    print(
        f"{report['seconds']:.1f} s: reading {timings['reading']:.1f}, indexing {timings['embedding']:.1f}, "
        f"encoding {timings['encoding']:.1f}"
    )


def print_backup(backup: dict[str, Any]) -> None:
    modules = "with" if backup["with_modules"] else "without"
    print(f"{backup['backup']}: {backup['files']} files, {size(backup['bytes'])}, {modules} encoded passages; checked")
    for link in backup["left_out"]:
        print(f"skipped {link}: it is a link, back up its target separately")
    if backup["note"]:
        print(f"note: {backup['note']}")


def print_restored(restored: dict[str, Any]) -> None:
    print(f"{restored['restored']}: {restored['files']} files of {restored['created']}")
    if restored["aside"] is not None:
        print(f"the replaced files are in {restored['aside']}: delete that folder when everything works")
    for kind, said, cure in (("accounts", "accounts", "accounts remove"), ("keys", "API keys", "keys revoke")):
        if names := ", ".join(restored[kind]):
            print(f"{said} as in the backup: {names} (remove one: `warmdesk {cure} NAME`)")
    if restored["note"]:
        print(f"note: {restored['note']}")
    if restored["database"] is None:
        print("note: the database is on a server and not in the backup: restore it with pg_restore")
    if not restored["with_modules"]:
        print("note: the passages are encoded again when the server runs")


def print_old_copies(copies: Sequence[str]) -> None:
    if copies:
        print(f"note: the files replaced by a restore are in {', '.join(copies)}: delete them when everything works")


def print_forgotten(forgotten: dict[str, Any], server: ModelServer | None) -> None:
    removed = forgotten["removed"]
    print(f"Forgot {forgotten['document']}")
    print(
        f"removed {removed['passages']} passages, {removed['vectors']} from the vector index, {removed['keywords']} "
        f"texts from the keyword index, {removed['quotes']} quotations, {removed['modules']} encoded passages; "
        "checked: nothing is left"
    )
    if server is not None:
        print(f"note: the model's server {server.url} may still have its text in its cache")


def print_answer(answer: Answer) -> None:
    print("\n")
    for number, citation in enumerate(answer.citations, start=1):
        above = "see also " if citation.see_also else ""
        print(f"{above}[{number}] {citation.title}: {citation.passage}\n    {citation.document}")
    if answer.usage.prompt_tokens or answer.is_uncounted:
        print(reuse_line(answer))
    if answer.notice:
        print(answer.notice)
    print(f"conversation {answer.conversation_id}")


def print_batch(batch: dict[str, Any]) -> None:
    for entry in batch["answers"]:
        said = f"not answered: {entry['error']['message']}" if "error" in entry else entry["answer"]
        print(f"{entry['id']}  {entry['question']}\n    {said}")
        for citation in entry.get("citations", ())[:1]:
            print(f"    from {citation['document']}")
    tokens, failed = batch["tokens"], batch["failed"]
    if batch["skipped"]:
        print(f"{batch['skipped']} skipped: already answered")
    if failed:
        print(f"{failed} not answered")
    print(f"{len(batch['answers']) - failed} answers in {len(batch['groups'])} groups, {batch['seconds']:.1f} s")
    if tokens["computed"] is None:
        print("the model's server does not report how many prompt tokens were computed")
    else:
        print(f"{tokens['computed']:,} of {tokens['prompt']:,} prompt tokens were computed")
    if tokens["computed_cold_ungrouped"] is None or tokens["computed_cold_grouped"] is None:
        print("the tokens of a cold start cannot be counted")
    else:
        print(
            f"from a cold start: {tokens['computed_cold_ungrouped']:,} in the order of the file, "
            f"{tokens['computed_cold_grouped']:,} grouped"
        )


def print_documents(documents: Iterable[StoredDocument]) -> None:
    for document in documents:
        print(f"{document.num_passages:4d}  {document.title}  {document.path}")


def print_keys(keys: "Iterable[ApiKey]") -> None:
    for key in keys:
        used = "never used" if key.last_used is None else f"last used {key.last_used:%Y-%m-%d %H:%M} UTC"
        state = used if key.revoked is None else f"revoked {key.revoked:%Y-%m-%d %H:%M} UTC"
        print(f"{key.shown}...  {key.name}  {','.join(sorted(key.scopes))}  {key.per_minute} per minute  {state}")


def print_synced(folders: Iterable[SyncedFolder]) -> None:
    for one in folders:
        where = f" into {one.collection}" if one.collection else ""
        print(f"{one.folder}{where}  every {one.every_minutes} minutes, next {one.next_run:%Y-%m-%d %H:%M} UTC")
        result = one.last_result
        if result is None or one.last_run is None:
            print("    not read yet")
            continue
        counts = (
            f"{result.added} added, {result.changed} changed, {result.removed} removed, {result.unchanged} unchanged"
        )
        said = counts if result.is_ok else f"FAILED: {result.problem}"
        print(f"    {one.last_run:%Y-%m-%d %H:%M} UTC: {said}")
        for file in result.files:
            print(f"    skipped or incomplete: {file.path}: {file.reason}")
        if result.num_files > len(result.files):
            print(f"    and {result.num_files - len(result.files)} more")
        print_reasons(result.reasons, "    ")


def print_reasons(reasons: Iterable[ReasonCount], indent: str = "") -> None:
    for one in reasons:
        print(f"{indent}{one.number:5d}  {PAGE_REASONS.get(one.reason, one.reason)}")
        if one.reason != READ:
            for example in one.examples:
                print(f"{indent}       {example}")


def print_overview(overview: Overview) -> None:
    reused = overview.session_tokens + overview.prefix_tokens + overview.module_tokens
    total = reused + overview.computed_tokens
    share = f"{100 * reused / total:.1f} %" if total else "-"
    print(f"{overview.documents} documents, {overview.passages} passages, {len(overview.modules)} encoded")
    print(
        f"{overview.answers} answers ({overview.unsure} unsure, {overview.refusals} found nothing, "
        f"{overview.smalltalk} small talk) in {overview.conversations} conversations"
    )
    print(f"{reused:,} of {total:,} prompt tokens reused ({share})")
    if overview.ttft_ms_median is not None:
        print(f"first token: median {overview.ttft_ms_median:.0f} ms")
    for tier, used in overview.tier_bytes.items():
        print(f"{tier}: {size(used)} of {size(overview.tier_capacity[tier])}")
    if overview.disk_space is not None and overview.disk_space.is_short:
        free, floor = size(overview.disk_space.free), size(overview.disk_space.floor)
        print(f"the disk is nearly full: {free} are free, encoded passages are deleted until {floor} are free")
    for module in overview.modules[:5]:
        if module.hits:
            print(f"saved {module.saved:,} tokens: {module.document} {module.passage} ({module.hits} uses)")
    for prefix in overview.prefixes[:5]:
        print(f"saved {prefix.saved:,} tokens: prefix ... {prefix.text!r} ({prefix.hits} uses)")
    for reason in overview.reasons:
        print(f"missed {reason.misses} modules, {reason.tokens:,} tokens: {reason.reason}")
    for miss in overview.misses[:10]:
        print(f"computed {miss.tokens} tokens of {miss.passage}: {miss.reason}")


def print_checks(checks: "Iterable[Check]") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    for check in checks:
        table.add_row("ok" if check.ok else "NOT OK", check.name, check.detail)
    Console().print(table)


def print_training(result: dict[str, Any], folder: Path) -> None:
    print(f"{result['steps']} steps in {result['minutes']:.0f} minutes, {result['questions']:,} questions")
    if result["left_out"]:
        print(f"{result['left_out']} of the documents were skipped: too long, or without a question to train on")
    before = "" if result["held_out_before"] is None else f", before {result['held_out_before']:.3f}"
    print(f"held-out loss {result['held_out']:.3f}{before}")
    if not result["held_out_documents"]:
        print("too few documents for a held-out set: the loss is of trained documents")
    if result["held_out_moved"] is not None:
        print(f"full attention differs from before by {result['held_out_moved']:.3f} nats a token")
    print(f"use it: WARMDESK_ADAPTER={folder} warmdesk serve")


def print_savings(savings: Savings) -> None:
    if not savings.samples:
        return
    first, without = savings.first_token_ms / 1e3, savings.without_reuse_ms / 1e3
    print(f"measured on {savings.samples} answers: first token after {first:.2f} s, without reuse {without:.2f} s")
    if (saved := savings.saved_ms) is not None:
        print(f"{saved.value / 1e3:.2f} s sooner (95 %: {saved.low / 1e3:.2f} to {saved.high / 1e3:.2f})")
    if (same := savings.same) is not None:
        low, high = 100 * same.low, 100 * same.high
        print(f"{100 * same.value:.0f} % identical answers (95 %: {low:.0f} to {high:.0f})")


@contextmanager
def progress_bar() -> Iterator[Report]:
    """Show a bar per stage on stderr, if it is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description:18}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(file=sys.stderr)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks: dict[str, Any] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(STAGES.get(stage, stage), total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield report
