"""The commands for accounts, API keys, and the stored data of one visitor. They also work while the server runs."""

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from app.cli.options import (
    Common,
    find_served,
    open_accounts,
    open_administration,
    open_reader,
    open_service,
    recorded,
    takes,
)
from app.domain.callers import ADMIN, Role
from app.domain.errors import DeskError

if TYPE_CHECKING:
    from app.storage.people import ApiKey

commands = typer.Typer()
accounts = typer.Typer(no_args_is_help=True, help="Accounts of admins and agents.")
commands.add_typer(accounts, name="accounts")


@commands.command("reset-password")
@takes("data_dir", "as_json")
def reset_password(common: Common, name: Annotated[str, typer.Argument(help="Name of the account.")] = ADMIN) -> None:
    """Set a new password for an account, and sign it out everywhere."""
    from app.access.identity import ensure_admin

    with open_administration(common.settings) as desk:
        if name == ADMIN:
            ensure_admin(desk.accounts)
        password = desk.reset_password(name)
    common.show({"name": name, "password": password}, lambda: print(f"{name} password (shown once): {password}"))


@accounts.command("list")
@takes("data_dir", "as_json")
def list_accounts(common: Common) -> None:
    """List the accounts."""
    from app.storage.people import Accounts

    with open_accounts(common.settings) as database:
        stored = Accounts(database).all()
    rows = [{"name": one.name, "role": one.role, "created": one.created} for one in stored]
    common.show(rows, lambda: print("\n".join(f"{row['name']}  {row['role']}" for row in rows) or "no accounts yet"))


@accounts.command("add")
@takes("data_dir", "as_json")
def add(
    common: Common,
    name: Annotated[str, typer.Argument(help="Name for signing in.")],
    role: Annotated[str, typer.Option(help="agent: answers customers. admin: all rights.")] = "agent",
) -> None:
    """Make an account with a new password, which is shown once."""
    with open_administration(common.settings) as desk:
        password = desk.add_account(name, cast("Role", role))
    common.show(
        {"name": name, "role": role, "password": password},
        lambda: print(f"{name} password (shown once): {password}"),
    )


@accounts.command("remove")
@takes("data_dir", "as_json")
def remove(common: Common, name: Annotated[str, typer.Argument(help="Name of the account.")]) -> None:
    """Remove an account, and sign it out everywhere."""
    with open_administration(common.settings) as desk:
        desk.remove_account(name)
    common.show({"removed": name}, lambda: print(f"{name} can no longer sign in"))


keys = typer.Typer(no_args_is_help=True, help="API keys of programs.")
commands.add_typer(keys, name="keys")


@keys.command()
@takes("data_dir", "as_json")
def create(
    common: Common,
    name: Annotated[str, typer.Argument(help="Name of the key.")],
    scope: Annotated[str, typer.Option(help="Scopes: chat, documents, admin, comma-separated.")] = "chat",
    per_minute: Annotated[int, typer.Option(help="Maximum questions, embeddings, uploads, messages per minute.")] = 60,
) -> None:
    """Make an API key and show it once."""
    with open_administration(common.settings) as desk:
        scopes = [one.strip() for one in scope.split(",") if one.strip()]
        key = desk.create_key(name, scopes, per_minute)
    common.show({"key": key}, lambda: print(f"{key}\nIt is shown only once: save it now."))


@keys.command("list")
@takes("data_dir", "as_json")
def list_keys(common: Common) -> None:
    """List the API keys."""
    from app.cli.reports import print_keys
    from app.storage.people import ApiKeyTable

    with open_accounts(common.settings) as database:
        stored = ApiKeyTable(database).all()
    common.show({"keys": [key_json(one) for one in stored]}, lambda: print_keys(stored))


@keys.command()
@takes("data_dir", "as_json")
def revoke(common: Common, name: Annotated[str, typer.Argument(help="Name of the key.")]) -> None:
    """Revoke an API key: requests with it are refused."""
    with open_administration(common.settings) as desk:
        key = desk.revoke_key(name)
    common.show({"revoked": key.name}, lambda: print(f"{key.name} ({key.shown}...) no longer works"))


def key_json(key: "ApiKey") -> dict[str, Any]:
    document = asdict(key)
    shown = document.pop("shown")
    return {**document, "key": f"{shown}...", "scopes": sorted(key.scopes)}


visitors = typer.Typer(no_args_is_help=True, help="Export or delete the stored data of one customer.")
commands.add_typer(visitors, name="visitors")

KEPT = "counts on the dashboard stay because they contain no names"
Owner = Annotated[str, typer.Argument(help="Owner of the conversations, as the dashboard shows it.")]
User = Annotated[str, typer.Option(help="Instead of OWNER: the user's id at your own site, as in visitor tokens.")]


@visitors.command("export")
@takes("data_dir", "as_json")
def export(common: Common, owner: Owner = "", user: User = "") -> None:
    """Print all data of a visitor as one JSON document, with or without --json. Works while the server runs."""
    from app.desk.output import export_everything

    whose = _owner(owner, user)
    with open_reader(common.settings) as service:
        for piece in export_everything(service, whose):
            sys.stdout.write(piece)


@visitors.command("delete")
@takes("data_dir", "as_json")
def delete(common: Common, owner: Owner = "", user: User = "") -> None:
    """Delete all data of a visitor, at once and for good. Works while the server runs."""
    from app.cli.reports import print_old_copies
    from app.storage.files import old_copies

    whose, running = _owner(owner, user), find_served(common)
    if running is not None:
        erased = running("/erase", {"owner": whose})
    else:
        with open_service(common.settings, "warmdesk visitors delete") as service:
            erased = asdict(recorded(service).erase(whose))
    copies = old_copies(common.settings.data_dir)
    document = {"owner": whose, **erased, "kept": KEPT, "old_copies": copies}
    counts = ", ".join(f"{number:,} {name}" for name, number in erased.items())

    def show() -> None:
        print(f"deleted from {whose}: {counts}; {KEPT}")
        print_old_copies(copies)

    common.show(document, show)


def _owner(owner: str, user: str) -> str:
    if bool(owner) == bool(user):
        raise DeskError("no customer given: pass OWNER or --user ID", code="usage")
    from app.access.identity import owner_of_user

    return owner or owner_of_user(user)
