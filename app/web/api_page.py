"""What programs can call, for admins: the OpenAPI document, and a page made of it. No viewer from elsewhere is loaded.
What is tried out there is sent with a key that the reader types, never with the reader's sign-in, whose cookie is sent
to /admin only: no other page can make a browser call /v1 in an admin's name.

Not covered: the routes themselves (`app.api`).
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse, JSONResponse

from app.web.admin_frame import NO_STORE, admin_page

FOR_PROGRAMS = ("/v1/", "/metrics", "/healthz", "/readyz")
"""How the paths begin that are described."""


@dataclass(frozen=True, slots=True)
class Field:
    """A parameter or a field of a body. kind: its type, in words."""

    name: str
    kind: str
    required: bool
    words: str


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path, with what it takes. is_json: whether its body is JSON, and no form with a file."""

    method: str
    path: str
    words: str
    parameters: tuple[Field, ...] = ()
    body: tuple[Field, ...] = field(default=())
    is_json: bool = False

    @property
    def draft(self) -> str:
        """A body to be filled in, with what is required."""
        return json.dumps({one.name: [] if one.kind.startswith("list") else "" for one in self.body if one.required})


def add_api_page(app: FastAPI, public_url: str | None) -> None:
    """The page and its document; the guard shows them to admins only. public_url: where the desk is reached, if that
    is not what the request says.
    """

    @app.get("/admin/openapi.json")
    def document() -> JSONResponse:
        return JSONResponse(describe(app), headers=NO_STORE)

    @app.get("/admin/api")
    def page(request: Request) -> HTMLResponse:
        described, base = list(operations(describe(app))), public_url or str(request.base_url)
        return admin_page(request, "api.html", operations=described, base=base.rstrip("/"))


def describe(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document of what programs can call."""
    found = get_openapi(title=app.title, version="1", routes=app.routes)
    found["paths"] = {path: one for path, one in found["paths"].items() if path.startswith(FOR_PROGRAMS)}
    schemes = {"key": {"type": "http", "scheme": "bearer", "description": "An API key: warmdesk keys create NAME"}}
    found.setdefault("components", {})["securitySchemes"] = schemes
    found["security"] = [{"key": []}]
    return found


def operations(document: Mapping[str, Any]) -> Iterator[Operation]:
    """What a document describes, in its order."""
    for path, methods in document["paths"].items():
        for method, one in methods.items():
            yield Operation(
                method=method.upper(),
                path=path,
                words=" ".join(one.get("description", "").split()),
                parameters=tuple(
                    Field(row["name"], kind_of(row["schema"]), row.get("required", False), row.get("description", ""))
                    for row in one.get("parameters", ())
                ),
                body=tuple(_body(one, document)),
                is_json="application/json" in one.get("requestBody", {}).get("content", {}),
            )


def _body(operation: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[Field]:
    for content in operation.get("requestBody", {}).get("content", {}).values():
        schema = document["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]
        required = schema.get("required", ())
        for name, row in schema["properties"].items():
            yield Field(name, kind_of(row), name in required, row.get("description", ""))


def kind_of(schema: Mapping[str, Any]) -> str:
    """The type of a value, in words."""
    if "anyOf" in schema:
        kinds = dict.fromkeys(kind_of(one) for one in schema["anyOf"] if one.get("type") != "null")
        return " or ".join(kinds)
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema or "const" in schema:
        return ", ".join(map(repr, schema.get("enum", [schema.get("const")])))
    if schema.get("type") == "array":
        return f"list of {kind_of(schema['items'])}"
    return (
        "file" if "contentMediaType" in schema or schema.get("format") == "binary" else str(schema.get("type", "any"))
    )
