"""All routes for programs, in one place. Who may call them is in `app.web.access_rules`."""

from fastapi import FastAPI

from app.access.keys import Keys
from app.api.chat import chat_router
from app.api.conversations import conversations_router
from app.api.documents import documents_router
from app.api.handoffs import handoffs_router
from app.api.metrics import metrics_router
from app.api.models import models_router
from app.desk.interface import Desk
from app.domain.callers import Record


def add_api_routes(app: FastAPI, desk: Desk, keys: Keys, record: Record) -> None:
    """Everything under /v1, and /metrics. record: into the audit log."""
    for router in (
        chat_router(desk, keys),
        models_router(desk, keys),
        conversations_router(desk),
        handoffs_router(desk, keys),
        documents_router(desk, keys, record),
        metrics_router(desk),
    ):
        app.include_router(router)
