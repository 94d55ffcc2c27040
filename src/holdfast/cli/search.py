"""`holdfast search`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.output import Json, print_json, print_table


def search(
    gallery: Annotated[Path, typer.Argument(help="A gallery made by 'holdfast index'.")],
    images: Annotated[list[Path], typer.Argument(help="The pictures to ask about.")],
    k: Annotated[int | None, typer.Option("-k", min=1, help="How many hits.  [default: 10]")] = None,
    model: Annotated[
        Path | None, typer.Option(help="The embedder, where it is no longer where it was.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page that shows the pictures.")] = None,
    json: Json = False,
) -> None:
    """Find the images of a gallery that are nearest to a picture."""
    from holdfast.cli.gallery import open_with_embedder
    from holdfast.errors import GalleryError
    from holdfast.files import atomic_write
    from holdfast.workflow import search as find

    opened, embedder = open_with_embedder(gallery, model)
    with opened:
        if k is not None and k > len(opened):
            raise GalleryError(
                f"{gallery} holds {len(opened)} images, fewer than -k {k}; ask for {len(opened)} or fewer"
            )
        results = [find(opened, embedder, image, k or 10) for image in images]
    if html is not None:
        from holdfast.gallery.indexing import stored_image
        from holdfast.report import hits_page, thumbnail

        shown = [thumbnail(image.read_bytes()) for image in images]
        atomic_write(
            html, hits_page(results, shown, lambda path: thumbnail(stored_image(path)), str(gallery))
        )
    if json:
        print_json([{"query": r.query, "hits": [asdict(hit) for hit in r.hits]} for r in results])
        return
    for result in results:
        rows = [[str(hit.rank), hit.id, hit.label or "", f"{hit.distance:.4f}"] for hit in result.hits]
        columns = ["#", "id", "label", "distance"]
        if any(hit.tied for hit in result.hits):
            columns.append("")
            rows = [[*row, "tied" if hit.tied else ""] for row, hit in zip(rows, result.hits, strict=True)]
        print_table(columns, rows, title=result.query)
    if html is not None:
        print(f"page: {html}")
