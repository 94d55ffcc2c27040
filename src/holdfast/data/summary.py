"""What is known about a data set without loading it."""

from __future__ import annotations

from typing import Any

from holdfast.data.labels import Labels
from holdfast.data.locate import find, how_to_get, resolve
from holdfast.data.registry import DATASETS, NATURAL, DatasetInfo
from holdfast.data.sets import folder
from holdfast.data.source import open_source


def describe(name_or_path: str, labels: Labels = "deepest") -> dict[str, Any]:
    """Title, licence, counts, where it is (`found`, or None) and how to get it, as plain values.

    The counts of a named set are the official ones; those of a path come from its file names, with its
    classes by name. `labels` says which of nested folders is the class.
    No image is read.
    """
    if name_or_path in DATASETS:
        return _describe(DATASETS[name_or_path])
    info, path = resolve(name_or_path)
    if info is not None:
        return _describe(info) | {"found": str(path)}
    with open_source(path) as source:
        listing = folder.read(source, labels)
    return {
        "name": path.name,
        "title": "images in a tar" if path.is_file() else "images in a folder",
        "licence": None,
        "images": len(listing.ids),
        "classes": len(listing.classes),
        "class_names": list(listing.classes),
        "spec": str(NATURAL),
        "split": "given" if "given" in listing.official else "closed",
        "found": str(path),
        "how_to_get": None,
    }


def describe_all() -> list[dict[str, Any]]:
    """`describe` for every named set, in the registry's order."""
    return [_describe(info) for info in DATASETS.values()]


def _describe(info: DatasetInfo) -> dict[str, Any]:
    found = find(info)
    return {
        "name": info.name,
        "title": info.title,
        "licence": info.licence,
        "images": info.images,
        "classes": info.classes,
        "spec": str(info.spec),
        "split": info.split,
        "found": None if found is None else str(found),
        "how_to_get": how_to_get(info) if found is None else None,
    }
