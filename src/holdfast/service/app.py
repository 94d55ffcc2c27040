"""The service as one application: its routes, and what it says when one fails."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Collection

from fastapi import (
    FastAPI,
    Request,
    Response,
)
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from holdfast import __version__
from holdfast.errors import HoldfastError
from holdfast.service.address import LOCAL
from holdfast.service.answers import API
from holdfast.service.bodies import BodyLimit
from holdfast.service.callers import Rates
from holdfast.service.desk import Desk
from holdfast.service.engine import shortened
from holdfast.service.guard import Guard, mistake
from holdfast.service.keys import KeyRing
from holdfast.service.logs import log
from holdfast.service.problems import (
    MEDIA_TYPE,
    document,
    headers_of,
    status_of,
)
from holdfast.service.routes import items, searching, state


def create_app(
    desk: Desk,
    keys: KeyRing | None = None,
    *,
    hosts: Collection[str] | None = LOCAL,
    on_close: Callable[[], None] | None = None,
) -> Guard:
    """The service as an ASGI application; without `keys` everyone may read and attack, and write what is writable."""

    @contextlib.asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        log("ready", galleries=[served.name for served in desk.engine], version=__version__)
        yield
        desk.close()
        if on_close is not None:
            on_close()
        log("stopped")

    app = FastAPI(
        title="Holdfast",
        version=__version__,
        description="Image search whose every hit says how far it can be trusted.",
        openapi_url=f"{API}/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=life,
    )
    app.state.desk, app.state.keys, app.state.rates = desk, keys, Rates()
    app.include_router(state.anyone)
    for part in (state, searching, items):
        app.include_router(part.api)
    app.add_exception_handler(HoldfastError, _told)
    app.add_exception_handler(RequestValidationError, _not_valid)
    app.add_exception_handler(StarletteHTTPException, _http)
    app.add_exception_handler(Exception, _mistake)
    return Guard(BodyLimit(app, desk.limits), desk.limits, desk.metrics, hosts)


def _problem(status: int, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse(document(status, detail), status, headers=headers, media_type=MEDIA_TYPE)


async def _told(request: Request, error: Exception) -> Response:
    assert isinstance(error, HoldfastError)
    if status_of(error) >= 500:
        log("unavailable", error=None, request=request.state.request, reason=str(error))
    return _problem(status_of(error), str(error), headers_of(error))


async def _mistake(request: Request, error: Exception) -> Response:
    return _problem(500, mistake(request.state.request))


async def _not_valid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    sentences = []
    for entry in error.errors()[:3]:
        where = ".".join(str(part) for part in entry["loc"][1:]) or str(entry["loc"][0])
        sentences.append(f"{shortened(where)}: {shortened(str(entry['msg']))}")
    return _problem(422, "; ".join(sentences))


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, StarletteHTTPException)
    cause = error.__cause__
    if isinstance(cause, HoldfastError):
        return _problem(status_of(cause), str(cause), headers_of(cause))
    detail = {404: "there is nothing at this address", 405: "this address does not take this method"}
    said = detail.get(error.status_code) or str(error.detail)
    return _problem(error.status_code, said, dict(error.headers or {}))
