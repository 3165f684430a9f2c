"""The agents' pages: who waits for a person, and one conversation that an agent answers. The guard shows them to agents
and admins only.

The pages ask for what changed every two seconds; parts come as HTML, drawn by the same templates as the first time.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Body, FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response

from app.access.identity import caller_of
from app.domain.errors import DeskError
from app.domain.handoffs import REASONS
from app.domain.lengths import LongText
from app.domain.translation import gettext, speaking, translatable
from app.storage.audit import Audit
from app.support.queue import AgentQueue, OpenCase
from app.web.admin_frame import links_for
from app.web.error_words import UNEXPECTED
from app.web.languages import page_language, translations
from app.web.rendering import render

_WORDS = {
    "handoff-taken": translatable("Somebody else answers this customer already."),
    "handoff-closed": translatable("This conversation is with the assistant again."),
    "not-taken": translatable("Take this conversation before you answer."),
    "bad-message": translatable("An answer has 1 to 10,000 characters."),
    "no-such-handoff": translatable("This conversation is no longer there."),
    "no-such-conversation": translatable("This conversation is no longer there."),
}


def add_queue_routes(app: FastAPI, queue: AgentQueue, audit: Audit) -> None:
    """The pages, and the routes their script calls."""

    def drawn(request: Request, template: str, **values: object) -> str:
        caller = caller_of(request)
        values |= {"reasons": REASONS, "caller": caller, "links": links_for(caller), "now": datetime.now(UTC)}
        return render(f"queue/{template}.html", language=page_language(request.headers), **values)

    def reader(request: Request) -> str:
        """Who looks, for `AgentQueue.case`."""
        caller = caller_of(request)
        return "" if caller.role == "admin" else caller.name

    def case(request: Request, found: OpenCase) -> dict[str, Any]:
        values: dict[str, Any] = {"row": found.of, "handoff": found.of.handoff, "turns": found.turns}
        return {name: drawn(request, name, **values) for name in ("turns", "controls")}

    def answered(request: Request, work: Callable[[], dict[str, Any]]) -> Response:
        try:
            return JSONResponse(work(), headers={"cache-control": "no-store"})
        except DeskError as error:
            if error.is_of_database:
                raise
            with speaking(translations(page_language(request.headers))):
                words = gettext(_WORDS.get(error.code, UNEXPECTED))
            return JSONResponse({"error": words}, 404 if error.code == "no-such-handoff" else 409)

    def done(request: Request, number: int, action: str, work: Callable[[str], None]) -> Response:
        def then_case() -> dict[str, Any]:
            queue.case(number, reader(request))  # raises for what this agent may not see
            work(caller_of(request).name)
            audit.record(caller_of(request).name, f"handoff-{action}", str(number))
            return case(request, queue.case(number))

        return answered(request, then_case)

    @app.get("/admin/queue")
    def page(request: Request) -> HTMLResponse:
        return HTMLResponse(drawn(request, "queue", rows=queue.rows()), headers={"cache-control": "no-store"})

    @app.get("/admin/queue/rows")
    def rows(request: Request) -> Response:
        def work() -> dict[str, Any]:
            found = queue.rows()
            waiting = sum(row.handoff.state == "waiting" for row in found)
            return {"rows": drawn(request, "rows", rows=found), "waiting": waiting}

        return answered(request, work)

    @app.get("/admin/queue/{number}")
    def case_page(request: Request, number: int) -> Response:
        try:
            found = queue.case(number, reader(request))
        except DeskError as error:
            if error.is_of_database:
                raise
            return HTMLResponse(drawn(request, "queue", rows=queue.rows()), 404)
        values = {"row": found.of, "handoff": found.of.handoff, "turns": found.turns}
        return HTMLResponse(drawn(request, "case", **values), headers={"cache-control": "no-store"})

    @app.get("/admin/queue/{number}/now")
    def case_now(request: Request, number: int) -> Response:
        return answered(request, lambda: case(request, queue.case(number, reader(request))))

    @app.post("/admin/queue/{number}/take")
    def take(request: Request, number: int) -> Response:
        return done(request, number, "take", lambda agent: queue.take(number, agent))

    @app.post("/admin/queue/{number}/answer")
    def answer(request: Request, number: int, text: Annotated[LongText, Body(embed=True)]) -> Response:
        return done(request, number, "answer", lambda agent: queue.answer(number, agent, text))

    @app.post("/admin/queue/{number}/close")
    def close(request: Request, number: int) -> Response:
        return done(request, number, "close", lambda agent: queue.close(number))
