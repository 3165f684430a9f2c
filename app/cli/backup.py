"""The commands that save a desk and put it back: backup, restore."""

from pathlib import Path
from typing import Annotated

import typer

from app.cli.options import Common, find_served, takes
from app.domain.errors import DeskError

commands = typer.Typer()


@commands.command()
@takes("data_dir", "as_json")
def backup(
    common: Common,
    file: Annotated[Path, typer.Argument(help="The archive to write, as desk.tar.gz.")],
    with_modules: Annotated[
        bool, typer.Option("--with-modules", help="Save encoded passages, too: large, but the model reads none again.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Also in place of a file.")] = False,
) -> None:
    """Save everything of a desk in one archive, and check it. Also beside a running desk, which goes on answering."""
    from app.cli.progress import progress_bar
    from app.cli.reports import print_backup
    from app.desk.json_output import backup_json
    from app.storage.archiving import back_up_folder
    from app.storage.lock import lock_data_folder

    folder = common.settings.data_dir
    if not folder.is_dir():
        raise DeskError(f"there is no desk in {str(folder)!r}: is this the right --data-dir?", code="no-data-folder")
    file, running = file.expanduser().absolute(), find_served(common)
    with progress_bar() as progress:
        if running is not None:
            order = {"file": str(file), "with_modules": with_modules, "overwrite": force}
            document = running.back_up(order, progress)
        else:
            with lock_data_folder(folder, "warmdesk backup"):
                made = back_up_folder(common.settings, file, progress, with_modules=with_modules, overwrite=force)
            document = backup_json(made)
    common.show(document, lambda: print_backup(document))


@commands.command()
@takes("data_dir", "as_json")
def restore(
    common: Common,
    file: Annotated[Path, typer.Argument(help="An archive that `warmdesk backup` wrote.")],
    force: Annotated[
        bool, typer.Option("--force", help="Also in place of a desk, which is kept aside in the data folder.")
    ] = False,
) -> None:
    """Check a backup and put it into the data folder. A desk that is served from there is stopped before."""
    from app.cli.progress import progress_bar
    from app.cli.reports import print_restored
    from app.desk.json_output import restored_json
    from app.storage.restoring import restore_folder

    with progress_bar() as progress:
        restored = restored_json(restore_folder(common.settings, file, progress, force=force))
    common.show(restored, lambda: print_restored(restored))
