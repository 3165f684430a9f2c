"""The commands of look-ups: check their file, list them, try one without a customer. No running server is needed."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from app.cli.options import Common, open_stored, takes
from app.domain.errors import DeskError

commands = typer.Typer()
lookups = typer.Typer(no_args_is_help=True, help="Look-ups in other systems: check, list and try them.")
commands.add_typer(lookups, name="lookups")


@lookups.command()
@takes("data_dir", "as_json")
def check(
    common: Common, file: Annotated[Path | None, typer.Argument(help="The file; default: the configured file.")] = None
) -> int:
    """Check a file of look-ups, and name each mistake with its line."""
    from app.lookups.calling import secrets_of
    from app.lookups.definitions import Problem, checked, file_of, line_of

    checked_file = file or file_of(common.settings)
    found, problems = checked(checked_file, common.settings)
    for place, lookup in enumerate(found):
        try:
            secrets_of(lookup)
        except DeskError as error:
            text = checked_file.read_text("utf-8-sig")
            problems.append(Problem(line_of(text, ("lookup", place, "request", "secret_header")), str(error)))
    rows = [asdict(one) for one in problems]

    def show() -> None:
        lines = [f"{checked_file}, line {row['line']}: {row['message']}" for row in rows]
        print("\n".join(lines) or f"{checked_file}: {len(found)} look-ups, no mistakes")

    common.show({"problems": rows}, show)
    return 1 if problems else 0


@lookups.command("list")
@takes("data_dir", "as_json")
def list_lookups(common: Common) -> None:
    """List the look-ups with their outcomes."""
    from app.lookups.definitions import file_of, load
    from app.storage.lookups import LookUpStore

    found = load(file_of(common.settings), common.settings)
    with open_stored(common.settings) as database:
        store = LookUpStore(database)
        rows = [(one, store.figures(one.name)) for one in found]
    document = [
        {"name": one.name, "title": one.title, "identity": one.identity, **asdict(figures)} for one, figures in rows
    ]

    def show() -> None:
        for row in document:
            counts = ", ".join(f"{number} {event}" for event, number in sorted(row["by_event"].items()))
            print(f"{row['name']}  {row['identity']}  {counts or 'never asked'}")
        if not document:
            print("no look-ups: docs/lookups.md explains how to write them")

    common.show({"lookups": document}, show)


@lookups.command("try")
@takes("data_dir", "as_json")
def try_lookup(
    common: Common,
    name: Annotated[str, typer.Argument(help="Name of the look-up.")],
    given: Annotated[
        list[str] | None, typer.Argument(metavar="VALUE=...", help="Values, for example order=AB-123456.")
    ] = None,
    user: Annotated[str, typer.Option(help="Id of the signed-in user, for identity signed_in.")] = "",
) -> int:
    """Send one request, and show it with its answer. The secret is masked."""
    from app.lookups.calling import try_out
    from app.lookups.definitions import file_of, load
    from app.lookups.lookups import caller_of

    by_name = {one.name: one for one in load(file_of(common.settings), common.settings)}
    if (lookup := by_name.get(name)) is None:
        raise DeskError(f"there is no look-up {name!r}: known are {', '.join(by_name) or 'none'}", code="lookups")
    texts = dict(one.partition("=")[::2] for one in given or ())
    tried = try_out(lookup, texts, caller_of(common.settings), user)
    sent, called = asdict(tried), tried.called
    document = {"request": sent, **sent.pop("called")}

    def show() -> None:
        print(f"{tried.method} {tried.url}")
        print("\n".join(f"{header}: {line}" for header, line in tried.headers.items()))
        print(f"{tried.json}\n\n{called.outcome} in {called.ms:.0f} ms {called.detail}\n{called.says}")

    common.show(document, show)
    return 0 if called.outcome == "found" else 1
