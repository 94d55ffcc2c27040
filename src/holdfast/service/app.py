"""The routes of the service."""

from __future__ import annotations

import base64
import contextlib
import logging
import mimetypes
import re
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from functools import cached_property
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from fastapi import (
    APIRouter,
    Depends,
    FastAPI,
    File,
    Form,
    Path,
    Query,
    Request,
    Response,
    UploadFile,
    params,
)
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from fastapi.security import APIKeyHeader, HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException as StarletteHTTPException

from holdfast import __version__
from holdfast.deadline import Deadline
from holdfast.errors import ConfigError, HoldfastError
from holdfast.evaluate.cases import difference
from holdfast.evaluate.photo import png
from holdfast.gallery import Item
from holdfast.service import desk as desks
from holdfast.service.address import LOCAL
from holdfast.service.answers import (
    API,
    AttackAnswer,
    BatchAnswer,
    GalleryState,
    HealthAnswer,
    ImageShape,
    ItemAnswer,
    ItemsAnswer,
    LimitsState,
    Move,
    QueryState,
    RemovedAnswer,
    SearchAnswer,
    SmoothingState,
    Status,
    item_url,
    search_answer,
)
from holdfast.service.attacking import Wanted
from holdfast.service.desk import Desk
from holdfast.service.engine import Served, shortened, stored_settings
from holdfast.service.guard import Guard, mistake
from holdfast.service.keys import ROLES, KeyRing, Role
from holdfast.service.limits import BodyLimit
from holdfast.service.logs import log
from holdfast.service.pictures import LARGEST, SMALLEST, digest_of
from holdfast.service.problems import (
    MEDIA_TYPE,
    ForbiddenError,
    NotAllowedError,
    NotThereError,
    NotUnderstoodError,
    ProblemAnswer,
    TooLargeError,
    UnavailableError,
    WrongMediaError,
    document,
    headers_of,
    status_of,
)
from holdfast.service.writing import add_item, remove_item
from holdfast.threat import Threat

PAGE = FilePath(__file__).parent / "page"
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
Side = Annotated[int, Query(ge=SMALLEST, le=LARGEST, description="No side is larger.")]
PathId = Annotated[str, Path(min_length=1, max_length=512, description="The item's id; it may have slashes.")]


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
    app.state.desk, app.state.keys = desk, keys
    app.include_router(_open)
    app.include_router(_api)
    app.add_exception_handler(HoldfastError, _told)
    app.add_exception_handler(RequestValidationError, _not_valid)
    app.add_exception_handler(StarletteHTTPException, _http)
    app.add_exception_handler(Exception, _mistake)
    return Guard(BodyLimit(app, desk.limits), desk.limits, desk.metrics, hosts)


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
_WRONG: dict[int | str, dict[str, Any]] = {
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
        500: "A mistake of the service.",
        503: "Busy, or a gallery does not answer.",
        504: "It took too long and was stopped.",
        507: "The disk is full.",
    }.items()
}

_open = APIRouter()
_api = APIRouter(
    prefix=API,
    route_class=CheckedRoute,
    responses=_WRONG,
    dependencies=[
        Depends(HTTPBearer(auto_error=False)),
        Depends(APIKeyHeader(name="X-API-Key", auto_error=False)),
        Depends(known_fields),
    ],
)
_measured = APIRouter(route_class=CheckedRoute)


@_open.get("/healthz", response_model=HealthAnswer, responses={500: _WRONG[500]})
async def healthz() -> HealthAnswer:
    """Whether the process answers."""
    return HealthAnswer(status="ok")


@_open.get("/readyz", response_model=HealthAnswer, responses={500: _WRONG[500], 503: {"model": HealthAnswer}})
async def readyz(response: Response, desk: TheDesk, until: Until) -> HealthAnswer:
    """Whether every gallery answers."""

    def ask() -> list[str]:
        problems = []
        for served in desk.engine:
            try:
                served.info()
            except UnavailableError as error:
                problems.append(str(error))
        return problems

    problems = await desk.asked.run(until, ask)
    if problems:
        response.status_code = 503
    return HealthAnswer(status="unavailable" if problems else "ok", problems=problems)


@_open.get("/", include_in_schema=False)
async def page() -> Response:
    """The web page."""
    return _file("index.html")


@_open.get("/static/{name}", include_in_schema=False)
async def static(name: str) -> Response:
    """A file of the web page."""
    return _file(name)


@_measured.get("/metrics", response_class=Response, responses={401: _WRONG[401], 403: _WRONG[403]})
@needs("read")
async def metrics(desk: TheDesk, until: Until) -> Response:
    """Measurements for Prometheus."""
    text = await desk.pictures.run(until, desk.metrics.text)
    return Response(text, media_type=CONTENT_TYPE_LATEST)


_open.include_router(_measured)


@_api.get("/status", response_model=Status)
@needs("read")
async def status(request: Request, desk: TheDesk, until: Until) -> Status:
    """The galleries, the limits, and what the caller may do."""
    limits = desk.limits
    galleries = await desk.pictures.run(until, lambda: [_state(served) for served in desk.engine])
    return Status(
        version=__version__,
        galleries=galleries,
        limits=LimitsState(
            k=limits.k,
            bytes=limits.bytes,
            pixels=limits.pixels,
            batch=limits.batch,
            attack_steps=limits.attack_steps,
            seconds=limits.seconds,
        ),
        roles=list(request.state.roles),
    )


@_api.post("/search", response_model=SearchAnswer)
@needs("read")
async def search(
    desk: TheDesk,
    until: Until,
    image: Picture = None,
    id: ItemId = None,
    query: Digest = None,
    gallery: GalleryName = None,
    k: K = 10,
) -> SearchAnswer:
    """The nearest candidates of a picture: exactly one of image, id and query."""
    served = desk.engine.get(gallery)
    _check_k(desk, k)
    asked = await _asked(desk, served, image, id, query, until)
    outcome = await desk.plain(served, asked, k, until)
    return search_answer(outcome, _query_state(asked, served), served.name)


@_api.post("/search/certified", response_model=SearchAnswer)
@needs("read")
async def certified(
    desk: TheDesk,
    until: Until,
    threat: ThreatText,
    image: Picture = None,
    id: ItemId = None,
    query: Digest = None,
    gallery: GalleryName = None,
    k: K = 10,
    method: Annotated[
        Literal["interval", "elided", "crown"], Form(description="How hard to try.")
    ] = "interval",
    seed: Annotated[
        int | None, Form(ge=0, lt=2**53, description="Repeats a search of a smoothed gallery.")
    ] = None,
) -> SearchAnswer:
    """The nearest candidates, and what an attacker within the threat cannot do to each."""
    served = desk.engine.get(gallery)
    _check_k(desk, k)
    wanted = Threat.parse(threat)
    asked = await _asked(desk, served, image, id, query, until)
    outcome = await desk.certify(served, asked, k, wanted, method, seed, until)
    return search_answer(outcome, _query_state(asked, served), served.name)


@_api.post("/search/batch", response_model=BatchAnswer)
@needs("read")
async def batch(
    desk: TheDesk,
    until: Until,
    images: Annotated[list[UploadFile], File(min_length=1, description="The pictures to ask about.")],
    gallery: GalleryName = None,
    k: K = 10,
) -> Response:
    """The nearest candidates of several pictures; all are answered, or none."""
    served = desk.engine.get(gallery)
    _check_k(desk, k)
    if len(images) > desk.limits.batch:
        raise TooLargeError(
            f"{len(images)} pictures at once are more than the {desk.limits.batch} that are taken"
        )
    if len(images) * k > 4 * desk.limits.k:
        raise TooLargeError(
            f"{len(images)} pictures with k {k} are more than the {4 * desk.limits.k} hits that one batch gives"
        )
    results = []
    for number, image in enumerate(images, start=1):
        try:
            asked = await desk.uploaded(served, await image.read(), _file_name(image), until)
        except HoldfastError as error:
            raise _Numbered(number, error) from error
        results.append(asked)
    outcomes = await desk.plain_batch(served, results, k, until)

    def written() -> str:
        found = [
            search_answer(outcome, _query_state(asked, served), served.name)
            for outcome, asked in zip(outcomes, results, strict=True)
        ]
        return BatchAnswer(results=found).model_dump_json()

    # Thousands of hits: who else waits is answered meanwhile.
    return Response(await desk.uploads.run(until, written), media_type="application/json")


@_api.post("/attack", response_model=AttackAnswer)
@needs("attack")
async def attack(
    desk: TheDesk,
    until: Until,
    threat: ThreatText,
    objective: Annotated[Wanted, Form(description="What the attacker wants.")] = "lower",
    target: Annotated[str | None, Form(max_length=512, description="The item to lower or raise.")] = None,
    steps: Annotated[int, Form(ge=1, description="Gradient steps.")] = 50,
    image: Picture = None,
    id: ItemId = None,
    query: Digest = None,
    gallery: GalleryName = None,
    k: K = 10,
) -> AttackAnswer:
    """Alter the picture within the threat so that its search goes wrong, and say what held."""
    served = desk.engine.get(gallery)
    _check_k(desk, k)
    if steps > desk.limits.attack_steps:
        raise NotUnderstoodError(
            f"an attack takes at most {desk.limits.attack_steps} steps here, not {steps}"
        )
    wanted = Threat.parse(threat)
    asked = await _asked(desk, served, image, id, query, until)
    done = await desk.attack(served, asked, k, wanted, objective, target, steps, until)
    change, amplify = difference(asked.pixels, done.altered)
    shown = _query_state(asked, served)
    altered = QueryState(name=f"{asked.name}, altered", digest=None, id=None, image=None)
    return AttackAnswer(
        objective=objective,
        target=done.target,
        threat=str(done.threat),
        clean=_data_url(png(asked.pixels)),
        altered=_data_url(png(done.altered)),
        difference=_data_url(png(change)),
        amplify=amplify,
        before=search_answer(done.before, shown, served.name),
        after=search_answer(done.after, altered, served.name),
        moves=[Move(id=move.id, before=move.before, after=move.after) for move in done.moves],
        held=done.held,
        steps=steps,
        seconds=round(done.seconds, 6),
    )


@_api.get("/items", response_model=ItemsAnswer)
@needs("read")
async def examples(
    desk: TheDesk,
    until: Until,
    gallery: GalleryQuery = None,
    limit: Annotated[int, Query(ge=1, le=100, description="How many, at most.")] = 12,
) -> ItemsAnswer:
    """Some items from all over the gallery: examples to ask about."""
    served = desk.engine.get(gallery)
    found, generation = await desk.pictures.run(
        until, lambda: (served.examples(limit), served.info().generation)
    )
    return ItemsAnswer(items=[_item_answer(item, served, generation) for item in found])


@_api.post("/items", response_model=ItemAnswer, status_code=201)
@needs("write")
async def add(
    desk: TheDesk,
    until: Until,
    image: Annotated[UploadFile, File(description="The picture.")],
    id: Annotated[str, Form(min_length=1, max_length=512, description="Its id, new unless replaced.")],
    label: Annotated[str | None, Form(max_length=512)] = None,
    replace: Annotated[bool, Form(description="Replace an item of this id.")] = False,
    gallery: GalleryName = None,
) -> ItemAnswer:
    """Add a picture to a gallery, which must be served as writable."""
    served = desk.engine.get(gallery)
    asked = await desk.uploaded(served, await image.read(), _file_name(image), until)
    item, generation = await desk.writes.run(
        until, lambda: add_item(served, asked.content, asked.pixels, id, label, replace=replace)
    )
    return _item_answer(item, served, generation)


@_api.get(
    "/items/{id:path}/image",
    response_class=Response,
    responses={200: {"content": {"image/png": {}, "image/jpeg": {}}}, 304: {"description": "Not changed."}},
)
@needs("read")
async def item_image(
    request: Request, desk: TheDesk, until: Until, id: PathId, gallery: GalleryQuery = None, size: Side = 256
) -> Response:
    """An item's picture, small."""
    content, kind = await desk.show_item(desk.engine.get(gallery), id, size, until)
    return _picture(request, content, kind)


@_api.get("/items/{id:path}", response_model=ItemAnswer)
@needs("read")
async def item(desk: TheDesk, until: Until, id: PathId, gallery: GalleryQuery = None) -> ItemAnswer:
    """What the gallery says of an item."""
    served = desk.engine.get(gallery)
    found, generation = await desk.pictures.run(until, lambda: (served.item(id), served.info().generation))
    return _item_answer(found, served, generation)


@_api.delete("/items/{id:path}", response_model=RemovedAnswer)
@needs("write")
async def remove(desk: TheDesk, until: Until, id: PathId, gallery: GalleryQuery = None) -> RemovedAnswer:
    """Remove an item, and its picture if it was uploaded."""
    served = desk.engine.get(gallery)
    generation = await desk.writes.run(until, lambda: remove_item(served, id))
    return RemovedAnswer(id=id, gallery=served.name, removed=1, generation=generation)


@_api.get(
    "/queries/{digest}/image",
    response_class=Response,
    responses={200: {"content": {"image/png": {}, "image/jpeg": {}}}, 304: {"description": "Not changed."}},
)
@needs("read")
async def query_image(
    request: Request,
    desk: TheDesk,
    until: Until,
    digest: Annotated[str, Path(pattern="^[0-9a-f]{32}$")],
    size: Side = 512,
) -> Response:
    """A picture that was searched for, as long as it is kept."""
    content, kind = await desk.show_query(digest, size, until)
    return _picture(request, content, kind)


class _Numbered(NotUnderstoodError):
    """What is wrong with one picture of several."""

    def __init__(self, number: int, error: HoldfastError) -> None:
        super().__init__(f"picture {number}: {error}", headers=headers_of(error))
        self.status = status_of(error)


async def _asked(
    desk: Desk,
    served: Served,
    image: UploadFile | None,
    id: str | None,
    query: str | None,
    until: Deadline,
) -> desks.Query:
    given = [name for name, value in (("image", image), ("id", id), ("query", query)) if value is not None]
    if len(given) != 1:
        raise NotUnderstoodError(
            f"send exactly one of image, id and query, not {' and '.join(given) or 'none of them'}"
        )
    if image is not None:
        return await desk.uploaded(served, await image.read(), _file_name(image), until)
    if query is not None:
        return await desk.earlier(served, query, until)
    assert id is not None
    return await desk.of_item(served, id, until)


def _item_answer(item: Item, served: Served, generation: int) -> ItemAnswer:
    return ItemAnswer(
        id=item.id,
        label=item.label,
        digest=item.digest,
        image=item_url(item, served.name),
        gallery=served.name,
        generation=generation,
    )


def _check_k(desk: Desk, k: int) -> None:
    if k > desk.limits.k:
        raise NotUnderstoodError(f"k is at most {desk.limits.k} here, not {k}")


def _file_name(image: UploadFile) -> str:
    """The last part of the name that a stranger gave his file, to be shown and nothing else."""
    return shortened(re.split(r"[/\\]", image.filename or "")[-1]) or "picture"


def _query_state(asked: desks.Query, served: Served) -> QueryState:
    if asked.item is not None:
        return QueryState(name=asked.name, digest=None, id=asked.id, image=item_url(asked.item, served.name))
    return QueryState(
        name=asked.name, digest=asked.digest, id=None, image=f"{API}/queries/{asked.digest}/image"
    )


def _state(served: Served) -> GalleryState:
    info, available = served.last_info()
    traits = served.traits(info)
    spec, how = served.embedder.spec, stored_settings(info)
    return GalleryState(
        name=served.name,
        available=available,
        images=info.count,
        dim=info.dim,
        generation=info.generation,
        fingerprint=info.embedder.fingerprint,
        architecture=info.embedder.card.get("architecture", {}).get("name"),
        image=ImageShape(channels=spec.channels, height=spec.height, width=spec.width),
        smoothed=None if how is None else SmoothingState.model_validate(how),
        boxes=list(info.boxes),
        threats=list(traits.threats),
        methods=list(traits.methods),
        attackable=traits.attackable,
        writable=served.writable,
    )


def _data_url(content: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


def _picture(request: Request, content: bytes, kind: str) -> Response:
    """The picture, or that the caller has it already."""
    mark = f'"{digest_of(content)}"'
    headers = {"etag": mark, "cache-control": "private, no-cache"}
    if request.headers.get("if-none-match") == mark:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=kind, headers=headers)


def _file(name: str) -> Response:
    """A file of the page: only one that lies in its folder, by its bare name."""
    known = {path.name: path for path in PAGE.iterdir() if path.is_file()} if PAGE.is_dir() else {}
    if name not in known:
        raise NotThereError(f"there is no page here; the API is at {API} (see {API}/openapi.json)")
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return Response(known[name].read_bytes(), media_type=kind, headers={"cache-control": "no-cache"})


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
