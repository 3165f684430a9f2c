"""What visitors may take with them or have removed: a conversation as a file, all that is stored of them. And the way
out for those who are signed in.
"""

from dataclasses import asdict
from itertools import chain

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse

from app.access.identity import caller_of
from app.desk.export import export_conversation, export_everything
from app.desk.interface import Desk
from app.domain.lengths import Id
from app.domain.translation import gettext, speaking
from app.web.cookies import VISITOR
from app.web.languages import page_language, translations
from app.web.site import Site


def add_visitor_routes(app: FastAPI, desk: Desk, site: Site) -> None:
    """Routes for whoever has the cookie; the guard lets nobody else through."""

    @app.get("/conversations/{conversation_id}/export.{kind}")
    def export(request: Request, conversation_id: Id, kind: Id) -> Response:
        with speaking(translations(page_language(request.headers))):
            file = export_conversation(desk, conversation_id, caller_of(request).owner, kind)
            if file is None:
                return PlainTextResponse(gettext("There is no such conversation.") + "\n", 404)
        return Response(file.data, media_type=file.media_type, headers=_saved_as(file.name))

    @app.get("/my-data")
    def everything(request: Request) -> Response:
        pieces = export_everything(desk, caller_of(request).owner)
        first = next(pieces)  # before the status is sent: what fails here fails with an answer
        return StreamingResponse(
            chain((first,), pieces), media_type="application/json", headers=_saved_as("my-data.json")
        )

    @app.post("/my-data/delete")
    def erase(request: Request) -> Response:
        response = JSONResponse(asdict(desk.erase(caller_of(request).owner)))
        VISITOR.drop(response, request, site)
        return response

    @app.post("/sign-out")
    def sign_out(request: Request) -> Response:
        response = RedirectResponse("/", 303)
        VISITOR.drop(response, request, site)
        return response


def _saved_as(name: str) -> dict[str, str]:
    return {"content-disposition": f'attachment; filename="{name}"', "cache-control": "no-store"}
