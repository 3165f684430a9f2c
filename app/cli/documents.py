"""The commands that change and list documents (ingest, documents, forget) and synchronised folders and websites (sync
add, list, remove, run). They also work while the server runs, which reads these sources when they are due.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.options import Common, find_served, open_reader, open_service, open_stored, recorded, takes
from app.domain.callers import COMMAND_LINE
from app.domain.documents import READ, WHOLE_SITE, SiteOptions, is_website
from app.domain.errors import DeskError

commands = typer.Typer()


@commands.command()
@takes("data_dir", "model", "device", "memory", "as_json")
def ingest(
    common: Common,
    paths: Annotated[list[Path], typer.Argument(help="Files and folders.")],
    sync: Annotated[
        bool, typer.Option("--sync", help="Delete documents whose files are gone from the folders.")
    ] = False,
    collection: Annotated[str, typer.Option(help="Collection of the documents.")] = "",
    warm: Annotated[bool, typer.Option("--warm/--no-warm", help="Encode the passages now.")] = True,
) -> int:
    """Add documents: read, split, index and encode every passage once. Works while the server runs."""
    from app.cli.reports import print_ingest, progress_bar
    from app.desk.output import ingest_json

    missing = [path for path in paths if not os.path.lexists(path)]
    if len(missing) == len(paths):
        raise DeskError(f"no such file or folder: {str(missing[0])!r}", code="no-such-file")
    running = find_served(common)
    with progress_bar() as progress:
        if running is not None:
            absolute = [os.path.abspath(path) for path in paths]
            order = {"paths": absolute, "collection": collection, "sync": sync, "warm": warm}
            report = running("/ingest", order, progress)
        else:
            with open_service(common.settings, "warmdesk ingest") as service:
                taken = recorded(service).ingest(paths, progress, collection=collection, sync=sync, warm=warm)
                report = ingest_json(taken)
    common.show(report, lambda: print_ingest(report))
    return 1 if report["failed"] and not report["documents"] else 0


@commands.command()
@takes("data_dir", "as_json")
def documents(common: Common) -> None:
    """List the documents."""
    from app.cli.reports import print_documents
    from app.desk.output import documents_json
    from app.storage.library import Library

    with open_stored(common.settings) as database:
        found = Library(database).documents()
    common.show(documents_json(found), lambda: print_documents(found))


@commands.command()
@takes("data_dir", "model", "device", "as_json")
def forget(
    common: Common, document: Annotated[str, typer.Argument(help="Path of the document, or a unique suffix of it.")]
) -> None:
    """Delete a document: text, vectors, keywords, quotes and encoded passages. Works while the server runs."""
    from app.cli.reports import print_forgotten, print_old_copies
    from app.storage.files import old_copies

    running = find_served(common)
    if running is not None:
        forgotten = running("/forget", {"document": document})
    else:
        with open_service(common.settings, "warmdesk forget") as service:
            forgotten = asdict(recorded(service).forget(document))
    copies = old_copies(common.settings.data_dir)
    document_json = {"forgotten": forgotten["document"], "removed": forgotten["removed"], "left": forgotten["left"]}

    def show() -> None:
        print_forgotten(forgotten, common.settings.model_server)
        print_old_copies(copies)

    common.show({**document_json, "old_copies": copies}, show)


sync = typer.Typer(no_args_is_help=True, help="Folders and websites that the server re-reads regularly.")
commands.add_typer(sync, name="sync")

Source = Annotated[str, typer.Argument(help="The folder, or the address of the website.", metavar="SOURCE")]


@sync.command()
@takes("data_dir", "model", "device", "as_json")
def add(
    common: Common,
    source: Source,
    every: Annotated[
        int | None, typer.Option(help="Minutes between two runs.", show_default="60; websites 1440")
    ] = None,
    collection: Annotated[str, typer.Option(help="Collection of the documents.")] = "",
    pages: Annotated[int, typer.Option(help="Website: maximum pages to request in a run.")] = WHOLE_SITE.pages,
    include: Annotated[
        list[str] | None, typer.Option(help='Website: more pages of its host, like "/faq/*". May be repeated.')
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help='Website: pages to skip, like "/blog/*". May be repeated.')
    ] = None,
    is_try: Annotated[
        bool, typer.Option("--try", help="Website: read its first pages, report, and store nothing.")
    ] = False,
) -> int:
    """Synchronise a folder or website from now on, or change its settings; it is read at once."""
    from app.cli.reports import print_reasons, progress_bar

    site = SiteOptions(pages=pages, include=tuple(include or ()), exclude=tuple(exclude or ()))
    if is_try:
        with _open(common) as service, progress_bar() as progress:
            reasons = service.synced.try_out(source, site, progress)
        common.show({"reasons": [asdict(one) for one in reasons]}, lambda: print_reasons(reasons))
        return 0 if any(one.reason == READ for one in reasons) else 1
    minutes = (24 * 60 if is_website(source) else 60) if every is None else every
    with _open(common) as service:
        saved = service.synced.save(_place(source), collection, minutes, site, who=COMMAND_LINE)
        return _run(common, service, [saved.folder])


@sync.command("list")
@takes("data_dir", "as_json")
def list_(common: Common) -> None:
    """List the folders and websites, with the result of the last run."""
    from app.cli.reports import print_synced
    from app.desk.output import synced_json
    from app.storage.faq import SyncedFolderTable

    with open_stored(common.settings) as database:
        folders = SyncedFolderTable(database).all()
    common.show({"folders": [synced_json(one) for one in folders]}, lambda: print_synced(folders))


@sync.command()
@takes("data_dir", "as_json")
def remove(common: Common, source: Source) -> None:
    """Stop synchronising a folder or website. Its documents stay."""
    with _open(common) as service:
        path = _known(service, source)
        service.synced.remove(path, who=COMMAND_LINE)
    common.show({"removed": path}, lambda: print(f"{path} is no longer synchronised; its documents stay"))


@sync.command()
@takes("data_dir", "model", "device", "as_json")
def run(
    common: Common,
    source: Annotated[str | None, typer.Argument(help="The folder or website.", show_default="all")] = None,
    remove_gone: Annotated[
        bool, typer.Option("--remove-gone", help="Website: delete documents of missing pages, even if many.")
    ] = False,
) -> int:
    """Read one synchronised folder or website now, or all of them, and report the changes."""
    with _open(common) as service:
        paths = [one.folder for one in service.synced.all()] if source is None else [_known(service, source)]
        return _run(common, service, paths, accepts_losses=remove_gone)


def _run(common: Common, service: Any, folders: list[str], *, accepts_losses: bool = False) -> int:
    """Read folders and websites, in the server if one runs, and show the results. Returns the command's status."""
    from app.cli.reports import print_synced, progress_bar
    from app.desk.output import synced_json

    running = find_served(common)
    for folder in folders:
        with progress_bar() as progress:
            if running is not None:
                running("/sync", {"folder": folder, "accepts_losses": accepts_losses}, progress)
            else:
                service.synced.run(folder, progress, who=COMMAND_LINE, accepts_losses=accepts_losses)
    done = [one for one in service.synced.all() if one.folder in folders]
    common.show({"folders": [synced_json(one) for one in done]}, lambda: print_synced(done))
    return 0 if all(one.last_result is not None and one.last_result.is_ok for one in done) else 1


@contextmanager
def _open(common: Common) -> Iterator[Any]:
    """Open a desk whose folders can be changed. A running server reads the change from the database."""
    from app.cli.served import find_running

    if find_running(common.settings.data_dir) is not None:
        with open_reader(common.settings) as service:
            yield service
    else:
        with open_service(common.settings, "warmdesk sync") as service:
            yield service


def _place(source: str) -> str:
    return source if is_website(source) else os.path.abspath(Path(source).expanduser())


def _known(service: Any, source: str) -> str:
    given = _place(source)
    stored = {one.folder for one in service.synced.all()}
    others = (given.rstrip("/"),) if is_website(given) else (os.path.realpath(given),)
    return next((path for path in (given, *others) if path in stored), given)
