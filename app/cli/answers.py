"""The commands that answer questions (ask, batch) and that train (adapt the language model, train-ranker)."""

import json
import os
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.options import INTERRUPTED, Common, fail, find_served, open_service, progress_line, takes

commands = typer.Typer()


@commands.command()
@takes("data_dir", "model", "device", "memory", "as_json")
def ask(
    common: Common,
    question: Annotated[str, typer.Argument(help="The question, in quotes.")],
    conversation: Annotated[str | None, typer.Option(help="Id of a conversation to continue.")] = None,
    reuse: Annotated[str, typer.Option(help="Reuse: on, prefix (exact prefixes only) or off.")] = "on",
    policy: Annotated[str | None, typer.Option(help="fast, balanced or exact. Default: the setting.")] = None,
    collection: Annotated[list[str] | None, typer.Option(help="Search only these collections; default: all.")] = None,
) -> None:
    """Answer one question from the documents. If the server runs, it answers the question."""
    from msgspec import convert

    from app.cli.reports import print_answer
    from app.desk.output import answer_json
    from app.domain.answers import Answer

    def show(*, piece: str, **progress: object) -> None:
        if not common.as_json:
            print(piece, end="", flush=True)

    order = {"conversation_id": conversation, "reuse": reuse, "policy": policy, "collections": collection or []}
    running = find_served(common)
    if running is not None:
        answer = convert(running("/ask", {"question": question, **order}, show), Answer)
    else:
        with open_service(common.settings, "warmdesk ask", answers=True) as service:
            stream = service.ask(question, **order)
            for piece in stream:
                show(piece=piece)
            answer = stream.answer
    common.show(answer_json(answer), lambda: print_answer(answer))


@commands.command()
@takes("data_dir", "model", "device", "memory", "as_json")
def batch(
    common: Common,
    questions: Annotated[Path, typer.Argument(help='Questions, one {"question": text} per line.')],
    output: Annotated[
        Path | None,
        typer.Option(help="Append each answer to this file at once; questions with an answer there are skipped."),
    ] = None,
) -> int:
    """Answer many questions, grouped by the passages and prefixes that their prompts share. If the server runs, it
    answers them.
    """
    try:
        from msgspec import to_builtins

        from app.cli.reports import print_batch, progress_bar
        from app.desk.batch import read_questions, still_to_answer
        from app.desk.output import batch_entry_json, batch_json

        lines = read_questions(questions)
        running = find_served(common)
        own = open_service(common.settings, "warmdesk batch", answers=True)
        desk: AbstractContextManager[Any] = nullcontext() if running else own
        with desk as service, progress_bar() as progress:
            left = lines if output is None else still_to_answer(lines, output)
            with open(output or os.devnull, "a", encoding="utf-8") as kept:

                def report(stage: str, done: int, total: int, entry: dict[str, Any] | None = None) -> None:
                    if entry is None:
                        progress(stage, done, total)
                    else:
                        print(json.dumps(entry), file=kept, flush=True)

                if running is not None:
                    result = running("/batch", {"questions": to_builtins(left)}, report)
                else:
                    answered = service.batch(
                        left,
                        partial(report, "answering"),
                        lambda *entry: report("answering", 0, 1, batch_entry_json(*entry)),
                    )
                    result = batch_json(answered)
    except KeyboardInterrupt:
        fail("interrupted", "interrupted" if output is None else INTERRUPTED, status=130)
    result["skipped"] = len(lines) - len(left)
    common.show(result, lambda: print_batch(result))
    return 1 if result["failed"] else 0


@commands.command()
@takes("data_dir", "model", "adapter", "device", "as_json")
def adapt(
    common: Common,
    data: Annotated[
        list[Path] | None,
        typer.Option(help="JSON lines {title, context, qas}; may be repeated. Default: the ingested passages."),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Folder of the adapter; default: in the data folder.")] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Maximum minutes. Default without --data and --steps: 30.", min=0.01)
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            help="Maximum steps of two examples each; one takes 10 to 30 s with the bundled model. Default "
            "with --data and without --minutes: 1000.",
            min=1,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of the examples.")] = 0,
) -> None:
    """Train a LoRA adapter, so that separately encoded passages give nearly the same answers as passages encoded
    together. An interrupted run resumes.
    """
    from app.cli.reports import print_training
    from app.training import adapt as train

    folder = output or common.settings.data_dir / "adapters" / ("answers" if data else "distil")
    result = train(common.settings, data or [], folder, steps=steps, minutes=minutes, seed=seed, report=progress_line)
    common.show(result, lambda: print_training(result, folder))


@commands.command("train-ranker")
@takes("data_dir", "as_json")
def train_ranker(
    common: Common,
    data: Annotated[list[Path], typer.Option(help="JSON lines {src, title, context, qas}, also .gz; may be repeated.")],
    output: Annotated[Path | None, typer.Option(help="Folder of the ranker; default: in the data folder.")] = None,
    minutes: Annotated[float, typer.Option(help="Maximum minutes.", min=0.01)] = 60.0,
    go_on: Annotated[bool, typer.Option(help="Train the ranker in use further, with your questions.")] = False,
    leave_out: Annotated[str, typer.Option(help="Sources reserved for measuring, comma-separated.")] = "",
    local: Annotated[str, typer.Option(help="Sources whose questions do not name their document.")] = "",
    seed: Annotated[int, typer.Option(help="Random seed of the batches.")] = 0,
) -> None:
    """Train the ranker, which scores how well a statement answers a question. Run calibrate-search afterwards."""
    from app.training import make_ranker

    folder = output or common.settings.data_dir / "ranker"
    card = make_ranker(
        common.settings,
        data,
        folder,
        minutes=minutes,
        go_on=go_on,
        left_out=frozenset(filter(None, leave_out.split(","))),
        local=frozenset(filter(None, local.split(","))),
        seed=seed,
        report=progress_line,
    )
    common.show(
        card, lambda: print(f"{folder}: {card['steps']} steps in {card['minutes']} minutes, loss {card['loss']}")
    )
