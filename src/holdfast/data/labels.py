"""What images show, as people have it: in the names of folders, or in a table beside the images.

A table is a CSV or Parquet file with the columns `path` and `label`, and where they are known `split` (train, test or
validation), `is_query`, `is_gallery` and `group` (a camera or a burst). These are the columns of open-metric-learning.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from holdfast.data.imageset import Roles, Skipped
from holdfast.data.listing import FileListing
from holdfast.data.source import Source
from holdfast.data.splits import Split
from holdfast.errors import DataError, MissingExtraError

Labels = str
"""`deepest` (the folder that holds an image), `top`, a depth such as `2` (from the top), or a table's path."""

TABLES = (".csv", ".parquet")
_COLUMNS = ("path", "label", "split", "is_query", "is_gallery", "group")
_SPLITS = {"train": False, "validation": False, "val": False, "valid": False, "test": True}
_YES = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_SHOWN = 3


def check_rule(labels: Labels) -> Labels:
    """The rule itself, if it is one."""
    if labels in ("deepest", "top") or is_table(labels) or (labels.isdecimal() and int(labels) >= 1):
        return labels
    raise DataError(
        f"labels are 'deepest', 'top', the depth of a folder such as 2, or a table such as labels.csv, not '{labels}'"
    )


def is_table(labels: Labels) -> bool:
    """Whether labels are in a file of their own."""
    return labels.lower().endswith(TABLES)


def lasting_labels(labels: Labels) -> Labels:
    """The same rule from every folder."""
    return str(Path(labels).expanduser().resolve()) if is_table(labels) else labels


def by_folder(parts: Sequence[str], labels: Labels) -> str | None:
    """The class of an image at a path below the class folders; None where it lies less deep than asked."""
    folders = parts[:-1]
    if labels == "deepest":
        return "/".join(folders)
    depth = 1 if labels == "top" else int(labels)
    return folders[depth - 1] if depth <= len(folders) else None


@dataclass(frozen=True)
class Row:
    """What a table says of one image."""

    path: str
    label: str
    test: bool | None = None
    is_query: bool | None = None
    is_gallery: bool | None = None
    group: str | None = None


@dataclass(frozen=True)
class Table:
    """The rows of a file; paths in it are below the folder of images, or below the file's own folder."""

    path: Path
    rows: tuple[Row, ...]

    def found_in(self, source: Source) -> dict[str, Row]:
        """For each image of the source that a row names, that row, by the image's name in the source."""
        beside = self.path.resolve().parent
        top = source.path.resolve() if isinstance(source.path, Path) else None
        found: dict[str, Row] = {}
        for row in self.rows:
            name = str(PurePosixPath(row.path))
            if name not in source.files and top is not None:
                # Absolute, or from the table's folder.
                place = beside / row.path
                name = place.relative_to(top).as_posix() if place.is_relative_to(top) else name
            if name in source.files:
                found[name] = row
        return found

    def check_whole(self, found: Iterable[Row], where: str) -> None:
        """Refuse a table of which some images are nowhere."""
        known = {row.path for row in found}
        lost = [row.path for row in self.rows if row.path not in known]
        if lost:
            raise DataError(
                f"{self.path} names {len(lost):,} images that are not in {where}: {_some(lost)}; paths in it are "
                "below the folder of images, or below the table's own folder"
            )

    def listing(
        self, found: Mapping[str, Row], readable: Callable[[str], str], others: Iterable[str] = ()
    ) -> FileListing:
        """The images in the table's order, with its labels, splits and groups; `others` are not in it."""
        names = tuple(found)
        rows = tuple(found.values())
        classes, labels = np.unique(np.array([row.label for row in rows], dtype=object), return_inverse=True)
        tests = [row.test for row in rows]
        official: dict[Split, NDArray[np.bool_]] = (
            {} if None in tests else {"given": np.array(tests, dtype=np.bool_)}
        )
        return FileListing(
            ids=tuple(readable(name) for name in names),
            names=names,
            labels=labels.astype(np.int64),
            classes=tuple(classes.tolist()),
            official=official,
            skipped=tuple(Skipped(readable(name), f"not in {self.path.name}") for name in others),
            roles=_roles(rows),
        )


def read_table(path: str | Path) -> Table:
    """The table at `path`, checked; one line for whatever is wrong in it."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise DataError(f"there is no table of labels at {path}; check the path")
    columns = _parquet(path) if path.suffix.lower() == ".parquet" else _csv(path)
    for needed in ("path", "label"):
        if needed not in columns:
            raise DataError(
                f"{path} has no column '{needed}', but {', '.join(columns) or 'none'}; a table of labels has "
                f"{', '.join(_COLUMNS[:2])}, and may have {', '.join(_COLUMNS[2:])}"
            )
    if not columns["path"]:
        raise DataError(f"{path} has no rows; give one for each image")
    rows = tuple(_row(path, columns, index) for index in range(len(columns["path"])))
    seen: set[str] = set()
    twice = [row.path for row in rows if row.path in seen or seen.add(row.path)]  # type: ignore[func-returns-value]
    if twice:
        raise DataError(f"{path} names {len(twice):,} images twice: {_some(twice)}; keep one row for each")
    return Table(path, rows)


def _csv(path: Path) -> dict[str, list[str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as handle:
            reader = csv.reader(handle, strict=True)
            header = [name.strip() for name in next(reader, [])]
            columns: dict[str, list[str]] = {name: [] for name in header}
            for number, cells in enumerate(reader, 2):
                if not cells:
                    continue
                if len(cells) != len(header):
                    raise DataError(
                        f"line {number} of {path} has {len(cells)} values for {len(header)} columns; quote values "
                        "with commas in them"
                    )
                for name, cell in zip(header, cells, strict=True):
                    columns[name].append(cell.strip())
    except (OSError, UnicodeDecodeError, csv.Error) as cause:
        raise DataError(f"{path} is not a readable CSV file: {cause}") from cause
    return columns


def _parquet(path: Path) -> dict[str, list[str]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise MissingExtraError(f"the table {path}", "parquet") from None
    try:
        table = parquet.read_table(path)
    except (OSError, ArrowException) as cause:
        raise DataError(f"{path} is not a readable Parquet file: {str(cause).splitlines()[0]}") from cause
    return {
        name: ["" if value is None else str(value) for value in table[name].to_pylist()]
        for name in table.column_names
    }


def _row(path: Path, columns: Mapping[str, Sequence[str]], index: int) -> Row:
    def cell(name: str) -> str:
        return columns[name][index] if name in columns else ""

    where = f"row {index + 1} of {path}"
    if not cell("path") or not cell("label"):
        missing = "path" if not cell("path") else "label"
        raise DataError(f"{where} has no {missing}; every image needs a path and a label")

    def known(name: str, words: Mapping[str, bool]) -> bool | None:
        text = cell(name).lower()
        if text and text not in words:
            raise DataError(f"{where} has the {name} '{cell(name)}'; known: {', '.join(words)}")
        return words[text] if text else None

    return Row(
        cell("path"),
        cell("label"),
        known("split", _SPLITS),
        known("is_query", _YES),
        known("is_gallery", _YES),
        cell("group") or None,
    )


def _roles(rows: Sequence[Row]) -> Roles | None:
    """The roles that a table gives: of images that it does not mark, all are queries and all can be found."""
    if all(row.is_query is None and row.is_gallery is None and row.group is None for row in rows):
        return None
    groups = {row.group for row in rows if row.group is not None}
    known = {group: number for number, group in enumerate(sorted(groups))}
    return Roles(
        np.array([row.is_query is not False for row in rows], dtype=np.bool_),
        np.array([row.is_gallery is not False for row in rows], dtype=np.bool_),
        np.array([-1 if row.group is None else known[row.group] for row in rows], dtype=np.int64),
    )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
