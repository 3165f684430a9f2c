"""The commands that train: adapt the language model, train-ranker what ranks statements."""

from pathlib import Path
from typing import Annotated

import typer

from app.cli.options import Common, takes

commands = typer.Typer()


@commands.command()
@takes("data_dir", "model", "adapter", "device", "as_json")
def adapt(
    common: Common,
    data: Annotated[
        list[Path] | None,
        typer.Option(help="JSON lines {title, context, qas}; may be repeated. Unset: the desk's passages."),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Folder of the adapter; default: in the data folder.")] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Stop after so many minutes. Default without --data and --steps: 30.", min=0.01)
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            help="Stop after so many steps, of two examples each; one takes 10 to 30 s with the bundled model. Default "
            "with --data and without --minutes: 1000.",
            min=1,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Another seed trains on other examples.")] = 0,
) -> None:
    """Train a LoRA adapter, so that reading passages one by one comes nearer to reading them together. Resumes."""
    from app.cli.progress import training_bar
    from app.cli.reports import print_training
    from app.training.adapt import adapt as train

    folder = output or common.settings.data_dir / "adapters" / ("answers" if data else "distil")
    with training_bar() as progress:
        result = train(common.settings, data or [], folder, steps=steps, minutes=minutes, seed=seed, report=progress)
    common.show(result, lambda: print_training(result, folder))


@commands.command("train-ranker")
@takes("data_dir", "as_json")
def train_ranker(
    common: Common,
    data: Annotated[list[Path], typer.Option(help="JSON lines {src, title, context, qas}, also .gz; may be repeated.")],
    output: Annotated[Path | None, typer.Option(help="Folder of the ranker; default: in the data folder.")] = None,
    minutes: Annotated[float, typer.Option(help="Stop after so many minutes.", min=0.01)] = 60.0,
    go_on: Annotated[bool, typer.Option(help="Go on from the ranker in use, for an operator's own questions.")] = False,
    leave_out: Annotated[str, typer.Option(help="Sources that are kept for measuring, with commas.")] = "",
    local: Annotated[str, typer.Option(help="Sources whose questions do not say which document they are about.")] = "",
    seed: Annotated[int, typer.Option(help="Another seed trains on other batches.")] = 0,
) -> None:
    """Train what ranks statements by how well they answer a question. Calibrate search again afterwards."""
    from app.cli.options import progress_line
    from app.training.ranker import train

    folder = output or common.settings.data_dir / "ranker"
    card = train(
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
