"""Any folder or tar of images: one folder per class, or none; with train and test folders, or without.

Folders may be nested (`Fruit/Apple/Granny-Smith`). A class is then the folder that holds the images themselves, by
its path below the top (`deepest`), the folder at the top (`top`), or the one at a depth (`2`). A table of labels takes
the place of folders.
"""

from __future__ import annotations

import os
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from holdfast.data.images import EXTENSIONS
from holdfast.data.imageset import Skipped
from holdfast.data.labels import Labels, by_folder, check_rule, is_table, read_table
from holdfast.data.listing import FileListing
from holdfast.data.source import Source

_VALIDATION = ("validation", "val", "valid")


def read(source: Source, labels: Labels = "deepest") -> FileListing:
    """The images by class, or without labels if there are no folders.

    A folder that wraps everything is looked through (in a folder, only if it holds folders itself: else it
    is the one class). If train and test are at the top, that split is `given`; validation images join the
    training images, or test where there is no test. Images outside any class folder are skipped by name.
    """
    names = image_names(source)
    if is_table(check_rule(labels)):
        return _by_table(source, labels, names)
    root = _wrapper(names, source.is_archive)
    paths = [name.removeprefix(root) for name in names]
    parts = [path.split("/") for path in paths]
    held = _test_folders(parts)
    depth = 1 if held else 0
    labelled = any(len(part) > depth + 1 for part in parts)
    kept: list[int] = []
    skipped: list[Skipped] = []
    for index, part in enumerate(parts):
        if held and (len(part) == 1 or part[0] not in held):
            skipped.append(Skipped(readable(paths[index]), "outside the train and test folders"))
        elif labelled and (len(part) <= depth + 1 or by_folder(part[depth:], labels) is None):
            skipped.append(Skipped(readable(paths[index]), "outside any class folder"))
        else:
            kept.append(index)
    found = [by_folder(parts[index][depth:], labels) for index in kept] if labelled else None
    numbers, classes = (None, ()) if found is None else _labels(found)
    tests = np.array([held.get(parts[index][0], False) for index in kept], dtype=np.bool_)
    return FileListing(
        ids=tuple(readable(paths[index]) for index in kept),
        names=tuple(names[index] for index in kept),
        labels=numbers,
        classes=classes,
        official={"given": tests} if held else {},
        skipped=tuple(skipped),
    )


def read_all(source: Source, labels: Labels = "deepest") -> FileListing:
    """All images under their whole names; labels are their class folders, if every image is in one."""
    names = image_names(source)
    if is_table(check_rule(labels)):
        return _by_table(source, labels, names)
    parts = [name.split("/") for name in names]
    depth = 1 if _test_folders(parts) else 0
    found = [by_folder(part[depth:], labels) if len(part) > depth + 1 else None for part in parts]
    labelled = bool(parts) and None not in found
    numbers, classes = _labels(found) if labelled else (None, ())
    return FileListing(ids=tuple(map(readable, names)), names=tuple(names), labels=numbers, classes=classes)


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


def _test_folders(parts: list[list[str]]) -> dict[str, bool]:
    """The folders at the top that make a split, and whether each tests; none if there is no split."""
    tops = {part[0] for part in parts if len(part) > 1}
    lower = {top.lower(): top for top in sorted(tops)}
    held = [name for name in _VALIDATION if name in lower]
    if "train" not in lower or not ("test" in lower or held):
        return {}
    folders = {lower["train"]: False} | {lower[name]: "test" not in lower for name in held}
    return folders | ({lower["test"]: True} if "test" in lower else {})


def _by_table(source: Source, labels: Labels, names: list[str]) -> FileListing:
    table = read_table(labels)
    found = table.found_in(source)
    table.check_whole(found.values(), str(source.path))
    return table.listing(found, readable, [name for name in names if name not in found])


def _labels(names: list[str | None]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Labels into the sorted class names."""
    classes, labels = np.unique(np.array(names, dtype=object), return_inverse=True)
    return labels.astype(np.int64), tuple(readable(name) for name in classes.tolist())
