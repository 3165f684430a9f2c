"""The commands that change and list documents: ingest, documents, forget."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from app.cli.options import Common, find_served, open_reader, open_service, recorded, takes
from app.domain.errors import DeskError

commands = typer.Typer()


@commands.command()
@takes("data_dir", "model", "device", "memory", "as_json")
def ingest(
    common: Common,
    paths: Annotated[list[Path], typer.Argument(help="Files and folders.")],
    sync: Annotated[
        bool, typer.Option("--sync", help="Remove documents whose files are gone from the folders.")
    ] = False,
    collection: Annotated[str, typer.Option(help="What the documents belong to.")] = "",
    warm: Annotated[bool, typer.Option("--warm/--no-warm", help="Let the model read the passages now.")] = True,
) -> int:
    """Bring documents in: read, split, index, and let the model read every passage once. Also beside a running desk."""
    from app.cli.progress import progress_bar
    from app.cli.reports import print_ingest
    from app.desk.json_output import ingest_json

    missing = [path for path in paths if not os.path.lexists(path)]
    if len(missing) == len(paths):
        raise DeskError(f"no such file or folder: {str(missing[0])!r}", code="no-such-file")
    running = find_served(common)
    with progress_bar() as progress:
        if running is not None:
            absolute = [os.path.abspath(path) for path in paths]
            order = {"paths": absolute, "collection": collection, "sync": sync, "warm": warm}
            report = running.ingest(order, progress)
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
    from app.desk.json_output import documents_json

    with open_reader(common.settings) as service:
        found = service.documents()
    common.show(documents_json(found), lambda: print_documents(found))


@commands.command()
@takes("data_dir", "model", "device", "as_json")
def forget(
    common: Common, document: Annotated[str, typer.Argument(help="Path of the document, or an unambiguous end of it.")]
) -> None:
    """Remove a document: text, vectors, keywords, quotes and encoded passages. Also beside a running desk."""
    from app.cli.reports import print_forgotten, print_old_copies
    from app.domain.progress import no_progress
    from app.storage.files import old_copies

    running = find_served(common)
    if running is not None:
        forgotten = running.forget(document, no_progress)
    else:
        with open_service(common.settings, "warmdesk forget") as service:
            forgotten = asdict(recorded(service).forget(document))
    copies = old_copies(common.settings.data_dir)
    document_json = {"forgotten": forgotten["document"], "removed": forgotten["removed"], "left": forgotten["left"]}

    def show() -> None:
        print_forgotten(forgotten, common.settings.model_server)
        print_old_copies(copies)

    common.show({**document_json, "old_copies": copies}, show)
