"""The cells of a paper's tables, ours beside the printed ones, computed from committed rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import DataError
from holdfast.files import atomic_write
from holdfast.metrics import bootstrap, chance_of_draw
from holdfast.reproduce.plan import THREATS, Job, Plan, SuiteAttack
from holdfast.reproduce.run import RUN, er_rows, rows_folder
from holdfast.reproduce.smoothed import smoothed_cells
from holdfast.reproduce.suites import CLEAN, RETRIEVAL_ROWS, Value, mean_value, suite_rows, suite_values
from holdfast.rows import read_header, read_rows

CELLS = "cells.json"
METRICS = {
    ("paper", "recall"): "recall",
    ("paper", "cr"): "cr_recall",
    ("tight", "cr"): "cr_recall_tight",
    ("tight", "one_sided"): "cr_recall_one_sided",
    ("tight", "hit"): "certified_hit_rate",
}
"""By file of rows and column: `cr_recall` is the paper's number under the paper's test."""
ATTACKED = {"attacked": "er_recall", "robust": "robust_recall"}
"""By column of the rows of ER-Recall, whoever searched."""
CHANCE = "chance"
"""In the place of a method: a random order of the candidates."""


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
    def key(self) -> tuple[Any, ...]:
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


def read_targets(folder: Path) -> dict[tuple[Any, ...], float]:
    """The printed numbers by cell."""
    names = ("table", "dataset", "model", "method", "threat", "eps", "k", "metric")
    try:
        cells = json.loads((folder / "targets.json").read_text())
        return {(*(cell[name] for name in names), *_printed_by(cell)): cell["paper"] for cell in cells}
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{folder} has no readable targets.json: {error}") from None


def _printed_by(cell: dict[str, Any]) -> list[SuiteAttack]:
    """The attack behind a printed cell: that of the published tables, where there is one."""
    attacked = cell["threat"] == "suite" and cell["metric"] not in CLEAN
    return ["published"] if attacked or cell["metric"] in ATTACKED.values() else []


def make_cells(folder: Path, preset: str, plan: Plan) -> list[Cell]:
    """Every cell that the rows give, and every printed one, with `ours` empty where there are no rows."""
    by_seed: dict[tuple[Any, ...], dict[int, NDArray[np.float64]]] = {}
    for job in plan.places():
        kept = rows_folder(folder, preset, job)
        files: dict[str, dict[str, str]] = {}
        if (kept / RUN).exists():
            for test in plan.tests:
                files[f"{test}.csv.gz"] = {
                    column: metric for (of, column), metric in METRICS.items() if of == test
                }
        attacked: dict[str, SuiteAttack] = {er_rows(by): by for by in get_args(SuiteAttack)}
        files |= {file: ATTACKED for file in attacked if (kept / file).exists()}
        for file, metrics in files.items():
            columns = read_rows(kept / file).columns
            labels = columns["label"][columns["threat"] == columns["threat"][0]]
            for key, values in _of_job(columns, metrics, attacked.get(file), job, plan.ks):
                by_seed.setdefault(key, {})[job.seed] = values
                if key[7] == "recall":
                    by_chance = (*key[:3], CHANCE, *key[4:])
                    level = chance_of_draw(labels, plan.candidates, key[6])
                    by_seed.setdefault(by_chance, {})[job.seed] = np.full(len(values), level)
    found = {key: list(values.values()) for key, values in by_seed.items()}
    printed = read_targets(folder)
    cells = _suite_cells(folder, preset, plan, printed)
    smoothed = smoothed_cells(folder, preset, plan, rows_folder)
    cells += [cell(key, printed.get(key), *number, preset) for key, number in smoothed.items()]
    known = {cell.key for cell in cells}
    for key in [*(key for key in printed if key not in known), *(key for key in found if key not in printed)]:
        paper, runs = printed.get(key), found.get(key, [])
        low, high = bootstrap(np.mean(runs, axis=0)) if runs else (None, None)
        ours = float(np.mean(runs)) if runs else None
        n = sum(len(values) for values in runs)
        cells.append(cell(key, paper, ours, low, high, n, len(runs), preset))
    return sorted(cells, key=lambda cell: (*cell.key[:6], cell.metric, cell.k))


def all_cells(folder: Path, plans: Mapping[str, Plan]) -> list[Cell]:
    """The cells of several presets.

    A printed number that none of them has stands once: with the first that has others of its table and metric, or the
    first of all.
    """
    made = [cell for preset, plan in plans.items() for cell in make_cells(folder, preset, plan)]
    ours = {cell.key for cell in made if cell.ours is not None}
    home = {(c.table, c.model, c.metric): c.preset for c in reversed(made) if c.ours is not None}
    kept: list[Cell] = []
    for cell in made:
        place = home.get((cell.table, cell.model, cell.metric), cell.preset)
        if cell.ours is None and (cell.key in ours or cell.preset != place):
            continue
        ours.add(cell.key)
        kept.append(cell)
    return kept


def _suite_cells(folder: Path, preset: str, plan: Plan, printed: dict[tuple[Any, ...], float]) -> list[Cell]:
    """The cells of attack suites; `k` is 0, `metric` the column of the paper's table, and no cell mixes attacks."""
    if plan.suite is None:
        return []
    found: dict[tuple[Any, ...], dict[int, Value]] = {}
    trials: dict[tuple[Any, ...], int] = {}
    called = {name: method.printed for name, method in plan.methods.items() if method.printed}
    scores = plan.suite.scores
    for job, by in product(plan.places(), plan.suite.attacks):
        kept, own, rows = rows_folder(folder, preset, job), job.tables[job.eps[0]], suite_rows(by)
        if not (kept / rows).exists():
            continue
        asked = {name: read_header(kept / name)["n"] for name in (RETRIEVAL_ROWS, rows)}
        for (score, column), value in suite_values(kept, by).items():
            if own not in scores.values() and score == "ers" and not column.startswith("ERS"):
                continue
            table = scores[score] if own in scores.values() else own
            clean = column in CLEAN
            named = (table, job.dataset, job.model, job.method, "suite", job.eps[0], 0, column)
            key = named if clean else (*named, by)
            if job.seed not in found.setdefault(key, {}):
                trials[key] = trials.get(key, 0) + asked[RETRIEVAL_ROWS if clean else rows]
            found[key][job.seed] = value
    cells = []
    for key, values in found.items():
        ours, low, high = mean_value(list(values.values()))
        ends = (None if np.isnan(low) else low, None if np.isnan(high) else high)
        paper = printed.get((*key[:3], called.get(key[3], key[3]), *key[4:]))
        cells.append(cell(key, paper, ours, *ends, trials[key], len(values), preset))
    return cells


def cell(
    key: tuple[Any, ...],
    paper: float | None,
    ours: float | None,
    low: float | None,
    high: float | None,
    n: int,
    seeds: int,
    preset: str,
) -> Cell:
    """A cell by its key, with the printed number and ours."""
    table, dataset, model, method, threat, eps, k, metric, *attack = key
    return Cell(
        table, dataset, model, method, threat, eps, k, metric, paper, ours, low, high, n, seeds, preset, *attack,
    )  # fmt: skip


def write_cells(path: Path, cells: Sequence[Cell]) -> None:
    """cells.json, one cell a line; `attack` is there where one was made."""
    lines = [json.dumps({k: v for k, v in asdict(cell).items() if k != "attack" or v}) for cell in cells]
    atomic_write(path, "[\n" + ",\n".join(lines) + "\n]\n")


def _of_job(
    columns: dict[str, NDArray[Any]],
    metrics: Mapping[str, str],
    by: SuiteAttack | None,
    job: Job,
    ks: Sequence[int],
) -> list[tuple[tuple[Any, ...], NDArray[np.float64]]]:
    """The values, one a query, of every cell that one file of rows speaks of; `by` searched, if there was an attack."""
    out = []
    for column, metric in metrics.items():
        for eps, table in job.tables.items():
            clean = metric == "recall"
            if clean != (eps not in job.eps):
                continue
            for who in THREATS[:1] if clean else THREATS:
                # Without an attack every threat's rows say the same.
                size = job.eps[0] if clean else eps
                rows = columns["threat"] == f"{who}:linf:{size}"
                threat = "none" if clean else who
                for k in ks:
                    named = (table, job.dataset, job.model, job.method, threat, eps, k, metric)
                    key = named if by is None else (*named, by)
                    out.append((key, columns[f"{column}_{k}"][rows].astype(np.float64)))
    return out
