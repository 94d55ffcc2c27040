"""`holdfast index`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from holdfast.cli.output import (
    Channels,
    Device,
    ImageSize,
    Json,
    LabelsOption,
    Model,
    note,
    print_json,
)

if TYPE_CHECKING:
    from holdfast.gallery.kept import Rechecked


def index(
    model: Model,
    images: Annotated[
        str,
        typer.Argument(
            help="A folder or tar of images, or s3://BUCKET/PREFIX; folders in it are the labels."
        ),
    ],
    out: Annotated[
        str,
        typer.Option(
            metavar="GALLERY",
            help="The gallery; one that is there is brought up to date. A file, milvus://HOST:PORT/NAME for a "
            "server, or milvus-lite:FILE/NAME.",
        ),
    ],
    prefix: Annotated[str, typer.Option(help="Put this before every id, to tell folders apart.")] = "",
    labels: LabelsOption = None,
    prune: Annotated[bool, typer.Option(help="Remove items whose image file is gone.")] = False,
    max_removed: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            metavar="SHARE",
            help="Stop, with nothing removed, where more than this share of the gallery's images would leave it.",
        ),
    ] = 0.1,
    boxes: Annotated[
        str | None,
        typer.Option(
            metavar="linf:EPS",
            help="Also store what each candidate can become when its image is altered within linf:EPS.",
        ),
    ] = None,
    smooth: Annotated[
        str | None,
        typer.Option(
            metavar="sigma=S,n=N",
            help="Smooth the vectors by noise of standard deviation S; searches then say how far each hit holds "
            "in l2, from N samples of the query (also alpha, first, gallery, seed, bound, backend, and rule: by the "
            "mean of noisy copies, or by their votes).",
        ),
    ] = None,
    metric: Annotated[
        Path | None,
        typer.Option(
            help="Measure distances by a metric learned from this model's vectors ('holdfast metric features', "
            "'holdfast metric learn'); the gallery keeps it."
        ),
    ] = None,
    resample: Annotated[
        Literal["bilinear", "bicubic"] | None,
        typer.Option(
            help="The filter that resizes pictures. With bilinear, claims hold for the file; with bicubic, for what "
            "the network sees.  [default: the model's own]"
        ),
    ] = None,
    image_size: ImageSize = None,
    channels: Channels = 3,
    mean: Annotated[
        str | None,
        typer.Option(metavar="M|R,G,B", help="Pixel mean that the model wants, if it does not say."),
    ] = None,
    std: Annotated[
        str | None, typer.Option(metavar="S|R,G,B", help="Pixel standard deviation, likewise.")
    ] = None,
    layout: Annotated[
        Literal["nchw", "nhwc"] | None,
        typer.Option(help="Whether an ONNX file takes channels first or last, if it does not say."),
    ] = None,
    normalise: Annotated[
        bool | None,
        typer.Option(
            "--normalise/--no-normalise", help="Bring vectors to length 1.  [default: the model's own]"
        ),
    ] = None,
    pool: Annotated[
        Literal["cls", "mean", "pooler", "image-embeds"] | None,
        typer.Option(help="What the vector of a Hugging Face model is.  [default: the model's own]"),
    ] = None,
    device: Device = None,
    json: Json = False,
) -> None:
    """Embed a folder, tar or bucket of images into a gallery. Run it again to add what is new."""
    from holdfast import models
    from holdfast.data import reading_lines
    from holdfast.errors import ConfigError
    from holdfast.gallery.building import open_and_index
    from holdfast.models.metric import Metric
    from holdfast.proofs.smoothing import check_samples, parse_smoothing
    from holdfast.spec import square

    size = None if boxes is None else _size(boxes)
    how = None if smooth is None else parse_smoothing(smooth)
    if how is not None:
        check_samples(how, 3)  # What a search for one hit has to say.
        if size is not None:
            raise ConfigError("--boxes are for bound propagation, which a smoothed gallery does without")
    embedder = models.find(
        model,
        square(image_size, channels),
        mean=mean,
        std=std,
        layout=layout,
        normalise=normalise,
        pool=pool,
    )
    if size is not None and models.device_of(device or "cpu").type != "cpu":
        raise ConfigError("--boxes are computed on the processor; leave --device out")
    gallery, done = open_and_index(
        models.placed(embedder, device or "cpu"),
        images,
        out,
        prefix=prefix,
        labels=labels or "deepest",
        prune=prune,
        max_removed=max_removed,
        boxes=size,
        smooth=how,
        metric=None if metric is None else Metric.load(metric),
        resample=resample,
        say=note,
    )
    with gallery:
        count = len(gallery)
    for line in reading_lines(done.added + done.updated + done.unchanged, done.skipped):
        note(line)
    if json:
        print_json(
            {
                "gallery": out,
                "count": count,
                "added": done.added,
                "updated": done.updated,
                "unchanged": done.unchanged,
                "removed": done.removed,
                "classes": len(done.classes),
                "skipped": [{"id": s.id, "reason": s.reason} for s in done.skipped],
                "boxes": done.boxes,
                "certificates": asdict(done.certificates),
                "cache": done.cache or None,
            }
        )
        return
    print(
        f"{out}: {count:,} images ({done.added:,} added, {done.updated:,} updated, "
        f"{done.unchanged:,} unchanged, {done.removed:,} removed)"
    )
    if done.boxes:
        print(f"boxes of altered candidates: {', '.join(f'linf:{eps:g}' for eps in done.boxes)}")
    if done.cache:
        print(done.cache)
    print_rechecked(done.certificates)


def print_rechecked(certificates: Rechecked) -> None:
    """What a change of the gallery did to the certificates it keeps; nothing where it keeps none."""
    if not certificates.kept:
        return
    print(f"{len(certificates.changed):,} of {certificates.kept:,} kept certificates changed")
    for entry in certificates.changed:
        print(f"  {entry.query} ({entry.threat}, top {entry.k})")
        for line in entry.changes:
            print(f"    {line}")


def _size(text: str) -> float:
    from holdfast.errors import ConfigError
    from holdfast.threat import Threat

    threat = Threat.parse(text)
    if threat.norm != "linf" or threat.eps is None or threat.most is not None or threat.who == "both":
        raise ConfigError(f"boxes are for linf:EPS, for example linf:0.1, not '{text}'")
    return threat.eps
