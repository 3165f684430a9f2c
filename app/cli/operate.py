"""The commands that run and maintain an installation: backup, restore, serve, stats, doctor, demo.

The demo asks five questions about the sample documents, each with and without reuse, and compares the times to the
first token.
"""

import statistics
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.options import Common, find_served, open_service, open_stored, recorded, takes
from app.cli.served import serve_desk
from app.domain.errors import DeskError
from app.domain.setting_types import SAMPLE, SHIPPED_DATA, sample_in, sample_of
from app.domain.settings import Settings

if TYPE_CHECKING:
    from app.desk.service import Service
    from app.domain.answers import Answer

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
    serve_desk(common.settings)


@commands.command()
@takes("data_dir", "as_json")
def stats(common: Common) -> None:
    """Show what was reused, what was computed, and why. If a server runs, its figures are shown."""
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
    if not documents_folder.is_dir():
        raise DeskError(f"there is no folder {str(documents_folder)!r}", code="no-such-file")
    (serve_demo if serve else run_demo)(common.settings, documents_folder)


def run_demo(settings: Settings, documents: Path) -> None:
    with open_service(settings, "warmdesk demo") as service:
        ingest(service, documents)
        service.prepare()
        compare(service, documents)


def serve_demo(settings: Settings, documents: Path) -> None:
    """Serve, index, and print the table when all passages are encoded. Raises the errors of `serve_desk`."""
    serve_desk(
        settings,
        first=lambda service: fill(service, documents),
        when_read=lambda service: compare(service, documents),
    )


def fill(service: "Service", documents: Path) -> None:
    if (sample := sample_in(documents)) is not None:
        service.offered = sample.examples
    ingest(service, *(documents / page for page in service.offered.values()), documents, warm=False)


def ingest(service: "Service", *paths: Path, warm: bool = True) -> None:
    from app.cli.reports import print_ingest, progress_bar
    from app.desk.output import ingest_json

    with progress_bar() as progress:
        print_ingest(ingest_json(recorded(service).ingest(paths, progress, warm=warm)))


def compare(service: "Service", documents: Path) -> None:
    """Ask with reuse off and on, and print the table. Skipped for a remote model, which has its own reuse."""
    from cache.remote.remote_engine import ELSEWHERE

    if service.is_elsewhere:
        print(f"{ELSEWHERE}: with and without reuse cannot be compared")
        return
    sample = sample_of(documents)
    finish(service, sample.warm_up, "on")  # the first request of a process is slower; this one is about another subject
    print_table(service, [(one, finish(service, one, "off"), finish(service, one, "on")) for one in sample.compared])


def finish(service: "Service", question: str, reuse: str) -> "Answer":
    """Ask in a temporary conversation. Read to the end, because a quotation is shown before the model's first token."""
    stream = service.ask(question, reuse=reuse)
    for _ in stream:
        pass
    service.delete_conversation(stream.answer.conversation_id)
    return stream.answer


def print_table(service: "Service", rows: "list[tuple[str, Answer, Answer]]") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("question", "answered from", title="Time to the first token, search included")
    for column in ("prompt tokens", "computed", "reuse off", "reuse on", "faster"):
        table.add_column(column, justify="right")
    ratios = []
    for question, off, on in rows:
        ratios.append(off.timings.ttft / on.timings.ttft)
        table.add_row(
            question,
            PurePath(on.citations[0].document).name if on.citations else "refused",
            f"{on.usage.prompt_tokens:,}",
            f"{on.usage.computed:,}",
            f"{off.timings.ttft:,.0f} ms",
            f"{on.timings.ttft:,.0f} ms",
            f"{ratios[-1]:.1f}x",
        )
    Console(width=120).print(table)
    print(f"{service.engine.info.name} on {service.settings.device}; median {statistics.median(ratios):.1f}x")
