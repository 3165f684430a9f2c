"""The admins' page of who did what."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.responses import HTMLResponse

from app.domain.callers import COMMAND_LINE, SCHEDULE
from app.domain.translation import translatable
from app.storage.audit import Audit
from app.storage.tables import LARGEST_NUMBER
from app.web.admin_frame import admin_page

ACTIONS: Mapping[str, str] = {
    "sign-in": translatable("signed in"),
    "sign-in-failed": translatable("could not sign in: wrong name or password"),
    "account-add": translatable("added the account"),
    "account-role": translatable("changed the role of"),
    "account-password": translatable("made a new password for"),
    "account-remove": translatable("removed the account"),
    "key-create": translatable("made the key"),
    "key-revoke": translatable("revoked the key"),
    "document-add": translatable("added the document"),
    "document-ingest": translatable("took in documents from"),
    "document-forget": translatable("forgot the document"),
    "collection-forget": translatable("forgot the collection"),
    "sync-save": translatable("set up the synchronised folder"),
    "sync-remove": translatable("ended the synchronised folder"),
    "sync": translatable("synchronised the folder"),
    "visitor-erase": translatable("removed everything of a customer"),
    "backup": translatable("made the backup"),
    "faq-add": translatable("wrote the FAQ number"),
    "faq-change": translatable("changed the FAQ number"),
    "faq-delete": translatable("deleted the FAQ number"),
    "settings": translatable("changed the settings"),
    "handoff-take": translatable("took over the conversation number"),
    "handoff-answer": translatable("answered in the conversation number"),
    "handoff-close": translatable("gave back the conversation number"),
    "module-warm": translatable("made ready the passage"),
    "module-evict": translatable("took out of memory the passage"),
    "module-keep": translatable("kept the passage"),
    "module-release": translatable("no longer kept the passage"),
    "module-verify": translatable("verified the passage"),
}
"""What was done, in words; an action that is not here is shown as it is called."""
WHO: Mapping[str, str] = {
    COMMAND_LINE: translatable("command line"),
    SCHEDULE: translatable("the schedule"),
    "": translatable("somebody"),
}
"""Who did it, where that is no name. "": whoever tried to sign in under a name that no account has."""
SHOWN = 100


def add_audit_page(app: FastAPI, audit: Audit) -> None:
    """The page."""

    @app.get("/admin/audit")
    def page(request: Request, before: Annotated[int | None, Query(le=LARGEST_NUMBER)] = None) -> HTMLResponse:
        entries = audit.latest(SHOWN + 1, before)
        values: dict[str, Any] = {
            "entries": entries[:SHOWN],
            "has_more": len(entries) > SHOWN,
            "actions": ACTIONS,
            "who": WHO,
        }
        return admin_page(request, "audit.html", now=datetime.now(UTC), **values)
