"""The commands about who may do what: reset-password, accounts."""

from typing import Annotated, cast

import typer

from app.access.passwords import ensure_admin
from app.cli.options import Common, open_administration, takes
from app.domain.callers import Role
from app.storage.accounts import ADMIN

commands = typer.Typer()
accounts = typer.Typer(no_args_is_help=True, help="People who look after the desk: admins, and agents who answer.")
commands.add_typer(accounts, name="accounts")


@commands.command("reset-password")
@takes("data_dir", "as_json")
def reset_password(common: Common, name: Annotated[str, typer.Argument(help="Name of the account.")] = ADMIN) -> None:
    """Make a new password for an account; its sign-ins end."""
    with open_administration(common.settings) as desk:
        if name == ADMIN:
            ensure_admin(desk.accounts, common.settings.admin_folder)
        password = desk.reset_password(name)
    common.show({"name": name, "password": password}, lambda: print(f"{name} password (shown once): {password}"))


@accounts.command("list")
@takes("data_dir", "as_json")
def list_(common: Common) -> None:
    """Who can sign in."""
    with open_administration(common.settings) as desk:
        stored = desk.accounts.all()
    rows = [{"name": one.name, "role": one.role, "created": one.created.isoformat()} for one in stored]
    common.show(rows, lambda: print("\n".join(f"{row['name']}  {row['role']}" for row in rows) or "no accounts yet"))


@accounts.command("add")
@takes("data_dir", "as_json")
def add(
    common: Common,
    name: Annotated[str, typer.Argument(help="What the person signs in with.")],
    role: Annotated[str, typer.Option(help="agent: answers customers. admin: may do everything.")] = "agent",
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
    """Remove an account; its sign-ins end."""
    with open_administration(common.settings) as desk:
        desk.remove_account(name)
    common.show({"removed": name}, lambda: print(f"{name} can no longer sign in"))
