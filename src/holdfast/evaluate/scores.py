"""ERS and ARS from the rows of an attack suite, with bootstrap intervals over trials."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.evaluate.rows import Rows
from holdfast.metrics.robustness import (
    ERS_PARTS,
    FIRST_RANK,
    Score,
    ars_of,
    ars_ratio,
    ers,
    resisted_trials,
)

Column = NDArray[Any]
Interval = tuple[float, float]
DRAWS = 1000
LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A number and its 95 % bootstrap interval; `parts` are the attacks' shares of a score."""

    value: float
    interval: Interval
    parts: dict[str, float]


@dataclass(frozen=True)
class SuiteScores:
    """The numbers of one suite, named as in the papers' tables; recalls are percentages."""

    threat: str
    trials: int
    optimiser: str
    before: dict[str, float]
    reached: dict[str, float]
    interval: dict[str, Interval]
    """Of `reached`."""
    clean_recall: float | None
    """Recall@1 of the queries without an attack."""
    robust_recall: dict[str, float]
    """For each attack on queries: a right first hit before and after, of all queries."""
    attacked_recall_all: float | None
    """Under the worst of all attacks on each query, whatever the optimiser."""
    robust_recall_all: float | None
    """A right first hit before and after every attack on the query."""
    recall_interval: dict[str, Interval]
    """Of the clean, the attacked and the robust recall over all attacks."""
    ers: Estimate | None
    ars_ratio: Estimate | None
    ars_trial: Estimate | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def score_suite(rows: Rows) -> SuiteScores:
    """Every number of a suite from its rows. ERS and ARS are None where an attack was left out.

    Queries whose class has no candidate are left out of every recall. Intervals resample trials, the same
    ones for every attack, so that what attacks have in common stays in.
    """
    config = rows.header["config"]
    optimiser = config["search"]["optimiser"]
    before, after = part_columns(rows, optimiser)
    recalls = _recalls(rows, optimiser)
    clean = next(iter(recalls.values()))[0] if recalls else None
    if clean is not None and np.isnan(clean).all():
        clean, recalls = None, {}
    count = rows.header["n"]
    whole = np.arange(count)
    draws = _draws(count)
    reached = {name: _mean(column) for name, column in after.items()}
    spread = {name: _interval(partial(_mean_at, column), draws) for name, column in after.items()}
    resisted = {
        name: resisted_trials(name, before[name], after[name]) for name in after if name in FIRST_RANK
    }

    def means(at: Column) -> dict[str, float]:
        return {name: _mean(column[at]) for name, column in after.items()}

    def clean_of(at: Column) -> float:
        return 100 * _mean(clean[at]) if clean is not None else 0.0

    def by_trial(at: Column) -> Score:
        return ars_of({name: _mean(column[at]) for name, column in resisted.items()}, means(at), clean_of(at))

    def estimate(make: Callable[[Column], Score]) -> Estimate:
        score = make(whole)
        return Estimate(score.value, _interval(lambda at: make(at).value, draws), score.parts)

    worst = None if clean is None else _worst(rows, count)
    together: dict[str, Interval] = {}
    if clean is not None and worst is not None:
        for name, column in (("clean", clean), ("attacked", worst), ("robust", clean * worst)):
            together[name] = _interval(partial(_mean_at, 100 * column), draws)
    full = set(ERS_PARTS) <= set(after) and clean is not None
    return SuiteScores(
        threat=config["threat"],
        trials=count,
        optimiser=optimiser,
        before={name: _mean(column) for name, column in before.items()},
        reached=reached,
        interval=spread,
        clean_recall=None if clean is None else 100 * _mean(clean),
        robust_recall={name: 100 * _mean(one * other) for name, (one, other) in recalls.items()},
        attacked_recall_all=None if worst is None else 100 * _mean(worst),
        robust_recall_all=None if worst is None or clean is None else 100 * _mean(clean * worst),
        recall_interval=together,
        ers=estimate(lambda at: ers(means(at))) if full else None,
        ars_ratio=estimate(lambda at: ars_ratio(means(at), clean_of(at))) if full else None,
        ars_trial=estimate(by_trial) if full else None,
    )


def part_columns(rows: Rows, optimiser: str) -> tuple[dict[str, Column], dict[str, Column]]:
    """The columns before and after of each number of ERS, in the order of the trials."""
    before, after = {}, {}
    for name in dict.fromkeys(rows.columns["attack"]):
        mine = _of(rows, name, optimiser)
        part = "ES:D" if name == "es" else name.upper()
        before[part], after[part] = rows.columns["before"][mine], rows.columns["after"][mine]
        if name == "es":
            recalls = [100 * _share(rows.columns[c][mine]) for c in ("recall_before", "recall_after")]
            if not np.isnan(recalls[0]).all():
                before["ES:R"], after["ES:R"] = recalls
    return before, after


def _recalls(rows: Rows, optimiser: str) -> dict[str, tuple[Column, Column]]:
    """Recall@1 of each query before and after, for each attack on queries; NaN where nothing can be found."""
    found = {}
    for name in dict.fromkeys(rows.columns["attack"]):
        mine = _of(rows, name, optimiser)
        if not name.startswith("ca"):
            one, other = (_share(rows.columns[c][mine]) for c in ("recall_before", "recall_after"))
            found[name] = (one, other)
    return found


def _worst(rows: Rows, count: int) -> Column:
    """The least recall of each query after any attack on it; NaN where nothing can be found."""
    worst = np.ones(count, dtype=np.int64)
    on_query = ~np.char.startswith(rows.columns["attack"].astype(str), "ca")
    np.minimum.at(worst, rows.columns["trial"][on_query], rows.columns["recall_after"][on_query])
    return _share(worst)


def _of(rows: Rows, attack: str, optimiser: str) -> NDArray[np.int64]:
    return np.flatnonzero((rows.columns["attack"] == attack) & (rows.columns["optimiser"] == optimiser))


def _share(hits: Column) -> Column:
    return np.where(hits < 0, np.nan, hits.astype(np.float64))


def _mean(values: Column) -> float:
    known = values[~np.isnan(values)] if values.dtype.kind == "f" else values
    return float(known.mean()) if len(known) else 0.0


def _mean_at(values: Column, at: Column) -> float:
    return _mean(values[at])


def _draws(count: int) -> list[NDArray[np.int64]]:
    generator = np.random.default_rng(0)
    return [generator.integers(0, count, count) for _ in range(DRAWS)]


def _interval(value: Callable[[Column], float], draws: list[NDArray[np.int64]]) -> Interval:
    tail = (1 - LEVEL) / 2
    low, high = np.quantile([value(at) for at in draws], [tail, 1 - tail])
    return float(low), float(high)
