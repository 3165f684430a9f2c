"""The commands that measure answers with `evals`: `eval ...`, calibrate and calibrate-search."""

import json
import os
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

import typer

from app.cli.bench import Write, need, publish
from app.cli.options import Common, open_service, progress_line, takes
from app.domain.errors import DeskError
from app.domain.setting_types import SHIPPED_DATA
from app.domain.settings import load_settings

commands = typer.Typer()
evaluate = typer.Typer(no_args_is_help=True, help="Measure answers.")
commands.add_typer(evaluate, name="eval")

Limit = Annotated[int | None, typer.Option(help="Maximum number of questions.")]

QUESTIONS = SHIPPED_DATA / "questions.jsonl"


@evaluate.command()
@takes("data_dir", "model", "adapter", "device", "as_json")
def quality(
    common: Common,
    data: Annotated[
        Path, typer.Option(help="JSON lines {src, title, context, qas}, or a list {question, answers, ctxs}.")
    ],
    policies: Annotated[str, typer.Option(help="Policies, comma-separated; see docs/evidence.md.")] = (
        "full,exact,balanced,fast,prompt_cache,random,fewer,gold,none"
    ),
    passages: Annotated[int, typer.Option(help="Number of passages in a request.", min=1)] = 5,
    limit: Annotated[int, typer.Option(help="Maximum number of requests.", min=1)] = 100,
    conversations: Annotated[bool, typer.Option("--conversations", help="Only follow-up questions.")] = False,
    write: Annotated[Path | None, typer.Option(help="Write the table into this file, and a plot next to it.")] = None,
) -> None:
    """Compare answers with and without reuse: fidelity to full attention, share with the gold answer. Can resume."""
    from evals.answers.quality_run import draw, markdown, measure_quality
    from evals.report import write_section

    plot = None if write is None else write.with_name("quality.svg")
    need("quality", write, plot)
    result = measure_quality(
        common.settings,
        data,
        policies=policies.split(","),
        passages=passages,
        limit=limit,
        conversations=conversations,
        report=progress_line,
    )
    if write is not None and plot is not None:
        draw(result, plot)
        command = f"warmdesk eval quality --data {data.name} --policies {policies} --limit {limit}"
        command += f" --passages {passages}" if passages != 5 else ""
        command += " --conversations" if conversations else ""
        told = {name: value for name, value in common.flags.items() if value and name != "data_dir"}
        command += "".join(f" --{name} {Path(value).name}" for name, value in told.items())
        write_section(write, "quality", markdown(result, command))
    common.show(result, lambda: print(json.dumps(result, indent=2)))


@commands.command()
@takes("data_dir", "model", "adapter", "device", "as_json")
def calibrate(
    common: Common,
    data: Annotated[Path | None, typer.Option(help="Your own questions, as for eval quality.")] = None,
    documents: Annotated[Path | None, typer.Option(help="Folder of the documents of --questions.")] = None,
    questions: Annotated[
        Path | None, typer.Option(help="Customers' questions for the answer mode, as for eval helpdesk.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Approximate number of questions from each file.", min=1)] = 40,
) -> None:
    """Find the fastest policy that keeps your model's answers, and whether its own words are better than quotations."""
    from evals.answers.quality_run import calibrate as measure

    if (documents is None) != (questions is None):
        raise DeskError("--documents and --questions belong together: give both or none", code="bad-option")
    customers = None if documents is None or questions is None else (documents, questions)
    found = measure(common.settings, data, customers, limit=limit, report=progress_line)
    common.show(asdict(found), lambda: print(found.line()))


@evaluate.command()
@takes("data_dir", "model", "adapter", "embedder", "device", "as_json")
def helpdesk(
    common: Common,
    documents: Annotated[Path, typer.Option(help="Folder of the documents.")],
    data: Annotated[Path, typer.Option(help="JSON lines {id, question, articles, facts, answer, history, kind}.")],
    limit: Annotated[
        int | None, typer.Option(help="Approximate number of questions. The proportions of their kinds stay.")
    ] = None,
    arm: Annotated[
        Literal["search", "shipped", "checked"],
        typer.Option(help="search: no language model. shipped: as configured. checked: the model's own words."),
    ] = "shipped",
    found: Annotated[
        Path | None,
        typer.Option(help="Decide by the search results in this file; if it is missing, search and write it first."),
    ] = None,
) -> None:
    """Measure on your documents whether answers are right, relevant and honest about missing information. The
    installation is temporary; with --data-dir it is stored and reused.
    """
    from evals.answers.helpdesk import markdown, measure_helpdesk
    from evals.answers.questions import read_questions, sample
    from evals.answers.replay import replay, search_once

    if found is not None and arm != "search":
        raise DeskError("search results do not answer with a model: add --arm search", code="bad-option")
    questions = sample(read_questions(data), limit)
    kept = common.flags["data_dir"]
    with TemporaryDirectory(prefix="warmdesk-") if kept is None else nullcontext(kept) as folder:
        mode = "checked" if arm == "checked" else None
        settings = load_settings({**common.flags, "data_dir": folder, "answer_mode": mode}, os.environ)
        if found is None or not found.exists():
            with open_service(settings, "warmdesk eval helpdesk") as service:
                if found is not None:
                    search_once(service, documents, questions, found, progress_line)
                else:
                    result = measure_helpdesk(service, documents, questions, arm=arm, report=progress_line)
        if found is not None:
            result = replay(found, questions, settings)
    common.show(result, lambda: print(markdown(result["summary"])))


@evaluate.command("lookups")
@takes("data_dir", "embedder", "as_json")
def eval_lookups(
    common: Common,
    data: Annotated[Path, typer.Option(help="JSON lines {message, lookup, kind, language}; lookup may be missing.")],
) -> None:
    """Measure which messages start or offer a look-up, with the documents and look-ups of the data folder."""
    from app.domain.json_lines import read_json_lines
    from evals.answers.lookups import markdown, measure_lookups

    messages = [*read_json_lines(data, dict, "message", "bad-messages").values()]
    with open_service(common.settings, "warmdesk eval lookups") as service:
        result = measure_lookups(service, messages)
    common.show(result, lambda: print("\n".join(markdown(result))))


@evaluate.command()
@takes("data_dir", "model", "embedder", "as_json")
def recall(
    common: Common,
    data: Annotated[
        Path,
        typer.Option(
            help="Questions {question, article}, or documents {src, title, context, qas}.",
            show_default="the bundled ones",
        ),
    ] = QUESTIONS,
    limit: Limit = None,
    leave_out: Annotated[str, typer.Option(help="Sources of questions to skip, comma-separated.")] = "policyqa",
    distractors: Annotated[
        list[Path] | None,
        typer.Option(help="More documents {title, context, qas} to search. Their questions are not asked."),
    ] = None,
    num_distractors: Annotated[
        int | None, typer.Option(help="Maximum number of passages of these documents.", min=1, show_default="all")
    ] = None,
    write: Write = None,
) -> None:
    """Measure whether search finds the right document, and recognises questions that no document answers."""
    from evals.answers.recall import markdown, measure_recall
    from retrieval.search.embedding import SentenceEmbedder

    need("recall", write)
    result = measure_recall(
        common.settings,
        data,
        embedder=SentenceEmbedder(common.settings.embedder),
        limit=limit,
        leave_out=frozenset(leave_out.split(",")),
        report=progress_line,
        distractors=distractors or (),
        num_distractors=num_distractors,
    )
    command = f"warmdesk eval recall --data {data.name}"
    command += "".join(f" --distractors {file.name}" for file in distractors or ())
    command += "" if num_distractors is None else f" --num-distractors {num_distractors}"
    publish(common, result, "recall", markdown, command, write)


@commands.command("calibrate-search")
@takes("data_dir", "model", "embedder", "as_json")
def calibrate_search(
    common: Common,
    data: Annotated[
        list[Path],
        typer.Option(help="Questions, as JSON lines {question, answers} or {question, facts}: some without an answer."),
    ],
    documents: Annotated[
        list[Path] | None,
        typer.Option(help="Folder of the documents, one for each --data. Default: the ingested documents."),
    ] = None,
    write: Annotated[Path | None, typer.Option(help="File to write; default: search.json in the data folder.")] = None,
) -> None:
    """Fit the thresholds of search: when to answer, when to refuse, and which statement answers."""
    from app.desk.calibration import SEARCH_FILE, write_classifier
    from evals.answers.search_calibration import calibrate

    classifier, found = calibrate(common.settings, data, documents or [], report=progress_line)
    file = write or common.settings.data_dir / SEARCH_FILE
    write_classifier(file, classifier)
    thresholds = {"threshold": classifier.threshold, "certain": classifier.certain}
    line = (
        "{answerable} answerable and {unanswerable} other questions, area under the curve {auc:.2f}; answers "
        "{answered:.0%} of the answerable ones confidently, {answered_right:.0%} of these correctly, and "
        "{answered_wrongly:.0%} of the others"
    ).format(**found)
    common.show({"file": str(file), **found, **thresholds}, lambda: print(f"{file}: {line}"))
