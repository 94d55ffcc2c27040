"""`holdfast index`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.output import Json, note_reading, print_json


def index(
    model: Annotated[Path, typer.Argument(help="A run's folder, a checkpoint, FILE.py:NAME, or FILE.onnx.")],
    images: Annotated[Path, typer.Argument(help="A folder or tar of images; folders in it become labels.")],
    out: Annotated[Path, typer.Option(help="The gallery; one that is there is brought up to date.")],
    prefix: Annotated[str, typer.Option(help="Put this before every id, to tell folders apart.")] = "",
    prune: Annotated[bool, typer.Option(help="Remove items whose image file is gone.")] = False,
    json: Json = False,
) -> None:
    """Embed a folder of images into a gallery. Run it again to add what is new."""
    from holdfast import models
    from holdfast.workflow import open_and_index

    gallery, done = open_and_index(
        models.find(model), images, out, location=model, prefix=prefix, prune=prune
    )
    with gallery:
        count = len(gallery)
    note_reading(done.added + done.updated + done.unchanged, done.skipped)
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
    print(
        f"{out}: {count:,} images ({done.added:,} added, {done.updated:,} updated, "
        f"{done.unchanged:,} unchanged, {done.removed:,} removed)"
    )
