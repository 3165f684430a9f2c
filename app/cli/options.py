"""Code that commands share: common options, opening the desk, reading flags, printing JSON, and the error line of a
failed command.
"""

import gc
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from app.domain.callers import COMMAND_LINE
from app.domain.errors import DeskError
from app.domain.logs import OfRequest, say
from app.domain.settings import Settings, load_settings
from cache.engine.log_lines import write_log

if TYPE_CHECKING:  # each command imports only what it needs, so `--help` and lists are quick
    from app.access.identity import Administration
    from app.desk.service import Changes
    from app.storage.database import Database

INTERRUPTED = "interrupted; finished work is saved: run the same command again to continue"


def fail(code: str, message: str, *, status: int = 1, details: dict[str, object] | None = None) -> NoReturn:
    """Print an error as one line, with --json also as JSON, and exit. details: more JSON keys."""
    line = " ".join(message.split())
    if "--json" in sys.argv:
        print(json.dumps({"error": {"code": code, "message": line, **(details or {})}}))
    say(line, logging.ERROR)
    raise SystemExit(status)


def known_error(error: Exception) -> tuple[str | None, dict[str, object]]:
    """Return code and details of an expected error of `cache` or `retrieval`; no code for a programming error."""
    from cache.errors import CacheError, PMLError
    from retrieval.errors import RetrievalError

    if isinstance(error, PMLError):
        return "pml", {"line": error.line, "column": error.column, "where": error.where, "source": error.source}
    if isinstance(error, CacheError):
        return type(error).__name__.removesuffix("Error").lower(), {}
    return "retrieval" if isinstance(error, RetrievalError) else None, {}


def explain(error: OSError) -> str:
    reason = error.strerror or str(error)
    where = f" ({error.filename})" if error.filename else ""
    cure = ": free some space and run the same command again" if "space" in reason.lower() else ""
    return f"{reason[:1].lower()}{reason[1:]}{where}{cure}"


OPTIONS: dict[str, Any] = {
    "host": Annotated[str | None, typer.Option(help="Address to listen on.")],
    "port": Annotated[int | None, typer.Option(help="Port to listen on.")],
    "data_dir": Annotated[str | None, typer.Option(help="Folder for everything the program writes.")],
    "model": Annotated[
        str | None, typer.Option(help="Language model: folder, .gguf file, hub name or openai:URL#NAME.")
    ],
    "adapter": Annotated[str | None, typer.Option(help="Folder of a LoRA adapter for the model.")],
    "embedder": Annotated[str | None, typer.Option(help="sentence-transformers model: folder or hub name.")],
    "device": Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N.")],
    "log_format": Annotated[str | None, typer.Option(help="The log on stderr: text or json.")],
    "log_level": Annotated[str | None, typer.Option(help="debug, info (one line per request), warning or error.")],
    "memory": Annotated[
        str | None,
        typer.Option(
            "--memory", "--device-memory", help='Device memory for encoded passages, for example "1 GiB", or auto.'
        ),
    ],
    "cluster": Annotated[
        str | None, typer.Option(help="Run several engines with Ray Serve: local, or HOST:PORT of a cluster.")
    ],
    "as_json": Annotated[bool, typer.Option("--json", help="Print one JSON document.")],
}
SETTING_OF = {"memory": "device_memory"}


@dataclass(frozen=True, slots=True)
class Common:
    """The common options of a command. flags: values by setting; None if not given."""

    settings: Settings
    flags: dict[str, Any]
    as_json: bool

    def show(self, document: Any, for_people: Callable[[], object]) -> None:
        """Show the result of a command: one JSON document, which may contain times, or the output of `for_people`."""
        if self.as_json:
            print(json.dumps(document, ensure_ascii=False, default=datetime.isoformat))
        else:
            for_people()


def takes(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add common options to a command. Its first parameter is the `Common`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def called(**values: Any) -> Any:
            flags = {name: values.pop(name) for name in names}
            as_json = bool(flags.pop("as_json", False))
            given = {SETTING_OF.get(name, name): value for name, value in flags.items()}
            settings = load_settings(given, os.environ)
            write_log(settings.log_format, settings.log_level, OfRequest())
            return command(Common(settings, flags, as_json), **values)

        own = list(signature(command).parameters.values())[1:]
        common = [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=OPTIONS[name]) for name in names]
        called.__signature__ = Signature([*own, *common])  # type: ignore[attr-defined]
        called.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *common)}
        return called

    return decorate


@contextmanager
def open_service(settings: Settings, purpose: str, *, answers: bool = False) -> Iterator[Any]:
    """Open a service that may write, with the data folder locked. answers: the engine gets a process, which loads its
    model while this one loads the search. Out of scope: the server's service (`app.cli.served`).
    """
    from app.desk.disk_room import make_room
    from app.domain.progress import in_own_thread
    from app.storage.data_folder import lock_data_folder
    from cache.serving.child_process import ChildProcess

    with (
        lock_data_folder(settings.data_dir, purpose, lambda: make_room(settings)),
        closing(ChildProcess()) if answers and settings.has_child else nullcontext() as process,
    ):
        in_own_thread(load_languages)
        gc.disable()  # imports make objects that stay
        try:
            from app.desk.service import Service
        finally:
            gc.freeze()
            gc.enable()
        with Service(settings, may_start_process=process is not None, process=process) as service:
            service.finish_begun()
            yield service


@contextmanager
def open_reader(settings: Settings) -> Iterator[Any]:
    """Open a service that only reads, also while the server runs. Raises DeskError if there is no data folder."""
    from app.desk.service import Service

    with open_stored(settings), Service(settings, upgrade=False) as service:
        yield service


@contextmanager
def open_stored(settings: Settings) -> "Iterator[Database]":
    """Open only the database, for lists: takes less than a second. Raises DeskError if there is no data folder."""
    from app.storage.database import open_database

    if not settings.data_dir.is_dir():
        raise DeskError(
            f"there is no Warmdesk data in {str(settings.data_dir)!r}: ingest documents first", code="no-data-folder"
        )
    with closing(open_database(settings.database_url, upgrade=False)) as database:
        yield database


def load_languages() -> None:
    """Load language recognition, which takes half a second. Run it while other modules are imported."""
    from retrieval.text.terms import language_of

    language_of("a")


def recorded(service: Any) -> "Changes":
    from app.desk.service import Changes
    from app.storage.people import Audit

    return Changes(service, Audit(service.database).record, COMMAND_LINE)


@contextmanager
def open_administration(settings: Settings) -> "Iterator[Administration]":
    """Open the accounts and keys, also while the server runs, which reads them from the database each time."""
    from app.access.identity import Administration, Keys
    from app.storage.people import Accounts, Audit

    with open_accounts(settings) as database:
        yield Administration(Accounts(database), Keys(database), Audit(database).record, COMMAND_LINE)


@contextmanager
def open_accounts(settings: Settings) -> "Iterator[Database]":
    from app.storage.data_folder import is_locked, lock_data_folder
    from app.storage.database import open_database

    is_served = is_locked(settings.data_dir)
    with (
        nullcontext() if is_served else lock_data_folder(settings.data_dir, "warmdesk"),
        closing(open_database(settings.database_url, upgrade=not is_served)) as database,
    ):
        yield database


def find_served(common: Common) -> Callable[..., dict[str, Any]] | None:
    """Return the running server (`find_running`). Prints on stderr which flags it ignores."""
    from app.cli.served import find_running

    running = find_running(common.settings.data_dir)
    given = [f"--{name}" for name, value in common.flags.items() if value is not None and name != "data_dir"]
    if running is not None and given:
        progress_line(f"note: the running server does this with its own settings; {', '.join(given)} ignored")
    return running


def progress_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def whole_numbers(text: str, flag: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise DeskError(f"{flag} is {text!r}: write whole numbers, for example 512,2048", code="usage")
    return numbers
