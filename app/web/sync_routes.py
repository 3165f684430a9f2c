"""What the documents' page can do with synchronised folders; the guard lets admins through only."""

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import Body, FastAPI, Request
from fastapi.responses import Response

from app.access.identity import caller_of
from app.desk.interface import Desk
from app.domain.lengths import Line
from app.domain.progress import Progress
from app.domain.synced_folders import SyncResult
from app.web.document_routes import words_for
from app.web.event_stream import events

FOLDERS = "/admin/documents/folders"


def add_sync_routes(app: FastAPI, desk: Desk) -> None:
    """The routes that the page's script calls."""

    def said(request: Request, result: SyncResult) -> dict[str, Any]:
        problem = words_for(request)(result.code, result.problem)
        return {**asdict(result), "problem": problem}

    @app.post(FOLDERS)
    def save(
        request: Request,
        folder: Annotated[Line, Body()],
        every_minutes: Annotated[int, Body()],
        collection: Annotated[Line, Body()] = "",
    ) -> Response:
        def work(progress: Progress) -> dict[str, Any]:
            who = caller_of(request).who
            saved = desk.synced.save(folder.strip(), collection, every_minutes, who=who)
            return said(request, desk.synced.run(saved.folder, progress, who=who))

        return events(work, words_for(request))

    @app.post(FOLDERS + "/run")
    def run(request: Request, folder: Annotated[Line, Body(embed=True)]) -> Response:
        def work(progress: Progress) -> dict[str, Any]:
            return said(request, desk.synced.run(folder, progress, who=caller_of(request).who))

        return events(work, words_for(request))

    @app.post(FOLDERS + "/remove")
    def remove(request: Request, folder: Annotated[Line, Body(embed=True)]) -> Response:
        def work(progress: Progress) -> dict[str, Any]:
            desk.synced.remove(folder, who=caller_of(request).who)
            return {"folder": folder}

        return events(work, words_for(request))
