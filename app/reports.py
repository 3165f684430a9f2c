"""What commands print: JSON documents with the contract's keys, and the same for people.

Not covered: what the numbers mean (`app.answers`), how they come about.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from app.answers import Answer, Overview
from app.batch import BatchFailure, BatchQuestion, BatchResult
from app.doctor import Check
from app.formatting import size
from app.ingestion import IngestReport
from app.progress import Progress as Report
from app.reuse_html import reuse_line
from app.stored import StoredDocument
from app.usage_json import usage_json

if TYPE_CHECKING:  # training needs libraries that answering does not
    from cache.adapter_training import Progress as Training

STAGES = {
    "reading": "Reading documents",
    "embedding": "Indexing passages",
    "encoding": "Encoding passages",
    "answering": "Answering",
}


@contextmanager
def progress_bar() -> Iterator[Report]:
    """A bar per stage on stderr; nothing where stderr is no terminal."""
    console = Console(file=sys.stderr)
    columns = (TextColumn("{task.description:18}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks: dict[str, Any] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(STAGES.get(stage, stage), total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield report


@contextmanager
def training_bar() -> Iterator[Callable[[Training], None]]:
    """A bar on stderr; a line now and then where stderr is no terminal."""
    console = Console(file=sys.stderr)
    columns = (TextColumn("{task.description:54}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        task = bars.add_task("Training", total=1.0)

        def report(training: Training) -> None:
            loss = f"loss {training.loss:.3f}, held out {training.held_out:.3f}"
            shown = f"step {training.step}, {loss}, {training.tokens_per_s:.0f} tokens/s"
            bars.update(task, completed=training.done, description=shown)
            if not console.is_terminal and training.step % 10 == 0:
                print(f"{training.done:.0%} {shown}", file=sys.stderr, flush=True)

        yield report


def ingest_json(report: IngestReport) -> dict[str, Any]:
    """The contract's document of `ingest`."""
    return {
        "documents": report.documents,
        "passages": report.passages,
        "unchanged": report.unchanged,
        "replaced": report.replaced,
        "removed": report.removed,
        "failed": [asdict(failed) for failed in report.failed],
        "warnings": [asdict(warning) for warning in report.warnings],
        "changes": {"new": report.new, "kept": report.kept, "dropped": report.dropped},
        "modules": {
            "encoded": report.encoded,
            "kept": report.kept_modules,
            "dropped": report.dropped_modules,
            "waiting": report.waiting,
        },
        "passages_per_s": report.passages_per_second,
        "timings_s": {
            "reading": round(report.reading_seconds, 3),
            "embedding": round(report.embedding_seconds, 3),
            "encoding": round(report.encoding_seconds, 3),
        },
        "seconds": report.seconds,
    }


def print_ingest(report: dict[str, Any]) -> None:
    """A line per file that is not in or not in whole, then the sums, of the document of `ingest`."""
    for failed in report["failed"]:
        print(f"skipped {failed['path']}: {failed['reason']}")
    for warning in report["warnings"]:
        print(f"note {warning['path']}: {warning['reason']}")
    changes, modules, timings = report["changes"], report["modules"], report["timings_s"]
    print(
        f"{report['documents']} documents ({report['unchanged']} unchanged, {report['replaced']} replaced), "
        f"{len(report['failed'])} skipped, {report['removed']} removed"
    )
    rate = "" if report["passages_per_s"] is None else f", {report['passages_per_s']:.0f} a second"
    new, kept, dropped = changes["new"], changes["kept"], changes["dropped"]
    print(f"{report['passages']} passages: {new} new{rate}, {kept} kept, {dropped} dropped")
    print(
        f"{modules['encoded']} passages read by the model, {modules['kept']} were already, {modules['dropped']} dropped"
        + (f", {modules['waiting']} wait for a question: there is no room for more" if modules["waiting"] else "")
    )
    print(
        f"{report['seconds']:.1f} s: reading {timings['reading']:.1f}, indexing {timings['embedding']:.1f}, "
        f"encoding {timings['encoding']:.1f}"
    )


def print_forgotten(forgotten: dict[str, Any]) -> None:
    """What was removed, and that nothing is left."""
    removed = forgotten["removed"]
    print(f"Forgot {forgotten['document']}")
    print(
        f"removed {removed['passages']} passages, {removed['vectors']} of them from the vectors, {removed['keywords']} "
        f"texts from the keywords, {removed['quotes']} quotations, {removed['modules']} encoded passages; looked for "
        "them again: nothing is left"
    )


def answer_json(answer: Answer) -> dict[str, Any]:
    """The contract's document of `ask`."""
    return {
        "answer": answer.answer,
        "refused": answer.refused,
        "conversation_id": answer.conversation_id,
        "message_id": answer.message_id,
        "citations": [asdict(citation) for citation in answer.citations],
        "usage": usage_json(answer.usage),
        "modules": [asdict(module) for module in answer.modules],
        "timings_ms": asdict(answer.timings),
        "policy": answer.policy,
        "exact": answer.exact,
        "grounding": answer.grounding,
        "quoted": answer.quoted,
        "notice": answer.notice,
    }


def print_answer(answer: Answer) -> None:
    """What stands below an answer in a terminal."""
    print("\n")
    for number, citation in enumerate(answer.citations, start=1):
        print(f"[{number}] {citation.title}: {citation.passage}\n    {citation.document}")
    if not answer.refused:
        print(reuse_line(answer))
    if answer.notice:
        print(answer.notice)
    print(f"conversation {answer.conversation_id}")


def batch_entry_json(question: BatchQuestion, outcome: Answer | BatchFailure) -> dict[str, Any]:
    """A question of `batch` with its answer, which belongs to no conversation, or with the error it ended in."""
    entry: dict[str, Any] = {"id": question.id, "question": question.question}
    if isinstance(outcome, BatchFailure):
        return {**entry, "error": asdict(outcome)}
    answer = answer_json(outcome)
    del answer["conversation_id"], answer["message_id"]
    return {**entry, **answer}


def batch_json(result: BatchResult, skipped: int = 0) -> dict[str, Any]:
    """The document of `batch`. skipped: questions that an earlier run had answered."""
    return {
        "answers": [batch_entry_json(*entry) for entry in zip(result.questions, result.outcomes, strict=True)],
        "failed": result.failed,
        "skipped": skipped,
        "groups": [list(members) for members in result.groups],
        "tokens": {
            "prompt": sum(answer.usage.prompt_tokens for answer in result.answers),
            "computed": sum(answer.usage.computed for answer in result.answers),
            "computed_cold_ungrouped": result.cold_ungrouped,
            "computed_cold_grouped": result.cold_grouped,
        },
        "seconds": result.seconds,
    }


def print_batch(result: BatchResult, skipped: int = 0) -> None:
    """The answers and failures, then what was computed. skipped: questions that an earlier run had answered."""
    for question, outcome in zip(result.questions, result.outcomes, strict=True):
        if isinstance(outcome, BatchFailure):
            print(f"{question.id}  {question.question}\n    not answered: {outcome.message}")
            continue
        print(f"{question.id}  {question.question}\n    {outcome.answer}")
        if outcome.citations:
            print(f"    from {outcome.citations[0].document}")
    tokens = batch_json(result)["tokens"]
    if skipped:
        print(f"{skipped} skipped: their answers were there already")
    if result.failed:
        print(f"{result.failed} not answered")
    print(f"{len(result.answers)} answers in {len(result.groups)} groups, {result.seconds:.1f} s")
    print(f"{tokens['computed']:,} of {tokens['prompt']:,} prompt tokens were computed")
    if result.cold_ungrouped is None or result.cold_grouped is None:
        print("what it would be from a cold start cannot be counted")
    else:
        print(
            f"from a cold start it would be {result.cold_ungrouped:,} in the order of the file, "
            f"{result.cold_grouped:,} grouped"
        )


def documents_json(documents: Iterable[StoredDocument]) -> dict[str, Any]:
    """The document of `documents`."""
    return {
        "documents": [
            {
                "path": document.path,
                "title": document.title,
                "passages": document.num_passages,
                "collection": document.collection,
                "loaded_at": document.loaded_at.isoformat(),
                "content_hash": document.content_hash,
            }
            for document in documents
        ]
    }


def print_documents(documents: Iterable[StoredDocument]) -> None:
    """A line per document."""
    for document in documents:
        print(f"{document.num_passages:4d}  {document.title}  {document.path}")


def overview_json(overview: Overview) -> dict[str, Any]:
    """The document of `stats`; times as ISO 8601."""
    document = asdict(overview)
    for rows, key in (("modules", "last_used"), ("misses", "created"), ("points", "created")):
        for row in document[rows]:
            row[key] = None if row[key] is None else row[key].isoformat()
    reused = overview.session_tokens + overview.prefix_tokens + overview.module_tokens
    document["tokens"] = {
        "prompt": reused + overview.computed_tokens,
        "computed": overview.computed_tokens,
        "reused": reused,
        "session": overview.session_tokens,
        "prefix": overview.prefix_tokens,
        "module": overview.module_tokens,
    }
    return document


def print_overview(overview: Overview) -> None:
    """The dashboard in a terminal."""
    reused = overview.session_tokens + overview.prefix_tokens + overview.module_tokens
    total = reused + overview.computed_tokens
    share = f"{100 * reused / total:.1f} %" if total else "-"
    print(f"{overview.documents} documents, {overview.passages} passages, {len(overview.modules)} encoded")
    print(f"{overview.answers} answers ({overview.refusals} refused) in {overview.conversations} conversations")
    print(f"{reused:,} of {total:,} prompt tokens reused ({share})")
    if overview.ttft_ms_median is not None:
        print(f"first token: median {overview.ttft_ms_median:.0f} ms")
    for tier, used in overview.tier_bytes.items():
        print(f"{tier}: {size(used)} of {size(overview.tier_capacity[tier])}")
    for module in overview.modules[:5]:
        if module.hits:
            print(f"saved {module.saved:,} tokens: {module.document} {module.passage} ({module.hits} uses)")
    for prefix in overview.prefixes[:5]:
        print(f"saved {prefix.saved:,} tokens: beginning ... {prefix.text!r} ({prefix.hits} uses)")
    for reason in overview.reasons:
        print(f"missed {reason.misses} modules, {reason.tokens:,} tokens: {reason.reason}")
    for miss in overview.misses[:10]:
        print(f"computed {miss.tokens} tokens of {miss.passage}: {miss.reason}")


def print_checks(checks: Iterable[Check]) -> None:
    """The doctor's findings."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for check in checks:
        table.add_row("ok" if check.ok else "NOT OK", check.name, check.detail)
    Console().print(table)
