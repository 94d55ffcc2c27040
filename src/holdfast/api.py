"""What `import holdfast` offers as functions: one call for each thing that the command line does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from holdfast.data import Labels
from holdfast.evaluation.measuring import certify, evaluate
from holdfast.gallery import Gallery
from holdfast.gallery.attacking import AttackedPicture
from holdfast.gallery.building import open_and_index
from holdfast.gallery.indexing import MAX_REMOVED
from holdfast.gallery.made_by import open_with_embedder
from holdfast.models import AnyEmbedder, find
from holdfast.models.metric import Metric
from holdfast.proofs.smoothing import Smoothing
from holdfast.reports import write_report
from holdfast.spec import ImageSpec, Resample
from holdfast.threat import Threat
from holdfast.training import Run, merge, parse, under
from holdfast.training import train as run_training

__all__ = ["attack", "certify", "evaluate", "index", "load", "open", "report", "train"]


def load(
    model: str | Path, spec: ImageSpec | None = None, *, module: nn.Module | None = None, **options: Any
) -> AnyEmbedder:
    """The embedder that `model` names: a run's folder, a pretrained network, FILE.onnx, FILE.py:NAME, or hf:FOLDER.

    `spec` says which images it takes, where it does not say so itself; so do the `options` size, channels, mean, std,
    layout, normalise and pool. `module` is what a run of a wrapped module is loaded into. A Python file is run.
    """
    return find(model, spec, module=module, **options)


def train(
    data: str,
    out: str | Path,
    settings: Mapping[str, Any] | None = None,
    preset: str | None = None,
    **sections: Any,
) -> Run:
    """Train an embedder on a data set or a folder of images into the folder `out`.

    `settings` and `sections` are the tables of a config:
    `train("photos/", "runs/mine", model={"name": "small"}, train={"epochs": 5})`; a name alone will do
    (`model="small"`). They go before those of `preset`.
    """
    named = {key: {"name": value} if isinstance(value, str) else value for key, value in sections.items()}
    table = merge({"data": {"name": str(data)}}, merge(settings or {}, named))
    below = {} if preset is None else under(preset, table)
    return run_training(parse(merge(below, table)), Path(out))


def index(
    model: AnyEmbedder | str | Path,
    images: str | Path,
    out: str | Path,
    *,
    prefix: str = "",
    labels: Labels = "deepest",
    prune: bool = False,
    max_removed: float = MAX_REMOVED,
    boxes: float | None = None,
    smooth: Smoothing | None = None,
    metric: Metric | None = None,
    resample: Resample | None = None,
) -> Gallery:
    """A gallery at `out` of all images in a folder, tar or bucket; one that is there already is brought up to date.

    `model` is an embedder, or what `load` takes. Labels are the folders that hold the images, or with `labels="top"`
    those at the top; with a CSV or Parquet file they are the table's. With `prune` images whose file is gone leave it;
    a run that would remove more than the share `max_removed` removes nothing and is refused. With `boxes` it also holds
    what each candidate can become when its image is altered within linf:eps. With `smooth` its vectors are means over
    noisy copies, and searches say how far each hit holds in l2. With `metric` distances are those of a learned metric
    on the embedder's vectors, which the gallery keeps. `resample` is the filter that brings pictures to the network's
    size, by default the embedder's own.
    """
    gallery, _ = open_and_index(
        load(model) if isinstance(model, str | Path) else model,
        images,
        out,
        prefix=prefix,
        labels=labels,
        prune=prune,
        max_removed=max_removed,
        boxes=boxes,
        smooth=smooth,
        metric=metric,
        resample=resample,
    )
    return gallery


def open(
    location: str | Path, model: AnyEmbedder | str | Path | None = None, *, readonly: bool = True
) -> Gallery:
    """The gallery at a path or address, with the model that made it, ready for pictures.

    `model` is needed where the gallery does not say where its model is, or where that is a Python file, which opening
    a gallery never runs. Any other model is refused. With `readonly=False` it can be written to.
    """
    return open_with_embedder(location, model, readonly=readonly)[0]


def attack(
    gallery: Gallery | str | Path,
    image: Any,
    goal: str = "push-out",
    threat: str | Threat = "linf:8/255",
    k: int = 10,
    *,
    model: AnyEmbedder | str | Path | None = None,
    **options: Any,
) -> AttackedPicture:
    """As `Gallery.attack`, for a gallery that is open or is to be opened (with `model`, as for `open`)."""
    if isinstance(gallery, Gallery):
        return gallery.attack(image, goal, threat, k, **options)
    with open(gallery, model) as opened:
        return opened.attack(image, goal, threat, k, **options)


def report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write the report of the run, or of the single evaluation, in `folder`: one offline page, whose path is given."""
    return write_report(folder, out)
