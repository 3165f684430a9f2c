"""The commands for synchronised folders: sync add, sync list, sync remove, sync run. They work beside a running desk,
which reads the folders when they are due.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.options import Common, find_served, open_reader, open_service, takes
from app.domain.callers import COMMAND_LINE

commands = typer.Typer()
sync = typer.Typer(no_args_is_help=True, help="Folders that the served desk reads again and again.")
commands.add_typer(sync, name="sync")

Folder = Annotated[Path, typer.Argument(help="The folder.")]


@sync.command()
@takes("data_dir", "model", "device", "as_json")
def add(
    common: Common,
    folder: Folder,
    every: Annotated[int, typer.Option(help="Minutes from one reading to the next.")] = 60,
    collection: Annotated[str, typer.Option(help="What the documents belong to.")] = "",
) -> int:
    """Synchronise a folder from now on, or change how it is; it is read at once."""
    with _open(common) as service:
        saved = service.synced.save(os.path.abspath(folder.expanduser()), collection, every, who=COMMAND_LINE)
        return _run(common, service, [saved.folder])


@sync.command("list")
@takes("data_dir", "as_json")
def list_(common: Common) -> None:
    """List the folders, with what the last reading did."""
    from app.cli.reports import print_synced
    from app.desk.json_output import synced_json

    with open_reader(common.settings) as service:
        folders = service.synced.all()
    common.show({"folders": [synced_json(one) for one in folders]}, lambda: print_synced(folders))


@sync.command()
@takes("data_dir", "as_json")
def remove(common: Common, folder: Folder) -> None:
    """Synchronise a folder no more. Its documents stay."""
    with _open(common) as service:
        path = _known(service, folder)
        service.synced.remove(path, who=COMMAND_LINE)
    common.show({"removed": path}, lambda: print(f"{path} is read no more; its documents stay"))


@sync.command()
@takes("data_dir", "model", "device", "as_json")
def run(
    common: Common,
    folder: Annotated[Path | None, typer.Argument(help="The folder.", show_default="all")] = None,
) -> int:
    """Read a folder now, or all, and say what changed."""
    with _open(common) as service:
        paths = [one.folder for one in service.synced.all()] if folder is None else [_known(service, folder)]
        return _run(common, service, paths)


def _run(common: Common, service: Any, folders: list[str]) -> int:
    """Read these folders, by the running desk if there is one, and show them; gives the command's status."""
    from app.cli.progress import progress_bar
    from app.cli.reports import print_synced
    from app.desk.json_output import synced_json

    running = find_served(common)
    for folder in folders:
        with progress_bar() as progress:
            if running is not None:
                running.sync(folder, progress)
            else:
                service.synced.run(folder, progress, who=COMMAND_LINE)
    done = [one for one in service.synced.all() if one.folder in folders]
    common.show({"folders": [synced_json(one) for one in done]}, lambda: print_synced(done))
    return 0 if all(one.last_result is not None and one.last_result.is_ok for one in done) else 1


@contextmanager
def _open(common: Common) -> Iterator[Any]:
    """A desk whose folders can be changed, also beside a running one, which looks them up in the database."""
    from app.cli.running_desk import find_running

    if find_running(common.settings.data_dir) is not None:
        with open_reader(common.settings) as service:
            yield service
    else:
        with open_service(common.settings, "warmdesk sync") as service:
            yield service


def _known(service: Any, folder: Path) -> str:
    """The folder as it was stored, or as it was given: then it is an error later."""
    given = os.path.abspath(folder.expanduser())
    stored = {one.folder for one in service.synced.all()}
    return next((path for path in (given, os.path.realpath(given)) if path in stored), given)
