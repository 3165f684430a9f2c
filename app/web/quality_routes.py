"""The pages of agents: bad answers, the FAQ, conversations, a test of search, and the queue of hand-offs.

Agents may open the queue, the FAQ and the test of search; the other pages show customers' conversations and are for
admins. The queue's pages poll every two seconds and get changed parts as HTML from the same templates. Scripts:
quality.js, queue.js.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Body, FastAPI, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response

from app.access.identity import caller_of
from app.desk.service import Changes, Service
from app.domain.answers import REASONS
from app.domain.callers import Id, Line, LongText, Record
from app.domain.errors import DeskError
from app.domain.progress import Progress
from app.domain.quality import CAUSES, Cause, FaqDraft
from app.domain.words import gettext, speaking, translatable
from app.storage.conversation_care import Transcripts
from app.storage.people import Audit
from app.storage.tables import LARGEST_NUMBER
from app.support.faq import folded_line
from app.support.handoff import AgentQueue, OpenCase
from app.web.admin_pages import NO_STORE, admin_page, links_for
from app.web.document_routes import events
from app.web.guard import refused
from app.web.rendering import UNEXPECTED, page_language, render, translations

PERIODS = (7, 30, 90, 365)  # periods of the quality page, in days
LISTED = 200  # maximum conversations in the list


def add_quality_routes(app: FastAPI, desk: Service, transcripts: Transcripts, record: Record) -> None:
    def by(request: Request) -> Changes:
        return Changes(desk, record, caller_of(request).who)

    def page(request: Request, template: str, status: int = 200, **values: object) -> HTMLResponse:
        return admin_page(request, f"quality/{template}.html", status=status, now=datetime.now(UTC), **values)

    @app.get("/admin/quality")
    def quality(request: Request, days: Annotated[int, Query(ge=1, le=3650)] = 30, cause: Id = "") -> HTMLResponse:
        chosen: Cause | None = next((one for one in CAUSES if one == cause), None)
        shown: dict[str, Any] = {"days": days, "cause": chosen, "periods": PERIODS, "all_causes": CAUSES}
        return page(request, "quality", report=desk.quality.report(days, chosen), **shown)

    @app.get("/admin/faq")
    def faq(
        request: Request,
        id_: Annotated[int | None, Query(alias="id")] = None,
        message: Id = "",
        question: LongText = "",
        wording: Annotated[list[LongText] | None, Query(max_length=50)] = None,
    ) -> Response:
        if message and caller_of(request).role != "admin":  # it may be in any conversation
            return refused(request, 403, translatable("Your account may not do that."), "forbidden")
        pairs = desk.quality.faq()
        asked = FaqDraft(question=question, answer="", wordings=tuple(wording or ()))
        draft = (transcripts.answered(message) if message else None) or asked
        asked_line = folded_line(draft.question)
        changed = next(
            (pair for pair in pairs if pair.id == id_ or asked_line in map(folded_line, pair.questions)), None
        )
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


def _saved(changes: Changes, draft: FaqDraft, id_: int | None, progress: Progress) -> dict[str, Any]:
    saved = changes.save_faq(draft, id_, progress)
    if saved.answer is None:
        return {"id": saved.id, "problem": saved.problem}
    said = saved.answer.answer
    return {"id": saved.id, "answer": said, "is_verbatim": said.strip() == draft.answer.strip()}


_WORDS = {
    "handoff-taken": translatable("Another agent already answers this customer."),
    "handoff-closed": translatable("This conversation is with the assistant again."),
    "not-taken": translatable("Take this conversation before you answer."),
    "bad-message": translatable("An answer has 1 to 10,000 characters."),
    "no-such-handoff": translatable("This conversation no longer exists."),
    "no-such-conversation": translatable("This conversation no longer exists."),
}


def add_queue_routes(app: FastAPI, queue: AgentQueue, audit: Audit) -> None:
    def drawn(request: Request, template: str, **values: object) -> str:
        caller = caller_of(request)
        values |= {"reasons": REASONS, "caller": caller, "links": links_for(caller), "now": datetime.now(UTC)}
        return render(f"queue/{template}.html", language=page_language(request.headers), **values)

    def reader(request: Request) -> str:
        """Return the reader's name, for `AgentQueue.case`."""
        caller = caller_of(request)
        return "" if caller.role == "admin" else caller.name

    def parts(request: Request, found: OpenCase, *names: str) -> dict[str, Any]:
        values: dict[str, Any] = {
            "row": found.of,
            "handoff": found.of.handoff,
            "turns": found.turns,
            "looked_up": found.looked_up,
        }
        return {name: drawn(request, name, **values) for name in names or ("turns", "controls")}

    def answered(request: Request, work: Callable[[], dict[str, Any]]) -> Response:
        try:
            return JSONResponse(work(), headers=NO_STORE)
        except DeskError as error:
            if error.is_of_database:
                raise
            with speaking(translations(page_language(request.headers))):
                words = gettext(_WORDS.get(error.code, UNEXPECTED))
            return JSONResponse({"error": words}, 404 if error.code == "no-such-handoff" else 409)

    def done(request: Request, number: int, action: str, work: Callable[[str], None]) -> Response:
        def then_case() -> dict[str, Any]:
            queue.case(number, reader(request))  # raises for a case that this agent may not see
            work(caller_of(request).name)
            audit.record(caller_of(request).name, f"handoff-{action}", str(number))
            return parts(request, queue.case(number))

        return answered(request, then_case)

    @app.get("/admin/queue")
    def page(request: Request) -> HTMLResponse:
        return HTMLResponse(drawn(request, "queue", rows=queue.rows()), headers=NO_STORE)

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
        return HTMLResponse(parts(request, found, "case")["case"], headers=NO_STORE)

    @app.get("/admin/queue/{number}/now")
    def case_now(request: Request, number: int) -> Response:
        return answered(request, lambda: parts(request, queue.case(number, reader(request))))

    @app.post("/admin/queue/{number}/take")
    def take(request: Request, number: int) -> Response:
        return done(request, number, "take", lambda agent: queue.take(number, agent))

    @app.post("/admin/queue/{number}/answer")
    def answer(request: Request, number: int, text: Annotated[LongText, Body(embed=True)]) -> Response:
        return done(request, number, "answer", lambda agent: queue.answer(number, agent, text))

    @app.post("/admin/queue/{number}/close")
    def close(request: Request, number: int) -> Response:
        return done(request, number, "close", lambda agent: queue.close(number))
