"""The commands about what is stored of one visitor: visitors export, visitors delete."""

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from app.access.visitors import owner_of_user
from app.cli.options import Common, find_served, open_reader, open_service, recorded, takes
from app.domain.errors import DeskError

commands = typer.Typer()
visitors = typer.Typer(no_args_is_help=True, help="What is stored of one customer: as a file, or removed.")
commands.add_typer(visitors, name="visitors")

KEPT = "counts on the dashboard stay: they name nobody"
Owner = Annotated[str, typer.Argument(help="Owner of the conversations, as the dashboard shows it.")]
User = Annotated[str, typer.Option(help="In its place: the user's id at your own site, as visitor tokens name it.")]


@visitors.command("export")
@takes("data_dir", "as_json")
def export(common: Common, owner: Owner = "", user: User = "") -> None:
    """Print everything of a visitor as one JSON document, with or without --json. Also beside a running desk."""
    from app.desk.export import export_everything

    whose = _owner(owner, user)
    with open_reader(common.settings) as service:
        for piece in export_everything(service, whose):
            sys.stdout.write(piece)


@visitors.command("delete")
@takes("data_dir", "as_json")
def delete(common: Common, owner: Owner = "", user: User = "") -> None:
    """Remove everything of a visitor, at once and for good. Also beside a running desk."""
    from app.cli.reports import print_old_copies
    from app.storage.files import old_copies

    whose, running = _owner(owner, user), find_served(common)
    if running is not None:
        erased = running.erase(whose)
    else:
        with open_service(common.settings, "warmdesk visitors delete") as service:
            erased = asdict(recorded(service).erase(whose))
    copies = old_copies(common.settings.data_dir)
    document = {"owner": whose, **erased, "kept": KEPT, "old_copies": copies}
    counts = ", ".join(f"{number:,} {name}" for name, number in erased.items())

    def show() -> None:
        print(f"removed of {whose}: {counts}; {KEPT}")
        print_old_copies(copies)

    common.show(document, show)


def _owner(owner: str, user: str) -> str:
    if bool(owner) == bool(user):
        raise DeskError("whose? give either OWNER or --user ID", code="usage")
    return owner or owner_of_user(user)
