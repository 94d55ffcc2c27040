"""Whether the service works, what it serves, and its page."""

from __future__ import annotations

import mimetypes
from pathlib import Path as FilePath

from fastapi import (
    APIRouter,
    Request,
    Response,
)
from prometheus_client import CONTENT_TYPE_LATEST

from holdfast import __version__
from holdfast.goals import GOALS
from holdfast.service.answers import (
    API,
    GalleryState,
    GoalState,
    HealthAnswer,
    ImageShape,
    LimitsState,
    SmoothingState,
    Status,
)
from holdfast.service.engine import Served, stored_settings
from holdfast.service.entry import (
    WRONG,
    CheckedRoute,
    TheDesk,
    Until,
    api_router,
    needs,
)
from holdfast.service.problems import NotThereError

PAGE = FilePath(__file__).parent.parent / "page"

anyone = APIRouter()
_measured = APIRouter(route_class=CheckedRoute)
api = api_router()


@anyone.get("/healthz", response_model=HealthAnswer, responses={500: WRONG[500]})
async def healthz() -> HealthAnswer:
    """Whether the process answers."""
    return HealthAnswer(status="ok")


@anyone.get("/readyz", response_model=HealthAnswer, responses={500: WRONG[500], 503: {"model": HealthAnswer}})
async def readyz(response: Response, desk: TheDesk, until: Until) -> HealthAnswer:
    """Whether every gallery can be searched: each is, at most once a second."""
    problems = await desk.asked.run(until, desk.problems)
    if problems:
        response.status_code = 503
    return HealthAnswer(status="unavailable" if problems else "ok", problems=problems)


@anyone.get("/", include_in_schema=False)
async def page() -> Response:
    """The web page."""
    return _file("index.html")


@anyone.get("/static/{name}", include_in_schema=False)
async def static(name: str) -> Response:
    """A file of the web page."""
    return _file(name)


@_measured.get("/metrics", response_class=Response, responses={401: WRONG[401], 403: WRONG[403]})
@needs("read")
async def metrics(desk: TheDesk, until: Until) -> Response:
    """Measurements for Prometheus."""
    text = await desk.pictures.run(until, desk.metrics.text)
    return Response(text, media_type=CONTENT_TYPE_LATEST)


anyone.include_router(_measured)


@api.get("/status", response_model=Status)
@needs("read")
async def status(request: Request, desk: TheDesk, until: Until) -> Status:
    """The galleries, the limits, and what the caller may do."""
    limits = desk.limits
    galleries = await desk.pictures.run(until, lambda: [_state(served) for served in desk.engine])
    return Status(
        version=__version__,
        galleries=galleries,
        goals=[
            GoalState(name=goal.name, words=goal.words, about=goal.about, labels=goal.labels)
            for goal in GOALS.values()
        ],
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
        picture=info.embedder.picture,
        smoothed=None if how is None else SmoothingState.model_validate(how),
        says=served.embedder.says,
        boxes=list(info.boxes),
        threats=list(traits.threats),
        methods=list(traits.methods),
        attackable=traits.attackable,
        writable=served.writable,
    )


def _file(name: str) -> Response:
    """A file of the page: only one that lies in its folder, by its bare name."""
    known = {path.name: path for path in PAGE.iterdir() if path.is_file()} if PAGE.is_dir() else {}
    if name not in known:
        raise NotThereError(f"there is no page here; the API is at {API} (see {API}/openapi.json)")
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return Response(known[name].read_bytes(), media_type=kind, headers={"cache-control": "no-cache"})
