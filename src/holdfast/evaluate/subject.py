"""What an evaluation is about: an embedder, the images it is asked about, and where results go."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from holdfast import data as sets
from holdfast.data import ImageSet, Labels, Split
from holdfast.errors import ConfigError
from holdfast.models import AnyEmbedder, find, named_by_file
from holdfast.progress import Say, note
from holdfast.spec import ImageSpec
from holdfast.training import CONFIG, held_out, read_config

Model = AnyEmbedder | str | Path
"""An embedder, or what names one: a run's folder, a checkpoint, FILE.py:NAME, FILE.onnx."""


@dataclass(frozen=True, eq=False)
class Subject:
    """An embedder with the images it is asked about; `home` is the folder that its results go into."""

    embedder: AnyEmbedder
    images: ImageSet
    home: Path
    name: str
    """Of the images, for titles and folders."""
    split: Split | None = None


def subject(
    model: Model,
    data: str | Path | ImageSet | None = None,
    *,
    images: str | Path | None = None,
    held_out_images: bool = False,
    split: Split | None = None,
    labels: Labels | None = None,
    spec: ImageSpec | None = None,
    say: Say = note,
) -> Subject:
    """Find an embedder and the images to ask it about.

    `data` is a set's name, NAME:PATH, or a folder or tar, of which the test part is asked; a run's own set if left out.
    `images` is a folder or tar of which all images are asked, `held_out_images` the images that a run kept from
    training. `split` and `labels` are those of a run's own set unless given. `spec` is the shape of images for a model
    that leaves it open. `say` gets how many images were read, and which were not.
    """
    if (data is not None) + (images is not None) + held_out_images > 1:
        raise ConfigError("name the images in one way: a data set, a folder of images, or those held out")
    embedder = find(model, spec) if isinstance(model, str | Path) else model
    home = home_of(model)
    if isinstance(data, ImageSet):
        return Subject(embedder, data, home, data.name)
    if held_out_images:
        kept = held_out(home)
        return Subject(embedder, kept, home, f"{kept.name}-held-out")
    if images is not None:
        found, skipped = sets.load_images(images, spec=embedder.spec, labels=labels or "deepest")
        dataset = sets.Dataset(found.name, found.take([]), found, "given", skipped, len(found))
    else:
        dataset = dataset_of(embedder, home, data, split, labels)
    for line in sets.reading_lines(dataset.read, dataset.skipped):
        say(line)
    return Subject(embedder, dataset.test, home, dataset.name, dataset.split)


def home_of(model: Model) -> Path:
    """Where results about a model go: its folder, or runs/NAME where it has none."""
    if not isinstance(model, str | Path):
        return Path("runs") / f"embedder-{model.fingerprint()[:12]}"
    path = Path(model)
    if named_by_file(model):
        file, _, name = str(model).rpartition(":")
        return Path("runs") / (f"{Path(file).stem}-{name}" if file.endswith(".py") else path.stem)
    return path if path.is_dir() else path.parent


def dataset_of(
    embedder: AnyEmbedder,
    run: Path,
    data: str | Path | None = None,
    split: Split | None = None,
    labels: Labels | None = None,
) -> sets.Dataset:
    """The data set asked for, or the run's own, in the embedder's shape.

    The split and the class folders are the run's where it is the run's set.
    """
    name = None if data is None else str(data)
    if (run / CONFIG).exists():
        stored = read_config(run).data
        if name is None or stored.name == sets.absolute(name):
            name, split, labels = stored.name, split or stored.split, labels or stored.labels
    if name is None:
        raise ConfigError(
            f"{run} does not say what it was trained on; name a data set, or a folder of images",
            option="data",
        )
    return sets.load(name, spec=embedder.spec, split=split, labels=labels or "deepest")
