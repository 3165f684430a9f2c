"""The command `warmdesk`. Every command prints for people, or with --json exactly one JSON document on stdout.

A mistake is one line `error: ...` on stderr and a non-zero exit status; with --json also {"error": {code, message}}
on stdout. Logs and progress go to stderr. What the commands do is in `app.desk.service` and `evals`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from app.cli.measure import bench, calibrate, calibrate_search, evaluate
from app.cli.options import (
    Adapter,
    DataDir,
    Device,
    Json,
    Memory,
    Model,
    emit,
    find_served,
    open_reader,
    open_service,
    settings_of,
)
from app.cli.pml import pml
from app.domain.errors import DeskError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="A customer-service desk whose language model has already read your documents.",
)
app.add_typer(bench, name="bench")
app.add_typer(evaluate, name="eval")
app.add_typer(pml, name="pml")
app.command()(calibrate)
app.command("calibrate-search")(calibrate_search)

INTERRUPTED = "interrupted; what was finished is kept, the same command goes on from there"


def main() -> None:
    """Entry point of the command."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")  # libraries' bars; ours are rich's
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")  # between its own parts
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    try:
        status = app(standalone_mode=False)
    except typer.Abort:
        fail("interrupted", INTERRUPTED, status=130)
    except DeskError as error:
        fail(error.code, str(error))
    except OSError as error:
        fail("system", explain(error))
    except Exception as error:
        if usage := getattr(error, "format_message", None):  # typer's own, of a class it does not export
            fail("usage", usage(), status=2)
        code, details = known_error(error)
        if code is None:
            raise
        fail(code, str(error), details=details)
    else:
        if status == 130:  # typer turns Ctrl-C into this status, without a word
            fail("interrupted", INTERRUPTED, status=130)
        raise SystemExit(status if isinstance(status, int) else 0)


def fail(code: str, message: str, *, status: int = 1, details: dict[str, object] | None = None) -> None:
    """Print an error as one line, and as JSON where that was asked for; ends the program. details: more JSON keys."""
    line = " ".join(message.split())
    if "--json" in sys.argv:
        print(json.dumps({"error": {"code": code, "message": line, **(details or {})}}))
    print(f"error: {line}", file=sys.stderr)
    raise SystemExit(status)


def known_error(error: Exception) -> tuple[str | None, dict[str, object]]:
    """Code, and what else is known, of an error that `cache` or `retrieval` raised on purpose; no code for a failure of
    ours.
    """
    from cache.errors import CacheError, PMLError
    from retrieval.errors import RetrievalError

    if isinstance(error, PMLError):
        return "pml", {"line": error.line, "column": error.column, "where": error.where, "source": error.source}
    if isinstance(error, CacheError):
        return type(error).__name__.removesuffix("Error").lower(), {}
    return "retrieval" if isinstance(error, RetrievalError) else None, {}


def explain(error: OSError) -> str:
    """An operating-system error as a line that names the thing and, where it is known, the cure."""
    reason = error.strerror or str(error)
    where = f" ({error.filename})" if error.filename else ""
    cure = ": free some space and run the same command again" if "space" in reason.lower() else ""
    return f"{reason[:1].lower()}{reason[1:]}{where}{cure}"


@app.command()
def ingest(
    paths: Annotated[list[Path], typer.Argument(help="Files and folders.")],
    sync: Annotated[
        bool, typer.Option("--sync", help="Remove documents whose files are gone from the folders.")
    ] = False,
    collection: Annotated[str, typer.Option("--collection", help="What the documents belong to.")] = "",
    warm: Annotated[bool, typer.Option("--warm/--no-warm", help="Let the model read the passages now.")] = True,
    data_dir: DataDir = None,
    model: Model = None,
    device: Device = None,
    memory: Memory = None,
    as_json: Json = False,
) -> int:
    """Bring documents in: read, split, index, and let the model read every passage once. Also beside a running desk."""
    from app.cli.reports import print_ingest, progress_bar
    from app.desk.json_output import ingest_json

    settings = settings_of(data_dir=data_dir, model=model, device=device, memory=memory)
    missing = [path for path in paths if not os.path.lexists(path)]
    if len(missing) == len(paths):
        raise DeskError(f"no such file or folder: {str(missing[0])!r}", code="no-such-file")
    running = find_served(settings, model=model, device=device, memory=memory)
    with progress_bar() as progress:
        if running is not None:
            absolute = [os.path.abspath(path) for path in paths]
            order = {"paths": absolute, "collection": collection, "sync": sync, "warm": warm}
            report = running.ingest(order, progress)
        else:
            with open_service(settings, "warmdesk ingest") as service:
                report = ingest_json(service.ingest(paths, progress, collection=collection, sync=sync, warm=warm))
    if as_json:
        emit(report)
    else:
        print_ingest(report)
    return 1 if report["failed"] and not report["documents"] else 0


@app.command()
def ask(
    question: Annotated[str, typer.Argument(help="The question, in quotes.")],
    conversation: Annotated[str | None, typer.Option("--conversation", help="Go on with this conversation.")] = None,
    reuse: Annotated[str, typer.Option("--reuse", help="on, prefix (exact prefixes only) or off.")] = "on",
    policy: Annotated[
        str | None,
        typer.Option("--policy", help="fast, balanced or exact; default: as set or calibrated.", show_default=False),
    ] = None,
    collection: Annotated[
        list[str] | None, typer.Option("--collection", help="Search only documents of these; default: all.")
    ] = None,
    data_dir: DataDir = None,
    model: Model = None,
    device: Device = None,
    memory: Memory = None,
    as_json: Json = False,
) -> None:
    """Answer one question from the documents."""
    from app.cli.reports import print_answer
    from app.desk.json_output import answer_json

    settings = settings_of(data_dir=data_dir, model=model, device=device, memory=memory)
    with open_service(settings, "warmdesk ask") as service:
        stream = service.ask(
            question, conversation_id=conversation, reuse=reuse, policy=policy, collections=collection or ()
        )
        for piece in stream:
            if not as_json:
                print(piece, end="", flush=True)
        if as_json:
            emit(answer_json(stream.answer))
        else:
            print_answer(stream.answer)


@app.command()
def batch(
    questions: Annotated[Path, typer.Argument(help='Questions, one {"question": text} a line.')],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            help="Add each answer to this file as soon as it is done; answers already there are skipped.",
            show_default=False,
        ),
    ] = None,
    memory: Memory = None,
    data_dir: DataDir = None,
    model: Model = None,
    device: Device = None,
    as_json: Json = False,
) -> int:
    """Answer many questions, grouped by the passages and beginnings their prompts share."""
    try:
        from app.cli.reports import print_batch, progress_bar
        from app.desk.batch_files import read_questions, still_to_answer
        from app.desk.json_output import batch_entry_json, batch_json

        settings = settings_of(data_dir=data_dir, model=model, device=device, memory=memory)
        lines = read_questions(questions)
        with open_service(settings, "warmdesk batch") as service, progress_bar() as progress:
            left = lines if output is None else still_to_answer(lines, output)
            with open(output or os.devnull, "a", encoding="utf-8") as kept:
                result = service.batch(
                    left,
                    lambda done, total: progress("answering", done, total),
                    lambda *entry: print(json.dumps(batch_entry_json(*entry)), file=kept, flush=True),
                )
    except KeyboardInterrupt:
        fail("interrupted", "interrupted" if output is None else INTERRUPTED, status=130)
    skipped = len(lines) - len(left)
    if as_json:
        emit(batch_json(result, skipped))
    else:
        print_batch(result, skipped)
    return 1 if result.failed else 0


@app.command()
def serve(
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on.", show_default=False)] = None,
    port: Annotated[int | None, typer.Option("--port", help="Port to listen on.", show_default=False)] = None,
    data_dir: DataDir = None,
    model: Model = None,
    device: Device = None,
    memory: Memory = None,
) -> None:
    """Serve the chat at / and the dashboard at /admin until Ctrl-C."""
    from app.web.serve import serve as run

    settings = settings_of(data_dir=data_dir, model=model, device=device, memory=memory, host=host, port=port)
    with open_service(settings, "warmdesk serve") as service:
        run(service)


@app.command()
def stats(data_dir: DataDir = None, as_json: Json = False) -> None:
    """What was reused, what was computed, and why."""
    from app.cli.reports import print_overview
    from app.desk.json_output import overview_json

    with open_reader(settings_of(data_dir=data_dir)) as service:
        overview = service.overview()
    if as_json:
        emit(overview_json(overview))
    else:
        print_overview(overview)


@app.command()
def documents(data_dir: DataDir = None, as_json: Json = False) -> None:
    """List the documents."""
    from app.cli.reports import print_documents
    from app.desk.json_output import documents_json

    with open_reader(settings_of(data_dir=data_dir)) as service:
        found = service.documents()
    if as_json:
        emit(documents_json(found))
    else:
        print_documents(found)


@app.command()
def forget(
    document: Annotated[str, typer.Argument(help="Path of the document, or an unambiguous end of it.")],
    data_dir: DataDir = None,
    model: Model = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Remove a document: text, vectors, keywords, quotes and encoded passages. Also beside a running desk."""
    from app.cli.reports import print_forgotten
    from app.domain.progress import no_progress

    settings = settings_of(data_dir=data_dir, model=model, device=device)
    running = find_served(settings, model=model, device=device)
    if running is not None:
        forgotten = running.forget(document, no_progress)
    else:
        with open_service(settings, "warmdesk forget") as service:
            forgotten = asdict(service.forget(document))
    if as_json:
        emit({"forgotten": forgotten["document"], "removed": forgotten["removed"], "left": forgotten["left"]})
    else:
        print_forgotten(forgotten)


@app.command()
def doctor(data_dir: DataDir = None, model: Model = None, device: Device = None, as_json: Json = False) -> int:
    """Check that everything the desk needs is there, and say what to do where it is not."""
    from app.cli.reports import print_checks
    from app.desk.doctor import examine

    checks = examine(settings_of(data_dir=data_dir, model=model, device=device))
    healthy = all(check.ok for check in checks)
    if as_json:
        rows = [{"name": check.name, "ok": check.ok, "detail": check.detail} for check in checks]
        emit({"ok": healthy, "checks": rows})
    else:
        print_checks(checks)
    return 0 if healthy else 1


@app.command()
def adapt(
    data: Annotated[
        list[Path] | None,
        typer.Option("--data", help="JSON lines {title, context, qas}; may be repeated. Unset: the desk's passages."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="Folder of the adapter; default: in the data folder.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option("--minutes", help="End after so many. Unset, without --data or --steps: 30.", min=0.01),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps",
            help="End after so many, of two examples each; with the bundled model 10 to 30 s. Unset, with --data and "
            "without --minutes: 1000.",
            min=1,
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Another seed trains on other examples.")] = 0,
    data_dir: DataDir = None,
    model: Model = None,
    adapter: Adapter = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Train a LoRA adapter, so that reading passages one by one comes nearer to reading them together. Resumes."""
    from app.cli.reports import training_bar
    from app.training.adapt import adapt as train

    settings = settings_of(data_dir=data_dir, model=model, adapter=adapter, device=device)
    folder = output or settings.data_dir / "adapters" / ("answers" if data else "distil")
    with training_bar() as progress:
        result = train(settings, data or [], folder, steps=steps, minutes=minutes, seed=seed, report=progress)
    if as_json:
        emit(result)
    else:
        print(f"{result['steps']} steps in {result['minutes']:.0f} minutes, {result['questions']:,} questions")
        if result["left_out"]:
            print(f"{result['left_out']} of the documents were left out: too long, or without a question to train on")
        before = "" if result["held_out_before"] is None else f", before {result['held_out_before']:.3f}"
        print(f"held-out loss {result['held_out']:.3f}{before}")
        if not result["held_out_documents"]:
            print("there is too little to hold any of it out: the loss is of documents that were trained on")
        if result["held_out_moved"] is not None:
            print(f"full attention now says something else than before by {result['held_out_moved']:.3f} nats a token")
        print(f"use it: WARMDESK_ADAPTER={folder} warmdesk serve")


@app.command("reset-password")
def reset_password(data_dir: DataDir = None) -> None:
    """Make a new password for the dashboard; everybody is logged out."""
    from app.web import passwords

    settings = settings_of(data_dir=data_dir)
    print(f"admin password (shown once): {passwords.reset_password(settings.admin_folder)}")


@app.command()
def demo(
    documents_folder: Annotated[Path, typer.Argument(help="Folder of the sample documents.")],
    data_dir: DataDir = None,
    model: Model = None,
    device: Device = None,
) -> None:
    """Ingest a folder, ask five questions with reuse off and on, and show both times to the first token."""
    from app.cli.demo import run_demo

    with open_service(settings_of(data_dir=data_dir, model=model, device=device), "warmdesk demo") as service:
        run_demo(service, documents_folder)
