"""The page of look-ups: what became of each, and a try with an operator's values, written to the audit log."""

from typing import Annotated, Any

from fastapi import FastAPI, Form, Request
from fastapi.responses import HTMLResponse

from app.access.identity import caller_of
from app.desk.service import Service
from app.domain.callers import Id, Line
from app.domain.errors import DeskError
from app.storage.people import Audit
from app.web.admin_pages import admin_page


def add_lookup_routes(app: FastAPI, desk: Service, audit: Audit) -> None:
    def page(request: Request, status: int = 200, **tried: Any) -> HTMLResponse:
        rows = [(one, desk.lookups.figures(one.name)) for one in desk.lookups.all()]
        shown = {"name": "", "given": [], "tried": None, "problem": "", **tried}
        return admin_page(request, "lookups.html", status=status, rows=rows, **shown)

    @app.get("/admin/lookups")
    def lookups(request: Request) -> HTMLResponse:
        return page(request)

    @app.post("/admin/lookups/try")
    def try_out(
        request: Request, name: Annotated[Id, Form()], given: Annotated[list[Line], Form(max_length=10)]
    ) -> HTMLResponse:
        audit.record(caller_of(request).who, "lookup-try", name)
        try:
            return page(request, name=name, given=given, tried=desk.lookups.try_out(name, given))
        except DeskError as error:
            return page(request, 400, name=name, given=given, problem=str(error))
