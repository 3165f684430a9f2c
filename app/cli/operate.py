"""The commands that run and maintain an installation: backup, restore, serve, stats, doctor, demo."""

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from app.cli.options import Common, find_served, open_stored, takes
from app.domain.errors import DeskError
from app.domain.setting_types import SAMPLE, SHIPPED_DATA

commands = typer.Typer()


@commands.command()
@takes("data_dir", "as_json")
def backup(
    common: Common,
    file: Annotated[Path, typer.Argument(help="The archive to write, for example desk.tar.gz.")],
    with_modules: Annotated[
        bool,
        typer.Option(
            "--with-modules", help="Also save encoded passages: large, but none is encoded again after a restore."
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Save the whole data folder in one archive, and check it. A running server
    continues to answer.
    """
    from app.cli.reports import print_backup, progress_bar
    from app.desk.output import backup_json
    from app.storage.archive import back_up_folder
    from app.storage.data_folder import lock_data_folder

    folder = common.settings.data_dir
    if not folder.is_dir():
        raise DeskError(
            f"there is no Warmdesk data in {str(folder)!r}: is this the right --data-dir?", code="no-data-folder"
        )
    file, running = file.expanduser().absolute(), find_served(common)
    with progress_bar() as progress:
        if running is not None:
            order = {"file": str(file), "with_modules": with_modules, "overwrite": force}
            document = running("/backup", order, progress)
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
        bool,
        typer.Option("--force", help="Replace an existing installation; its files are moved aside in the data folder."),
    ] = False,
) -> None:
    """Check a backup and restore it into the data folder. Stop a server of that folder first."""
    from app.cli.reports import print_restored, progress_bar
    from app.desk.output import restored_json
    from app.storage.archive import restore_folder

    with progress_bar() as progress:
        restored = restored_json(restore_folder(common.settings, file, progress, force=force))
    common.show(restored, lambda: print_restored(restored))


@commands.command()
@takes("host", "port", "data_dir", "model", "device", "memory", "cluster", "log_format", "log_level")
def serve(common: Common) -> None:
    """Serve the chat at / and the dashboard at /admin until Ctrl-C."""
    from app.cli.served import serve_desk

    serve_desk(common.settings)


@commands.command()
@takes("data_dir", "as_json")
def stats(common: Common) -> None:
    """Show what was reused, what was computed, and why. Of the running server, if one runs."""
    from msgspec import convert

    from app.cli.reports import print_overview, print_savings
    from app.desk.output import overview_json
    from app.desk.overview import stored_overview, summarise_savings
    from app.domain.answers import Overview
    from app.domain.statistics import Savings
    from app.storage.statistics import Statistics

    running = find_served(common)
    if running is not None:
        overview, savings = convert(running("/stats", {}), tuple[Overview, Savings])
    else:
        with open_stored(common.settings) as database:
            overview = stored_overview(common.settings, database)
            samples = Statistics(database).samples(datetime.min.replace(tzinfo=UTC), datetime.now(UTC))
        savings = summarise_savings(samples)

    def show() -> None:
        print_overview(overview)
        print_savings(savings)

    common.show({**overview_json(overview), "savings": asdict(savings)}, show)


@commands.command()
@takes("data_dir", "model", "device", "as_json")
def doctor(common: Common) -> int:
    """Check that the installation has everything it needs, and name the fix if not."""
    from app.cli.reports import print_checks
    from app.desk.doctor import examine

    checks = examine(common.settings)
    healthy = all(check.ok for check in checks)
    document = {"ok": healthy, "checks": [asdict(check) for check in checks]}
    common.show(document, lambda: print_checks(checks))
    return 0 if healthy else 1


@commands.command()
@takes("host", "port", "data_dir", "model", "device")
def demo(
    common: Common,
    documents_folder: Annotated[
        Path, typer.Argument(help="Folder of documents.", show_default="the sample help centre")
    ] = SHIPPED_DATA / SAMPLE,
    serve: Annotated[bool, typer.Option("--serve", help="Serve the chat once the folder is indexed.")] = False,
) -> None:
    """Ingest a folder, ask five questions with reuse off and on, and show both times to the first token."""
    from app.cli.demo import run_demo, serve_demo

    (serve_demo if serve else run_demo)(common.settings, documents_folder)
