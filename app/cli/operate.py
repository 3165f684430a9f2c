"""The commands that run a desk and look after it: serve, stats, doctor, reset-password, demo."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from app.cli.options import DataDir, Device, Json, Memory, Model, open_reader, open_service, settings_of, show
from app.domain.shipped import SHIPPED_DATA

commands = typer.Typer()


@commands.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.")] = None,
    data_dir: DataDir = None,
    model: Model = None,
    device: Device = None,
    memory: Memory = None,
) -> None:
    """Serve the chat at / and the dashboard at /admin until Ctrl-C."""
    from app.web.serve import serve as run

    settings = settings_of(data_dir=data_dir, model=model, device=device, memory=memory, host=host, port=port)
    with open_service(settings, "warmdesk serve") as service:
        run(service)


@commands.command()
def stats(data_dir: DataDir = None, as_json: Json = False) -> None:
    """What was reused, what was computed, and why."""
    from app.cli.reports import print_overview
    from app.desk.json_output import overview_json

    with open_reader(settings_of(data_dir=data_dir)) as service:
        overview = service.overview()
    show(as_json, overview_json(overview), lambda: print_overview(overview))


@commands.command()
def doctor(data_dir: DataDir = None, model: Model = None, device: Device = None, as_json: Json = False) -> int:
    """Check that everything the desk needs is there, and say what to do where it is not."""
    from app.cli.reports import print_checks
    from app.desk.doctor import examine

    checks = examine(settings_of(data_dir=data_dir, model=model, device=device))
    healthy = all(check.ok for check in checks)
    document = {"ok": healthy, "checks": [asdict(check) for check in checks]}
    show(as_json, document, lambda: print_checks(checks))
    return 0 if healthy else 1


@commands.command("reset-password")
def reset_password(data_dir: DataDir = None) -> None:
    """Make a new password for the dashboard; everybody is logged out."""
    from app.web import passwords

    settings = settings_of(data_dir=data_dir)
    print(f"admin password (shown once): {passwords.reset_password(settings.admin_folder)}")


@commands.command()
def demo(
    documents_folder: Annotated[
        Path, typer.Argument(help="Folder of documents.", show_default="the sample help centre")
    ] = SHIPPED_DATA / "knowledge",
    data_dir: DataDir = None,
    model: Model = None,
    device: Device = None,
) -> None:
    """Ingest a folder, ask five questions with reuse off and on, and show both times to the first token."""
    from app.cli.demo import run_demo

    with open_service(settings_of(data_dir=data_dir, model=model, device=device), "warmdesk demo") as service:
        run_demo(service, documents_folder)
