"""The command that trains an adapter: adapt."""

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
