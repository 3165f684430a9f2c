"""The commands about who may do what: reset-password, accounts."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Annotated, cast

import typer

from app.access.passwords import ensure_admin, new_account
from app.access.passwords import reset_password as make_new_password
from app.cli.options import Common, takes
from app.domain.callers import Role
from app.domain.settings import Settings
from app.storage.accounts import ADMIN, Accounts
from app.storage.database import open_database
from app.storage.lock import is_locked

commands = typer.Typer()
accounts = typer.Typer(no_args_is_help=True, help="People who look after the desk: admins, and agents who answer.")
commands.add_typer(accounts, name="accounts")


@contextmanager
def open_accounts(settings: Settings) -> Iterator[Accounts]:
    """The accounts of a desk, also beside one that is being served. Raises DeskError."""
    settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with closing(open_database(settings.database_url, upgrade=not is_locked(settings.data_dir))) as database:
        yield Accounts(database)


@commands.command("reset-password")
@takes("data_dir")
def reset_password(common: Common, name: Annotated[str, typer.Argument(help="Name of the account.")] = ADMIN) -> None:
    """Make a new password for an account; its sign-ins end."""
    with open_accounts(common.settings) as stored:
        password = ensure_admin(stored, common.settings.admin_folder) if name == ADMIN else None
        password = password or make_new_password(stored, name)
    print(f"{name} password (shown once): {password}")


@accounts.command("list")
@takes("data_dir", "as_json")
def list_(common: Common) -> None:
    """Who can sign in."""
    with open_accounts(common.settings) as stored:
        rows = [{"name": one.name, "role": one.role, "created": one.created.isoformat()} for one in stored.all()]
    common.show(rows, lambda: print("\n".join(f"{row['name']}  {row['role']}" for row in rows) or "no accounts yet"))


@accounts.command("add")
@takes("data_dir", "as_json")
def add(
    common: Common,
    name: Annotated[str, typer.Argument(help="What the person signs in with.")],
    role: Annotated[str, typer.Option(help="agent: answers customers. admin: may do everything.")] = "agent",
) -> None:
    """Make an account with a new password, which is shown once."""
    with open_accounts(common.settings) as stored:
        password = new_account(stored, name, cast("Role", role))
    common.show(
        {"name": name, "role": role, "password": password},
        lambda: print(f"{name} password (shown once): {password}"),
    )


@accounts.command("remove")
@takes("data_dir")
def remove(common: Common, name: Annotated[str, typer.Argument(help="Name of the account.")]) -> None:
    """Remove an account; its sign-ins end."""
    with open_accounts(common.settings) as stored:
        stored.remove(name)
    print(f"{name} can no longer sign in")
