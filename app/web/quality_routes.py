"""The pages for the quality of answers: questions that were answered badly, the FAQ, customers' conversations, and a
test of search.

Their behaviour is in quality.js. Agents may open the FAQ and the test of search, which show nothing of customers.
"""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Body, FastAPI, Query, Request
from fastapi.responses import HTMLResponse, Response

from app.access.identity import caller_of
from app.desk.changes import Changes
from app.desk.interface import Desk
from app.domain.callers import Record
from app.domain.errors import DeskError
from app.domain.lengths import Id, Line, LongText
from app.domain.progress import Progress
from app.domain.quality import CAUSES, Cause, FaqDraft, FaqPair
from app.domain.translation import translatable
from app.storage.tables import LARGEST_NUMBER
from app.storage.transcripts import Transcripts
from app.support.faq import folded_line
from app.web.admin_frame import admin_page
from app.web.event_stream import events
from app.web.guard import refused

PERIODS = (7, 30, 90, 365)
"""Days that the quality page offers."""
LISTED = 200
"""Conversations that are listed."""


def add_quality_routes(app: FastAPI, desk: Desk, transcripts: Transcripts, record: Record) -> None:
    """The pages, and the routes their script calls. record: into the audit log."""

    def by(request: Request) -> Changes:
        return Changes(desk, record, caller_of(request).who)

    def page(request: Request, template: str, status: int = 200, **values: object) -> HTMLResponse:
        return admin_page(request, f"quality/{template}.html", status=status, now=datetime.now(UTC), **values)

    @app.get("/admin/quality")
    def quality(request: Request, days: Annotated[int, Query(ge=1, le=3650)] = 30, cause: Id = "") -> HTMLResponse:
        chosen: Cause | None = next((one for one in CAUSES if one == cause), None)
        shown: dict[str, Any] = {
            "report": desk.quality.report(days, chosen),
            "days": days,
            "cause": chosen,
            "periods": PERIODS,
            "all_causes": CAUSES,
        }
        return page(request, "quality", **shown)

    @app.get("/admin/faq")
    def faq(
        request: Request,
        id_: Annotated[int | None, Query(alias="id")] = None,
        message: Id = "",
        question: LongText = "",
        wording: Annotated[list[LongText] | None, Query(max_length=50)] = None,
    ) -> Response:
        if message and caller_of(request).role != "admin":  # it may be of any conversation
            return refused(request, 403, translatable("Your account may not do that."), "forbidden")
        pairs = desk.quality.faq()
        asked = FaqDraft(question=question, answer="", wordings=tuple(wording or ()))
        draft = (transcripts.answered(message) if message else None) or asked
        changed = next((pair for pair in pairs if pair.id == id_ or _asks(pair, draft.question)), None)
        if changed is not None:
            draft = replace(changed, wordings=tuple(dict.fromkeys((*changed.wordings, *draft.wordings))))
        return page(request, "faq", pairs=pairs, draft=draft, changed=changed)

    @app.post("/admin/faq")
    def save(
        request: Request,
        question: Annotated[LongText, Body()],
        answer: Annotated[LongText, Body()],
        wordings: Annotated[list[LongText] | None, Body()] = None,
        id_: Annotated[int | None, Body(alias="id", le=LARGEST_NUMBER)] = None,
    ) -> Response:
        draft = FaqDraft(question=question, answer=answer, wordings=tuple(wordings or ()))
        changes = by(request)
        return events(lambda progress: _saved(changes, draft, id_, progress))

    @app.post("/admin/faq/delete")
    def delete(request: Request, id_: Annotated[int, Body(alias="id", embed=True, le=LARGEST_NUMBER)]) -> Response:
        changes = by(request)

        def work(progress: Progress) -> dict[str, Any]:
            changes.delete_faq(id_, progress)
            return {"id": id_}

        return events(work)

    @app.get("/admin/conversations")
    def conversations(request: Request, query: Line = "", owner: Line = "") -> HTMLResponse:
        found = transcripts.conversations(query, owner, LISTED)
        return page(request, "conversations", summaries=found, query=query, owner=owner, most=LISTED)

    @app.get("/admin/conversations/{conversation_id}")
    def conversation(request: Request, conversation_id: Id) -> HTMLResponse:
        owner, turns = transcripts.owner_of(conversation_id), transcripts.turns(conversation_id)
        status = 404 if owner is None else 200
        return page(request, "conversation", status, owner=owner, turns=turns)

    @app.get("/admin/search")
    def search(request: Request, question: LongText = "") -> HTMLResponse:
        found, problem = None, ""
        if question.strip():
            try:
                found = desk.quality.explain(question)
            except DeskError as error:
                problem = str(error)
        return page(request, "search", question=question, found=found, problem=problem)


def _asks(pair: FaqPair, question: str) -> bool:
    return folded_line(question) in map(folded_line, pair.questions)


def _saved(changes: Changes, draft: FaqDraft, id_: int | None, progress: Progress) -> dict[str, Any]:
    saved = changes.save_faq(draft, id_, progress)
    if saved.answer is None:
        return {"id": saved.id, "problem": saved.problem}
    said = saved.answer.answer
    return {"id": saved.id, "answer": said, "is_verbatim": said.strip() == draft.answer.strip()}
