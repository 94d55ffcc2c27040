"""The routes that search, certify and attack."""

from __future__ import annotations

import base64
from typing import Annotated

from fastapi import (
    File,
    Form,
    Response,
    UploadFile,
)

from holdfast.data.encode import png
from holdfast.deadline import Deadline
from holdfast.errors import HoldfastError
from holdfast.evaluate.cases import difference
from holdfast.gallery.provers import Options
from holdfast.goals import GOALS, goals_in_words
from holdfast.service import desk as desks
from holdfast.service.answers import (
    API,
    AttackAnswer,
    BatchAnswer,
    Move,
    QueryState,
    SearchAnswer,
    item_url,
    search_answer,
)
from holdfast.service.attacking import outcome
from holdfast.service.desk import Desk
from holdfast.service.engine import Served
from holdfast.service.entry import (
    Digest,
    GalleryName,
    ItemId,
    K,
    MethodText,
    Picture,
    TheDesk,
    ThreatText,
    Until,
    api_router,
    file_name,
    needs,
)
from holdfast.service.problems import (
    NotUnderstoodError,
    TooLargeError,
    headers_of,
    status_of,
)
from holdfast.threat import Threat

api = api_router()

GoalText = Annotated[
    str | None,
    Form(
        max_length=600,
        description=f"What the attacker wants: {goals_in_words()}. The first of these if left out.",
        json_schema_extra={"examples": list(GOALS)},
    ),
]
OldGoalText = Annotated[
    str | None, Form(max_length=600, deprecated=True, description="The old name of goal, with its old words.")
]


@api.post("/search", response_model=SearchAnswer)
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


@api.post("/search/certified", response_model=SearchAnswer)
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
    method: MethodText = None,
    seed: Annotated[
        int | None, Form(ge=0, lt=2**53, description="Repeats a search of a smoothed gallery.")
    ] = None,
) -> SearchAnswer:
    """The nearest candidates, and what an attacker within the threat cannot do to each."""
    served = desk.engine.get(gallery)
    _check_k(desk, k)
    wanted = Threat.parse(threat)
    asked = await _asked(desk, served, image, id, query, until)
    outcome = await desk.certify(served, asked, k, wanted, Options(method=method, seed=seed), until)
    return search_answer(outcome, _query_state(asked, served), served.name)


@api.post("/search/batch", response_model=BatchAnswer)
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
            asked = await desk.uploaded(served, await image.read(), file_name(image), until)
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


@api.post("/attack", response_model=AttackAnswer)
@needs("attack")
async def attack(
    desk: TheDesk,
    until: Until,
    threat: ThreatText,
    goal: GoalText = None,
    target: Annotated[
        str | None, Form(max_length=512, description="The item that the goal is about.")
    ] = None,
    objective: OldGoalText = None,
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
    if goal is not None and objective is not None:
        raise NotUnderstoodError("objective is the old name of goal; send goal alone")
    wanted, said = Threat.parse(threat), goal or objective or next(iter(GOALS))
    asked = await _asked(desk, served, image, id, query, until)
    aim = said if target is None else f"{said}:{target}"
    done = await desk.attack(served, asked, k, wanted, aim, steps, until)
    change, amplify = difference(done.clean, done.altered)
    shown = _query_state(asked, served)
    altered = QueryState(name=f"{asked.name}, altered", digest=None, id=None, image=None)
    return AttackAnswer(
        goal=done.goal.name,
        objective=said,
        target=done.target,
        threat=str(done.threat),
        clean=_data_url(png(done.clean)),
        altered=_data_url(png(done.altered)),
        difference=_data_url(png(change)),
        amplify=amplify,
        before=search_answer(outcome(done, done.before), shown, served.name),
        after=search_answer(outcome(done, done.after), altered, served.name),
        moves=[Move(id=move.id, before=move.before, after=move.after) for move in done.moves],
        reached=done.reached,
        held=done.held,
        contradicted=done.contradicted,
        steps=steps,
        seconds=round(done.seconds, 6),
    )


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
        return await desk.uploaded(served, await image.read(), file_name(image), until)
    if query is not None:
        return await desk.earlier(served, query, until)
    assert id is not None
    return await desk.of_item(served, id, until)


def _check_k(desk: Desk, k: int) -> None:
    if k > desk.limits.k:
        raise NotUnderstoodError(f"k is at most {desk.limits.k} here, not {k}")


def _query_state(asked: desks.Query, served: Served) -> QueryState:
    if asked.item is not None:
        return QueryState(name=asked.name, digest=None, id=asked.id, image=item_url(asked.item, served.name))
    return QueryState(
        name=asked.name, digest=asked.digest, id=None, image=f"{API}/queries/{asked.digest}/image"
    )


def _data_url(content: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"
