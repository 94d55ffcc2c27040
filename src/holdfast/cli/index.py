"""`holdfast index`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.output import Json, print_json


def index(
    model: Annotated[Path, typer.Argument(help="A run's folder or a checkpoint.")],
    images: Annotated[Path, typer.Argument(help="A folder or tar of images; folders in it become labels.")],
    out: Annotated[Path, typer.Option(help="The gallery; one that is there is brought up to date.")],
    prune: Annotated[bool, typer.Option(help="Remove items whose image is gone.")] = False,
    json: Json = False,
) -> None:
    """Embed a folder of images into a gallery. Run it again to add what is new."""
    from holdfast import models
    from holdfast.data import reading_line
    from holdfast.workflow import open_and_index

    gallery, done = open_and_index(models.load(model), images, out, location=model, prune=prune)
    with gallery:
        count = len(gallery)
    if json:
        print_json(
            {
                "gallery": out,
                "count": count,
                "added": done.added,
                "updated": done.updated,
                "unchanged": done.unchanged,
                "removed": done.removed,
                "skipped": [{"id": s.id, "reason": s.reason} for s in done.skipped],
            }
        )
        return
    print(reading_line(done.added + done.updated + done.unchanged, done.skipped))
    print(
        f"{out}: {count:,} images ({done.added:,} added, {done.updated:,} updated, "
        f"{done.unchanged:,} unchanged, {done.removed:,} removed)"
    )
