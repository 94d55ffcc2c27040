"""The routes of items and pictures."""

from __future__ import annotations

from typing import Annotated

from fastapi import (
    File,
    Form,
    Path,
    Query,
    Request,
    Response,
    UploadFile,
)

from holdfast.gallery import Item
from holdfast.service.answers import (
    ItemAnswer,
    ItemsAnswer,
    RemovedAnswer,
    item_url,
)
from holdfast.service.engine import Served
from holdfast.service.entry import (
    GalleryName,
    GalleryQuery,
    PathId,
    Side,
    TheDesk,
    Until,
    api_router,
    file_name,
    needs,
)
from holdfast.service.pictures import digest_of
from holdfast.service.writing import add_item, remove_item

api = api_router()


@api.get("/items", response_model=ItemsAnswer)
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


@api.post("/items", response_model=ItemAnswer, status_code=201)
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
    asked = await desk.uploaded(served, await image.read(), file_name(image), until)
    item, generation = await desk.writes.run(
        until, lambda: add_item(served, asked.content, asked.picture.pixels, id, label, replace=replace)
    )
    return _item_answer(item, served, generation)


@api.get(
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


@api.get("/items/{id:path}", response_model=ItemAnswer)
@needs("read")
async def item(desk: TheDesk, until: Until, id: PathId, gallery: GalleryQuery = None) -> ItemAnswer:
    """What the gallery says of an item."""
    served = desk.engine.get(gallery)
    found, generation = await desk.pictures.run(until, lambda: (served.item(id), served.info().generation))
    return _item_answer(found, served, generation)


@api.delete("/items/{id:path}", response_model=RemovedAnswer)
@needs("write")
async def remove(desk: TheDesk, until: Until, id: PathId, gallery: GalleryQuery = None) -> RemovedAnswer:
    """Remove an item, and its picture if it was uploaded."""
    served = desk.engine.get(gallery)
    generation = await desk.writes.run(until, lambda: remove_item(served, id))
    return RemovedAnswer(id=id, gallery=served.name, removed=1, generation=generation)


@api.get(
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


def _item_answer(item: Item, served: Served, generation: int) -> ItemAnswer:
    return ItemAnswer(
        id=item.id,
        label=item.label,
        digest=item.digest,
        image=item_url(item, served.name),
        gallery=served.name,
        generation=generation,
    )


def _picture(request: Request, content: bytes, kind: str) -> Response:
    """The picture, or that the caller has it already."""
    mark = f'"{digest_of(content)}"'
    headers = {"etag": mark, "cache-control": "private, no-cache"}
    if request.headers.get("if-none-match") == mark:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=kind, headers=headers)
