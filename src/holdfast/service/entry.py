"""Who may enter, with which fields, and what every route is given."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Coroutine
from functools import cached_property
from typing import Annotated, Any, TypeVar, get_type_hints

from fastapi import (
    APIRouter,
    Depends,
    File,
    Form,
    Path,
    Query,
    Request,
    Response,
    UploadFile,
    params,
)
from fastapi.routing import APIRoute
from fastapi.security import APIKeyHeader, HTTPBearer

from holdfast.deadline import Deadline
from holdfast.errors import ConfigError
from holdfast.methods import IN_SEARCH, NAMED_BEFORE, in_words
from holdfast.service.answers import API
from holdfast.service.callers import of_key, set_caller
from holdfast.service.desk import Desk
from holdfast.service.engine import shortened
from holdfast.service.keys import ROLES, Role
from holdfast.service.logs import log
from holdfast.service.pictures import LARGEST, SMALLEST
from holdfast.service.problems import (
    MEDIA_TYPE,
    ForbiddenError,
    NotAllowedError,
    NotUnderstoodError,
    ProblemAnswer,
    UnavailableError,
    WrongMediaError,
)

F = TypeVar("F", bound=Callable[..., Any])

GalleryName = Annotated[
    str | None, Form(max_length=64, description="Which gallery; the first one if left out.")
]
GalleryQuery = Annotated[str | None, Query(max_length=64, description="Which gallery.")]
K = Annotated[int, Form(ge=1, description="How many hits.")]
Picture = Annotated[UploadFile | None, File(description="The picture to ask about.")]
ItemId = Annotated[str | None, Form(max_length=512, description="Ask about this item of the gallery.")]
Digest = Annotated[
    str | None, Form(pattern="^[0-9a-f]{32}$", description="Ask about an earlier upload, by its digest.")
]
ThreatText = Annotated[
    str, Form(max_length=64, description="[query|candidates|both:]NORM:EPS[:m=M], or linf:auto, l2:auto.")
]
MethodText = Annotated[
    str | None,
    Form(
        pattern=f"^({'|'.join((*IN_SEARCH, *NAMED_BEFORE))})$",
        description=f"How hard bounds try: {in_words()}. Default: {IN_SEARCH[0]}.",
    ),
]
Side = Annotated[int, Query(ge=SMALLEST, le=LARGEST, description="No side is larger.")]
PathId = Annotated[str, Path(min_length=1, max_length=512, description="The item's id; it may have slashes.")]


def needs(role: Role) -> Callable[[F], F]:
    """The role that a key must have for this route."""

    def mark(endpoint: F) -> F:
        endpoint.role = role  # type: ignore[attr-defined]
        return endpoint

    return mark


class CheckedRoute(APIRoute):
    """A route that knows who asks, and that the body can be read, before it reads any of it."""

    @cached_property
    def fields(self) -> set[str]:
        """The names of the form's fields."""
        hints = get_type_hints(self.endpoint, include_extras=True)
        return {
            name
            for name, hint in hints.items()
            if any(isinstance(part, params.Form) for part in getattr(hint, "__metadata__", ()))
        }

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()
        role: Role | None = getattr(self.endpoint, "role", None)

        async def checked(request: Request) -> Response:
            roles = roles_of(request)
            request.state.roles = roles
            if role == "write" and role not in roles and request.app.state.keys is None:
                raise ForbiddenError("no gallery here is writable (start with --writable)")
            if role is not None and role not in roles:
                raise ForbiddenError(
                    f"this needs a key with the role '{role}'; yours has {', '.join(roles) or 'none'}"
                )
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if self.fields and kind != "multipart/form-data":
                raise WrongMediaError(
                    f"send the fields as multipart/form-data, not as '{shortened(kind) or 'nothing'}'"
                )
            return await answer(request)

        return checked


def roles_of(request: Request) -> list[Role]:
    """What the caller may do: all that the service offers where it has no keys."""
    desk, keys = request.app.state.desk, request.app.state.keys
    writable = any(served.writable for served in desk.engine)
    if keys is None:
        return [role for role in ROLES if role != "write" or writable]
    scheme, _, word = request.headers.get("authorization", "").partition(" ")
    word = request.headers.get("x-api-key") or (word.strip() if scheme.lower() == "bearer" else "")
    try:
        found = keys.find(word) if word else None
    except ConfigError as error:
        log("keys", logging.ERROR, reason=str(error))
        raise UnavailableError("the keys of this service cannot be read now") from error
    if found is None:
        said = "this key is not known" if word else "a key is needed"
        raise NotAllowedError(
            f"{said}; send one as 'Authorization: Bearer KEY' or 'X-API-Key: KEY'",
            headers={"WWW-Authenticate": "Bearer"},
        )
    request.state.key = found.name
    set_caller(of_key(found.name))
    request.app.state.rates.count(found)
    return list(found.roles)


async def known_fields(request: Request) -> None:
    """Refuse fields that the route does not have, and ones given twice: neither is what the sender thinks."""
    if not request.headers.get("content-type", "").strip().lower().startswith("multipart/"):
        return
    form = await request.form()
    known = request.scope["route"].fields
    for name in form:
        if name not in known:
            raise NotUnderstoodError(f"unknown field '{shortened(name)}'; known: {', '.join(sorted(known))}")
        if name != "images" and len(form.getlist(name)) > 1:
            raise NotUnderstoodError(f"the field '{name}' is given more than once")


async def the_desk(request: Request) -> Desk:
    """Who does the work."""
    desk: Desk = request.app.state.desk
    return desk


async def the_deadline(request: Request) -> Deadline:
    """Until when this request may be worked on."""
    deadline: Deadline = request.state.deadline
    return deadline


TheDesk = Annotated[Desk, Depends(the_desk)]
Until = Annotated[Deadline, Depends(the_deadline)]

_PROBLEM = {"model": ProblemAnswer, "content": {MEDIA_TYPE: {}}}
WRONG: dict[int | str, dict[str, Any]] = {
    code: {**_PROBLEM, "description": text}
    for code, text in {
        400: "The request is broken.",
        401: "A key is needed.",
        403: "Not allowed.",
        404: "No such gallery, item or picture.",
        408: "The request did not arrive in time.",
        409: "What is there stands against it.",
        413: "Too many bytes or pixels.",
        415: "Not multipart/form-data.",
        422: "A field is wrong, or does not fit the gallery.",
        429: "More requests than this key may make.",
        500: "A mistake of the service.",
        503: "Busy, or a gallery does not answer.",
        504: "It took too long and was stopped.",
        507: "The disk is full.",
    }.items()
}


def api_router() -> APIRouter:
    """Routes of the API: the caller is known, and the fields."""
    return APIRouter(
        prefix=API,
        route_class=CheckedRoute,
        responses=WRONG,
        dependencies=[
            Depends(HTTPBearer(auto_error=False)),
            Depends(APIKeyHeader(name="X-API-Key", auto_error=False)),
            Depends(known_fields),
        ],
    )


def file_name(image: UploadFile) -> str:
    """The last part of the name that a stranger gave his file, to be shown and nothing else."""
    return shortened(re.split(r"[/\\]", image.filename or "")[-1]) or "picture"
