"""The command that trains an adapter: adapt."""

from pathlib import Path
from typing import Annotated

import typer

from app.cli.options import Adapter, DataDir, Device, Json, Model, settings_of, show

commands = typer.Typer()


@commands.command()
def adapt(
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
    data_dir: DataDir = None,
    model: Model = None,
    adapter: Adapter = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Train a LoRA adapter, so that reading passages one by one comes nearer to reading them together. Resumes."""
    from app.cli.progress import training_bar
    from app.cli.reports import print_training
    from app.training.adapt import adapt as train

    settings = settings_of(data_dir=data_dir, model=model, adapter=adapter, device=device)
    folder = output or settings.data_dir / "adapters" / ("answers" if data else "distil")
    with training_bar() as progress:
        result = train(settings, data or [], folder, steps=steps, minutes=minutes, seed=seed, report=progress)
    show(as_json, result, lambda: print_training(result, folder))
