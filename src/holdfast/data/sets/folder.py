"""Any folder or tar of images: one folder per class, or none; with train and test folders, or without."""

from __future__ import annotations

import os
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from holdfast.data.images import EXTENSIONS
from holdfast.data.imageset import Skipped
from holdfast.data.listing import FileListing
from holdfast.data.source import Source

_VALIDATION = ("validation", "val", "valid")


def read(source: Source) -> FileListing:
    """The images by class, or without labels if there are no folders.

    A folder that wraps everything is looked through (in a folder, only if it holds folders itself: else it
    is the one class). If train and test are at the top, that split is `given`; validation images join the
    training images, or test where there is no test. Images outside any class folder are skipped by name.
    """
    names = image_names(source)
    root = _wrapper(names, source.is_archive)
    paths = [name.removeprefix(root) for name in names]
    parts = [path.split("/") for path in paths]
    tops = {part[0] for part in parts if len(part) > 1}
    held = _test_folders(tops)
    depth = 1 if held else 0
    labelled = any(len(part) > depth + 1 for part in parts)
    kept: list[int] = []
    skipped: list[Skipped] = []
    for index, part in enumerate(parts):
        if held and (len(part) == 1 or part[0] not in held):
            skipped.append(Skipped(readable(paths[index]), "outside the train and test folders"))
        elif labelled and len(part) <= depth + 1:
            skipped.append(Skipped(readable(paths[index]), "outside any class folder"))
        else:
            kept.append(index)
    labels, classes = _labels([parts[index][depth] for index in kept]) if labelled else (None, ())
    tests = np.array([held.get(parts[index][0], False) for index in kept], dtype=np.bool_)
    return FileListing(
        ids=tuple(readable(paths[index]) for index in kept),
        names=tuple(names[index] for index in kept),
        labels=labels,
        classes=classes,
        official={"given": tests} if held else {},
        skipped=tuple(skipped),
    )


def read_all(source: Source) -> FileListing:
    """All images under their whole names; labels are the top folders, if every image is in one."""
    names = image_names(source)
    tops = [name.split("/")[0] for name in names if "/" in name]
    labels, classes = _labels(tops) if names and len(tops) == len(names) else (None, ())
    return FileListing(ids=tuple(map(readable, names)), names=tuple(names), labels=labels, classes=classes)


def image_names(source: Source) -> list[str]:
    """The files whose names claim to be images; hidden ones are left out."""
    return [
        name
        for name in source.files
        if PurePosixPath(name).suffix.lower() in EXTENSIONS and not _hidden(name)
    ]


def readable(name: str) -> str:
    """A file's name as text that can be stored and printed, whatever bytes it is made of."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _hidden(name: str) -> bool:
    return any(part.startswith(".") or part == "__MACOSX" for part in name.split("/"))


def _wrapper(names: list[str], is_archive: bool) -> str:
    """The folders (with the last slash) that hold everything and are no class themselves."""
    root = ""
    while True:
        below = [name.removeprefix(root).split("/") for name in names]
        tops = {part[0] for part in below}
        if len(tops) != 1 or any(len(part) == 1 for part in below):
            return root
        if not is_archive and any(len(part) == 2 for part in below):
            return root
        root += f"{tops.pop()}/"


def _test_folders(tops: set[str]) -> dict[str, bool]:
    """The folders at the top that make a split, and whether each tests; none if there is no split."""
    lower = {top.lower(): top for top in sorted(tops)}
    held = [name for name in _VALIDATION if name in lower]
    if "train" not in lower or not ("test" in lower or held):
        return {}
    folders = {lower["train"]: False} | {lower[name]: "test" not in lower for name in held}
    return folders | ({lower["test"]: True} if "test" in lower else {})


def _labels(names: list[str]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Labels into the sorted class names."""
    classes, labels = np.unique(np.array(names, dtype=object), return_inverse=True)
    return labels.astype(np.int64), tuple(readable(name) for name in classes.tolist())
