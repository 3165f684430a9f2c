"""The files behind an answer's sources, for the visitor whose answer it is."""

from pathlib import Path
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, PlainTextResponse, Response

from app.access.identity import caller_of
from app.desk.interface import Desk


def add_source_routes(app: FastAPI, desk: Desk) -> None:
    """The route that the chat's links "Open the file" call."""

    @app.get("/sources/{message_id}/{rank}")
    def source(request: Request, message_id: str, rank: int) -> Response:
        file = desk.source_file(message_id, rank, caller_of(request).owner)
        if file is None:
            return PlainTextResponse("This page is no longer here.\n", 404)
        return saved_file(file)


def saved_file(file: Path) -> FileResponse:
    """A document's file, to be saved and never opened within the desk: an HTML page of somebody's must not run as one
    of ours.
    """
    headers = {"content-disposition": f"attachment; filename*=UTF-8''{quote(file.name)}"}
    return FileResponse(file, media_type="application/octet-stream", headers=headers)
