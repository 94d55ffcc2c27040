"""The cells of a paper's tables, ours beside the printed ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.errors import DataError
from holdfast.files import atomic_write

CELLS = "cells.json"
SUITE, SMOOTHED = "suite", "smoothed"
"""What stands for the threat in a cell of an attack suite, and of a smoothed search, whose eps is the noise."""
CHANCE = "chance"
"""In the place of a method: a random order of the candidates."""
CLEAN = ("R@1", "R@2", "mAP", "NMI")
"""Columns of a suite without an attack."""
ATTACKED = {"attacked": "er_recall", "robust": "robust_recall"}
"""By column of the rows of ER-Recall, whoever searched."""
Key = tuple[Any, ...]
"""What names a cell: table, dataset, model, method, threat, eps, k, metric, and by whom where images were attacked."""


class Number(NamedTuple):
    """What the rows say of a cell: the mean over training seeds, an interval over `n` queries, how many seeds."""

    ours: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0
    seeds: int = 0


@dataclass(frozen=True)
class Cell:
    """One number of a table: the mean over training seeds, with a 95 % interval over queries."""

    table: str
    dataset: str
    model: str
    method: str
    threat: str
    eps: str
    k: int
    metric: str
    paper: float | None
    ours: float | None
    ci_low: float | None
    ci_high: float | None
    n: int
    seeds: int
    preset: str
    attack: str = ""
    """By whom, where images were attacked: our search, or the published one, by which the printed cells were made."""

    @property
    def key(self) -> Key:
        """What names a cell, ours and the paper's."""
        named = (
            self.table,
            self.dataset,
            self.model,
            self.method,
            self.threat,
            self.eps,
            self.k,
            self.metric,
        )
        return (*named, self.attack) if self.attack else named


def read_targets(folder: Path) -> dict[Key, float]:
    """The printed numbers by cell."""
    names = ("table", "dataset", "model", "method", "threat", "eps", "k", "metric")
    try:
        cells = json.loads((folder / "targets.json").read_text())
        return {(*(cell[name] for name in names), *_printed_by(cell)): cell["paper"] for cell in cells}
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{folder} has no readable targets.json: {error}") from None


def _printed_by(cell: dict[str, Any]) -> list[str]:
    """The attack behind a printed cell: that of the published tables, where there is one."""
    attacked = cell["threat"] == SUITE and cell["metric"] not in CLEAN
    return ["published"] if attacked or cell["metric"] in ATTACKED.values() else []


def cell(key: Key, paper: float | None, number: Number, preset: str) -> Cell:
    """A cell by its key, with the printed number and ours."""
    table, dataset, model, method, threat, eps, k, metric, *attack = key
    place = (table, dataset, model, method, threat, eps, k, metric, paper)
    return Cell(*place, *number, preset, *attack)


def together(made: Sequence[Cell]) -> list[Cell]:
    """The cells of several presets.

    A printed number that none of them has stands once: with the first that has others of its table and metric, or the
    first of all.
    """
    known = {cell.key for cell in made if cell.ours is not None}
    home = {(c.table, c.model, c.metric): c.preset for c in reversed(made) if c.ours is not None}
    kept: list[Cell] = []
    for cell in made:
        place = home.get((cell.table, cell.model, cell.metric), cell.preset)
        if cell.ours is None and (cell.key in known or cell.preset != place):
            continue
        known.add(cell.key)
        kept.append(cell)
    return kept


def write_cells(path: Path, cells: Sequence[Cell]) -> None:
    """cells.json, one cell a line; `attack` is there where one was made."""
    lines = [json.dumps({k: v for k, v in asdict(cell).items() if k != "attack" or v}) for cell in cells]
    atomic_write(path, "[\n" + ",\n".join(lines) + "\n]\n")
