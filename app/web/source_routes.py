"""The files behind an answer's sources, for the visitor whose answer it is."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, Response, StreamingResponse

from app.access.identity import caller_of
from app.desk.interface import Desk
from app.domain.lengths import Id
from app.storage.files import open_without_links

_PIECE = 1 << 16


def add_source_routes(app: FastAPI, desk: Desk) -> None:
    """The route that the chat's links "Open the file" call."""

    @app.get("/sources/{message_id}/{rank}")
    def source(request: Request, message_id: Id, rank: int) -> Response:
        file = desk.source_file(message_id, rank, caller_of(request).owner)
        if file is None:
            return PlainTextResponse("This page is no longer here.\n", 404)
        return saved_file(file)


def saved_file(file: Path) -> Response:
    """A document's file, to be saved and never opened within the desk: an HTML page of somebody's must not run as one
    of ours. 404 if it is gone, or a link has taken its place.
    """
    opened = open_without_links(file)
    if opened is None:
        return PlainTextResponse("This file is no longer here.\n", 404)
    headers = {"content-disposition": f"attachment; filename*=UTF-8''{quote(file.name)}"}
    return StreamingResponse(_pieces(opened), media_type="application/octet-stream", headers=headers)


def _pieces(opened: BinaryIO) -> Iterator[bytes]:
    with opened:
        yield from iter(partial(opened.read, _PIECE), b"")
