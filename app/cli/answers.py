"""The commands that answer questions: ask, batch."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from app.cli.errors import INTERRUPTED, fail
from app.cli.options import Common, open_service, takes

commands = typer.Typer()


@commands.command()
@takes("data_dir", "model", "device", "memory", "as_json")
def ask(
    common: Common,
    question: Annotated[str, typer.Argument(help="The question, in quotes.")],
    conversation: Annotated[str | None, typer.Option(help="Go on with this conversation.")] = None,
    reuse: Annotated[str, typer.Option(help="on, prefix (exact prefixes only) or off.")] = "on",
    policy: Annotated[str | None, typer.Option(help="fast, balanced or exact; default: as set or calibrated.")] = None,
    collection: Annotated[list[str] | None, typer.Option(help="Search only documents of these; default: all.")] = None,
) -> None:
    """Answer one question from the documents."""
    from app.cli.reports import print_answer
    from app.desk.json_output import answer_json

    with open_service(common.settings, "warmdesk ask") as service:
        stream = service.ask(
            question, conversation_id=conversation, reuse=reuse, policy=policy, collections=collection or ()
        )
        for piece in stream:
            if not common.as_json:
                print(piece, end="", flush=True)
        common.show(answer_json(stream.answer), lambda: print_answer(stream.answer))


@commands.command()
@takes("data_dir", "model", "device", "memory", "as_json")
def batch(
    common: Common,
    questions: Annotated[Path, typer.Argument(help='Questions, one {"question": text} a line.')],
    output: Annotated[
        Path | None,
        typer.Option(help="Add each answer to this file as soon as it is done; answers already there are skipped."),
    ] = None,
) -> int:
    """Answer many questions, grouped by the passages and beginnings their prompts share."""
    try:
        from app.cli.progress import progress_bar
        from app.cli.reports import print_batch
        from app.desk.batch_files import read_questions, still_to_answer
        from app.desk.json_output import batch_entry_json, batch_json

        lines = read_questions(questions)
        with open_service(common.settings, "warmdesk batch") as service, progress_bar() as progress:
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
    common.show(batch_json(result, skipped), lambda: print_batch(result, skipped))
    return 1 if result.failed else 0
