"""Images: data sets by name, folders and tars of pictures, splits, and hardened reading of single files."""

from __future__ import annotations

from pathlib import Path

from holdfast.data.assemble import assemble, image_set
from holdfast.data.duplicates import count_near_duplicates, near_duplicates, without_near_duplicates
from holdfast.data.fetch import fetch
from holdfast.data.images import (
    Picture,
    alterable,
    decode,
    decode_picture,
    fitted,
    read_alterable,
    read_image,
    read_picture,
)
from holdfast.data.imageset import (
    Dataset,
    ImageSet,
    Roles,
    Skipped,
    classes_line,
    reading_line,
    reading_lines,
)
from holdfast.data.labels import Labels, lasting_labels
from holdfast.data.locate import absolute, resolve
from holdfast.data.pairs import load_pair
from holdfast.data.registry import DATASETS, NATURAL, DatasetInfo, dataset_info
from holdfast.data.sets import folder
from holdfast.data.source import open_source
from holdfast.data.splits import Split, closed_split, draw, hold_out, hold_out_classes, open_split
from holdfast.data.summary import describe, describe_all
from holdfast.spec import ImageSpec

__all__ = [
    "DATASETS",
    "NATURAL",
    "Dataset",
    "DatasetInfo",
    "ImageSet",
    "Labels",
    "Picture",
    "Roles",
    "Skipped",
    "Split",
    "absolute",
    "alterable",
    "classes_line",
    "closed_split",
    "count_near_duplicates",
    "dataset_info",
    "decode",
    "decode_picture",
    "describe",
    "describe_all",
    "draw",
    "fetch",
    "fitted",
    "hold_out",
    "hold_out_classes",
    "lasting_labels",
    "load",
    "load_images",
    "load_pair",
    "natural_spec",
    "near_duplicates",
    "open_source",
    "open_split",
    "read_alterable",
    "read_image",
    "read_picture",
    "reading_line",
    "reading_lines",
    "without_near_duplicates",
]


def load(
    name_or_path: str,
    *,
    spec: ImageSpec | None = None,
    split: Split | None = None,
    labels: Labels = "deepest",
) -> Dataset:
    """A data set, decoded and split.

    `name_or_path` is a registered name, NAME:PATH, or the path of a folder or tar of images. Without `spec`
    the images have the set's natural shape (photographs: 3×64×64). Without `split` it is the set's usual one;
    for a path `given` if it has train and test folders, else `closed`. `labels` says which of nested folders
    is the class (`deepest`, `top`, or a depth), or names a table of labels.
    """
    info, path = resolve(name_or_path)
    with open_source(path) as source:
        listing = folder.read(source, labels) if info is None else info.read(source)
        if split is None:
            split = ("given" if "given" in listing.official else "closed") if info is None else info.split
        natural = NATURAL if info is None else info.spec
        return assemble(info.name if info else path.stem, source, listing, spec or natural, split)


def natural_spec(name_or_path: str) -> ImageSpec:
    """The shape in which a data set's images come when nothing else is asked for."""
    info, _ = resolve(name_or_path)
    return NATURAL if info is None else info.spec


def load_images(
    path: str | Path, *, spec: ImageSpec | None = None, labels: Labels = "deepest"
) -> tuple[ImageSet, tuple[Skipped, ...]]:
    """All images below a folder or in a tar as one set, and those that could not be read.

    Ids are the paths below `path`; labels are the folders that hold them, if every image is in one.
    """
    path = Path(path).expanduser()
    with open_source(path) as source:
        images, _, skipped = image_set(path.stem, source, folder.read_all(source, labels), spec or NATURAL)
    return images, skipped
