"""/v1/models, and /v1/embeddings of the embedder that search uses."""

import time

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from app.access.identity import caller_of
from app.access.keys import Keys
from app.api.callers import count
from app.api.errors import ApiError, ApiRoute
from app.api.replies import embeddings_reply, listed, models_reply, not_found
from app.api.wire import EmbeddingRequest
from app.desk.interface import Desk
from app.domain.lengths import Line


def models_router(desk: Desk, keys: Keys) -> APIRouter:
    """The routes."""
    router = APIRouter(prefix="/v1", route_class=ApiRoute, tags=["models"])
    started = int(time.time())

    @router.get("/models")
    def list_models() -> JSONResponse:
        """The desk, its language model and its embedder."""
        return JSONResponse(listed(models_reply(desk.models(), started)))

    @router.get("/models/{model:path}")
    def get_model(model: Line) -> JSONResponse:
        """One of them."""
        for row in models_reply(desk.models(), started):
            if row["id"] == model:
                return JSONResponse(row)
        raise not_found("model")

    @router.post("/embeddings")
    async def create_embeddings(request: Request, body: EmbeddingRequest) -> JSONResponse:
        """Texts as vectors of length 1."""
        count(caller_of(request), keys)
        names = desk.models()
        if body.model != names.embedder:
            raise ApiError(404, f"there is no embedder {body.model!r}: see /v1/models", "model_not_found", "model")
        if body.dimensions not in (None, names.dimension):
            raise ApiError(400, f"the embedder gives {names.dimension} dimensions", "invalid_value", "dimensions")
        embedded = await run_in_threadpool(desk.embed, body.texts, as_questions=body.input_type == "query")
        in_base64 = body.encoding_format == "base64"
        return JSONResponse(embeddings_reply(embedded, body.model, in_base64=in_base64))

    return router
