"""What an evaluation is about: an embedder, the images it is asked about, and where results go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast import data as sets
from holdfast.data import ImageSet, Labels, Split
from holdfast.errors import ConfigError
from holdfast.models import AnyEmbedder, find, results_folder
from holdfast.progress import Say, note
from holdfast.spec import ImageSpec
from holdfast.training import CONFIG, held_out, read_config

Model = AnyEmbedder | str | Path
"""An embedder, or what names one: all that `holdfast.load` takes."""
MOST_COMPARED = 20_000
"""Images among which copies are looked for without being asked: each is compared with all."""


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
    queries: str | Path | None = None,
    gallery: str | Path | None = None,
    held_out_images: bool = False,
    split: Split | None = None,
    labels: Labels | None = None,
    without_duplicates: bool | None = None,
    spec: ImageSpec | None = None,
    say: Say = note,
) -> Subject:
    """Find an embedder and the images to ask it about.

    `data` is a set's name, NAME:PATH, or a folder or tar, of which the test part is asked; a run's own set if left out.
    `images` is a folder or tar of which all images are asked, `held_out_images` the images that a run kept from
    training. `queries` and `gallery` are two folders: each image of the first is looked for in the second. `split` and
    `labels` are those of a run's own set unless given; labels can be a table. Images that are nearly copies are left
    out, counted, or (None) not looked for. `spec` is the shape of images for a model that leaves it open. `say` gets
    how many images were read, and which were not.
    """
    if (queries is None) != (gallery is None):
        raise ConfigError("queries and gallery are two folders: give both", option="gallery")
    if (data is not None) + (images is not None) + (gallery is not None) + held_out_images > 1:
        raise ConfigError(
            "name the images in one way: a data set, a folder of images, two folders, or those held out"
        )
    embedder = find(model, spec) if isinstance(model, str | Path) else model
    home, end = home_of(model), "-without-duplicates" if without_duplicates else ""
    if isinstance(data, ImageSet):
        if without_duplicates:
            data = _looked_through(data, True, say)
        return Subject(embedder, data, home, data.name + end)
    if held_out_images:
        kept = held_out(home)
        return Subject(embedder, kept, home, f"{kept.name}-held-out")
    which = labels or "deepest"
    if queries is not None and gallery is not None:
        dataset = _all_of(*sets.load_pair(queries, gallery, spec=embedder.spec, labels=which))
    elif images is not None:
        dataset = _all_of(*sets.load_images(images, spec=embedder.spec, labels=which))
    else:
        dataset = dataset_of(embedder, home, data, split, labels)
    for line in sets.reading_lines(dataset.read, dataset.skipped):
        say(line)
    test = dataset.test
    if without_duplicates is not None:
        test = _looked_through(test, without_duplicates, say)
    return Subject(embedder, test, home, dataset.name + end, dataset.split)


def _looked_through(images: ImageSet, without_duplicates: bool, say: Say) -> ImageSet:
    """The images, after `say` got their classes and how many are copies of another, which are left out if asked."""
    if images.labels is not None:
        present = sorted({images.classes[label] for label in images.labels.tolist()})
        say(f"{len(images):,} images, {sets.classes_line(present)}")
    if len(images) > MOST_COMPARED and not without_duplicates:
        return images
    copies = sets.count_near_duplicates(images)
    if copies and not without_duplicates:
        say(f"{copies:,} images are near-duplicates of another; without_duplicates leaves them out")
    if copies and without_duplicates:
        say(f"left out {copies:,} near-duplicates")
        return sets.without_near_duplicates(images)
    return images


def _all_of(images: ImageSet, skipped: tuple[sets.Skipped, ...]) -> sets.Dataset:
    """Images of which all are asked, as a data set."""
    return sets.Dataset(images.name, images.take([]), images, "given", skipped, len(images))


def found(
    model: Model | Subject | Callable[[], Subject],
    data: str | Path | ImageSet | None,
    say: Say,
    *,
    queries: str | Path | None = None,
    gallery: str | Path | None = None,
    labels: Labels | None = None,
    without_duplicates: bool | None = None,
) -> Subject:
    """A subject however it is given: itself, a function that finds it, or a model with data, as `subject` takes it."""
    if isinstance(model, AnyEmbedder | str | Path):
        return subject(
            model,
            data,
            queries=queries,
            gallery=gallery,
            labels=labels,
            without_duplicates=without_duplicates,
            say=say,
        )
    if without_duplicates or (data, queries, gallery, labels) != (None,) * 4:
        raise ConfigError("a subject has its images already; say which when it is made")
    return model if isinstance(model, Subject) else model()


def home_of(model: Model) -> Path:
    """Where results about a model go: its folder, or runs/NAME where it has none."""
    if not isinstance(model, str | Path):
        return Path("runs") / f"embedder-{model.fingerprint()[:12]}"
    return results_folder(model)


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
