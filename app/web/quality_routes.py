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
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from app.access.identity import caller_of
from app.desk.service import Changes, Service
from app.domain.answers import BETWEEN, REASONS
from app.domain.callers import Id, Line, LongText, Record
from app.domain.errors import DeskError
from app.domain.progress import Progress
from app.domain.quality import CAUSES, ENDED_WORDS, Cause, Ended, FaqDraft, SearchExplanation
from app.domain.words import gettext, speaking, translatable
from app.storage.conversation_care import EVER, Period, Transcripts
from app.storage.people import Audit
from app.storage.tables import LARGEST_NUMBER
from app.support.faq import folded_line
from app.support.handoff import AgentQueue, OpenCase
from app.web.admin_pages import NO_STORE, admin_page
from app.web.dashboard import RANGES, Axis
from app.web.document_routes import events
from app.web.guard import refused
from app.web.rendering import UNEXPECTED, page_language, render, translations

PERIODS = (7, 30, 90, 365)  # periods of the quality page, in days
LISTED, LISTED_GROUPS = 200, 100  # maximum conversations and groups of questions in the lists


def add_quality_routes(app: FastAPI, desk: Service, transcripts: Transcripts, record: Record) -> None:
    def by(request: Request) -> Changes:
        return Changes(desk, record, caller_of(request).who)

    def page(request: Request, template: str, status: int = 200, **values: object) -> HTMLResponse:
        return admin_page(request, f"quality/{template}.html", status=status, **values)

    @app.get("/admin/quality")
    def quality(request: Request, days: Annotated[int, Query(ge=1, le=3650)] = 30, cause: Id = "") -> HTMLResponse:
        chosen: Cause | None = next((one for one in CAUSES if one == cause), None)
        shown: dict[str, Any] = {"days": days, "cause": chosen, "periods": PERIODS, "all_causes": CAUSES}
        report = desk.quality.report(days, chosen)
        known = {folded_line(text) for pair in desk.quality.faq() for text in pair.questions}
        solved = [one for one in report.groups if any(folded_line(bad.question) in known for bad in one.answers)]
        open_ = [one for one in report.groups if one not in solved]
        return page(request, "quality", report=report, open=open_[:LISTED_GROUPS], solved=solved, **shown)

    @app.get("/admin/faq")
    def faq(
        request: Request,
        id_: Annotated[int | None, Query(alias="id")] = None,
        message: Id = "",
        question: LongText = "",
        wording: Annotated[list[LongText] | None, Query(max_length=50)] = None,
    ) -> Response:
        caller = caller_of(request)
        found = transcripts.drafted(message, "" if caller.reads_all else caller.name) if message else None
        if found is None and message and not caller.reads_all:  # the message may be in any conversation
            return refused(request, 403, translatable("Your account does not have this permission."), "forbidden")
        pairs = desk.quality.faq()
        asked = FaqDraft(question=question, answer="", wordings=tuple(wording or ()))
        draft = found or asked
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
    def conversations(
        request: Request,
        query: Line = "",
        owner: Line = "",
        ended: Id = "",
        range_: Annotated[Id, Query(alias="range")] = "",
    ) -> HTMLResponse:
        axis = Axis.ending(datetime.now(UTC), range_) if range_ in RANGES else None
        kind: Ended | None = next((one for one in ENDED_WORDS if one == ended), "asked" if axis else None)
        period = EVER if axis is None else Period(since=axis.since, until=axis.until)
        found = transcripts.conversations(query, owner, LISTED, ended=kind, period=period)
        asked = {"query": query, "owner": owner, "ended": kind or "", "range": axis.name if axis else ""}
        shown: dict[str, Any] = {"ranges": RANGES, "ended_words": ENDED_WORDS, "most": LISTED, "asked": asked}
        return page(request, "conversations", summaries=found, **shown)

    @app.get("/admin/conversations/{conversation_id}")
    def conversation(request: Request, conversation_id: Id) -> HTMLResponse:
        owner, turns = transcripts.owner_of(conversation_id), transcripts.turns(conversation_id)
        status = 404 if owner is None else 200
        return page(request, "conversation", status, id=conversation_id, owner=owner, turns=turns)

    @app.get("/admin/search")
    def search(request: Request, question: LongText = "") -> HTMLResponse:
        found, problem, whole = None, "", ""
        if question.strip():
            try:
                found = desk.quality.explain(question)
                # the text that the customer would read if the model only quotes
                whole = BETWEEN.join(dict.fromkeys(part for part in (found.says, suggestion(found)) if part))
            except DeskError as error:
                problem = str(error)
        return page(request, "search", question=question, found=found, problem=problem, whole=whole)


def _saved(changes: Changes, draft: FaqDraft, id_: int | None, progress: Progress) -> dict[str, Any]:
    saved = changes.save_faq(draft, id_, progress)
    if saved.answer is None:
        return {"id": saved.id, "problem": saved.problem}
    said = saved.answer.answer
    return {"id": saved.id, "answer": said, "is_verbatim": said.strip() == draft.answer.strip()}


_WORDS = {
    "handoff-taken": translatable("Another agent already answers this customer."),
    "handoff-closed": translatable("This conversation is with the assistant again."),
    "no-suggestion": translatable("The documents have no answer to the customer's last message."),
    "not-taken": translatable("Take this conversation before you answer."),
    "bad-message": translatable("An answer must have 1 to 10,000 characters."),
    "no-such-handoff": translatable("This conversation no longer exists."),
    "no-such-conversation": translatable("This conversation no longer exists."),
}


_PAIRS = 8  # maximum FAQ pairs that a search shows


def suggestion(found: SearchExplanation) -> str:
    """Return the answer of the documents or the FAQ, without Warmdesk's own words; "" if there is none."""
    return found.says if found.why == "faq" else BETWEEN.join(one.text for one in found.statements if one.shown)


def add_queue_routes(app: FastAPI, desk: Service, transcripts: Transcripts, queue: AgentQueue, audit: Audit) -> None:
    def drawn(request: Request, template: str, **values: object) -> str:
        values |= {"reasons": REASONS, "caller": caller_of(request), "now": datetime.now(UTC)}
        return render(f"queue/{template}.html", language=page_language(request.headers), **values)

    def whole(request: Request, template: str, status: int = 200, **values: object) -> HTMLResponse:
        return admin_page(request, f"queue/{template}.html", status=status, reasons=REASONS, **values)

    def reader(request: Request) -> str:
        """Return the name for `AgentQueue.case`; "" for readers of all conversations."""
        caller = caller_of(request)
        return "" if caller.reads_all else caller.name

    def shown(found: OpenCase) -> dict[str, Any]:
        case = {"row": found.of, "handoff": found.of.handoff, "turns": found.turns}
        return {**case, "others": found.others, "looked_up": found.looked_up}

    def listed(request: Request) -> dict[str, Any]:
        return {"rows": queue.rows(), "closed": queue.closed(reader(request))}

    def parts(request: Request, found: OpenCase) -> dict[str, Any]:
        return {name: drawn(request, name, **shown(found)) for name in ("turns", "controls")}

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
            queue.case(number, reader(request))  # raises DeskError if this agent may not see the case
            work(caller_of(request).name)
            audit.record(caller_of(request).name, f"handoff-{action}", str(number))
            return parts(request, queue.case(number))

        return answered(request, then_case)

    def stepped_in(request: Request, conversation_id: str, owner: str) -> str:
        """Give a conversation to this agent. Return the URL of the case."""
        number = queue.step_in(conversation_id, owner, caller_of(request).name)
        audit.record(caller_of(request).name, "handoff-take", str(number))
        return f"/admin/queue/{number}"

    @app.get("/admin/queue")
    def page(request: Request) -> HTMLResponse:
        return whole(request, "queue", **listed(request))

    @app.get("/admin/queue/rows")
    def rows(request: Request) -> Response:
        def work() -> dict[str, Any]:
            found = listed(request)
            waiting = sum(row.handoff.state == "waiting" for row in found["rows"])
            return {"rows": drawn(request, "rows", **found), "waiting": waiting}

        return answered(request, work)

    @app.get("/admin/queue/waiting")
    def waiting() -> JSONResponse:
        return JSONResponse({"waiting": queue.num_waiting()}, headers=NO_STORE)

    @app.get("/admin/queue/faq")
    def pairs(query: Line = "") -> JSONResponse:
        """Return the pairs of the FAQ that have all words of a text."""
        words = query.casefold().split()
        pairs = [pair for pair in desk.quality.faq() if all(word in repr(pair).casefold() for word in words)]
        found = [{"question": pair.question, "answer": pair.answer} for pair in pairs[:_PAIRS]]
        return JSONResponse(found, headers=NO_STORE)

    @app.get("/admin/queue/{number}")
    def case_page(request: Request, number: int) -> Response:
        try:
            found = queue.case(number, reader(request))
        except DeskError as error:
            if error.is_of_database:
                raise
            return whole(request, "queue", 404, **listed(request))
        return whole(request, "case", **shown(found))

    @app.get("/admin/queue/{number}/now")
    def case_now(request: Request, number: int) -> Response:
        return answered(request, lambda: parts(request, queue.case(number, reader(request))))

    @app.post("/admin/queue/{number}/take")
    def take(request: Request, number: int) -> Response:
        return done(request, number, "take", lambda agent: queue.take(number, agent))

    @app.post("/admin/queue/{number}/suggest")
    def suggest(request: Request, number: int) -> Response:
        def work() -> dict[str, Any]:
            asked = queue.case(number, reader(request)).last_question
            text = suggestion(desk.quality.explain(asked)) if asked else ""
            if not text:
                raise DeskError("the documents have no answer to the last message", code="no-suggestion")
            return {"text": text}

        return answered(request, work)

    @app.post("/admin/queue/{number}/reopen")
    def reopen(request: Request, number: int) -> Response:
        def work() -> dict[str, Any]:
            case = queue.case(number, reader(request)).of
            return {"case": stepped_in(request, case.handoff.conversation_id, case.owner)}

        return answered(request, work)

    @app.post("/admin/conversations/{conversation_id}/step-in")
    def step_in(request: Request, conversation_id: Id) -> Response:
        try:
            owner = transcripts.owner_of(conversation_id) or ""
            return RedirectResponse(stepped_in(request, conversation_id, owner), 303)
        except DeskError as error:
            if error.is_of_database:
                raise
            return refused(request, 409, _WORDS.get(error.code, UNEXPECTED), error.code)

    @app.post("/admin/queue/{number}/answer")
    def answer(request: Request, number: int, text: Annotated[LongText, Body(embed=True)]) -> Response:
        return done(request, number, "answer", lambda agent: queue.answer(number, agent, text))

    @app.post("/admin/queue/{number}/close")
    def close(request: Request, number: int) -> Response:
        return done(request, number, "close", lambda agent: queue.close(number))
