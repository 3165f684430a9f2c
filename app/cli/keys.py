"""The commands for API keys: keys create, keys list, keys revoke. They work beside a running desk."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.options import Common, open_administration, takes

if TYPE_CHECKING:
    from app.storage.api_keys import ApiKey

commands = typer.Typer()
keys = typer.Typer(no_args_is_help=True, help="Keys with which programs reach the API.")
commands.add_typer(keys, name="keys")


@keys.command()
@takes("data_dir", "as_json")
def create(
    common: Common,
    name: Annotated[str, typer.Argument(help="What the key is for.")],
    scope: Annotated[str, typer.Option(help="What it may do: chat, documents, admin, separated by commas.")] = "chat",
    per_minute: Annotated[int, typer.Option(help="Questions and embeddings it may ask for in a minute.")] = 60,
) -> None:
    """Make a key and show it, this once."""
    with open_administration(common.settings) as desk:
        scopes = [one.strip() for one in scope.split(",") if one.strip()]
        key = desk.create_key(name, scopes, per_minute)
    common.show({"key": key}, lambda: print(f"{key}\nIt is shown this once: keep it now."))


@keys.command("list")
@takes("data_dir", "as_json")
def list_(common: Common) -> None:
    """List the keys."""
    from app.cli.reports import print_keys

    with open_administration(common.settings) as desk:
        stored = desk.keys.all()
    common.show({"keys": [key_json(one) for one in stored]}, lambda: print_keys(stored))


@keys.command()
@takes("data_dir", "as_json")
def revoke(common: Common, name: Annotated[str, typer.Argument(help="The key's name.")]) -> None:
    """End a key: no further request with it is answered."""
    with open_administration(common.settings) as desk:
        key = desk.revoke_key(name)
    common.show({"revoked": key.name}, lambda: print(f"{key.name} ({key.shown}...) no longer works"))


def key_json(key: "ApiKey") -> dict[str, Any]:
    """A key as `keys list` shows it; times as ISO 8601."""
    return {
        "name": key.name,
        "id": key.id,
        "key": f"{key.shown}...",
        "scopes": sorted(key.scopes),
        "per_minute": key.per_minute,
        "created": key.created.isoformat(),
        "last_used": key.last_used and key.last_used.isoformat(),
        "revoked": key.revoked and key.revoked.isoformat(),
    }
