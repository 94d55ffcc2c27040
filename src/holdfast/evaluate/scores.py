"""ERS and ARS from the rows of an attack suite, with bootstrap intervals over trials."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.attacks import OBJECTIVES
from holdfast.attacks.objectives.es import EmbeddingShift
from holdfast.attacks.objectives.gtm import GreedyMisrank, PublishedMisrank
from holdfast.errors import DataError
from holdfast.evaluate.trials import MEASURES
from holdfast.metrics import percentiles, resamples
from holdfast.metrics.robustness import (
    ERS_PARTS,
    FIRST_RANK,
    Score,
    ars_of,
    ars_ratio,
    ers,
    resisted_trials,
)
from holdfast.rows import Rows

Column = NDArray[Any]
Interval = tuple[float, float]
MENDED = "GTM-MENDED"
"""GTM without the target mistake of the published tables, beside theirs."""


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
    robust_interval: dict[str, Interval]
    attacked_recall_all: float | None
    """Under the worst of all attacks on each query, whatever the optimiser."""
    robust_recall_all: float | None
    """A right first hit before and after every attack on the query."""
    recall_interval: dict[str, Interval]
    """Of the clean, the attacked and the robust recall over all attacks."""
    ers: Estimate | None
    ers_gtm_mended: Estimate | None
    """Under the published search, whose `ers` has the published GTM: the same with GTM as it is meant."""
    ars_ratio: Estimate | None
    ars_trial: Estimate | None

    @property
    def estimates(self) -> dict[str, Estimate]:
        """The scores that could be computed, by the names that people read."""
        named = {
            "ERS": self.ers,
            "ERS (GTM mended)": self.ers_gtm_mended,
            "ARS (ratio)": self.ars_ratio,
            "ARS (trial)": self.ars_trial,
        }
        return {name: score for name, score in named.items() if score is not None}

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Measured:
    """The trials of one suite, by what they reached; every score can be taken over any choice of them.

    Queries whose class has no candidate are left out of every recall.
    """

    def __init__(self, rows: Rows) -> None:
        self.optimiser: str = rows.header["config"]["search"]["optimiser"]
        self.count: int = rows.header["n"]
        self.before, self.after = part_columns(rows, self.optimiser)
        self.recalls = _recalls(rows, self.optimiser)
        self.clean = next(iter(self.recalls.values()))[0] if self.recalls else None
        if self.clean is not None and np.isnan(self.clean).all():
            self.clean, self.recalls = None, {}
        self.complete = set(ERS_PARTS) <= set(self.after) and self.clean is not None
        self._resisted = {
            name: resisted_trials(name, self.before[name], column)
            for name, column in self.after.items()
            if name in FIRST_RANK
        }

    @property
    def published(self) -> bool:
        """Whether GTM was sought with the target mistake of the published tables, too."""
        return MENDED in self.after

    def ers(self, at: Column) -> Score:
        return ers(self._means(at))

    def ers_gtm_mended(self, at: Column) -> Score:
        means = self._means(at)
        return ers({**means, "GTM": means[MENDED]})

    def ars_ratio(self, at: Column) -> Score:
        return ars_ratio(self._means(at), self._clean(at))

    def ars_trial(self, at: Column) -> Score:
        resisted = {name: _mean(column[at]) for name, column in self._resisted.items()}
        return ars_of(resisted, self._means(at), self._clean(at))

    def _means(self, at: Column) -> dict[str, float]:
        return {name: _mean(column[at]) for name, column in self.after.items()}

    def _clean(self, at: Column) -> float:
        return 100 * _mean(self.clean[at]) if self.clean is not None else 0.0


def score_suite(rows: Rows) -> SuiteScores:
    """Every number of a suite from its rows. ERS and ARS are None where an attack was left out.

    Intervals resample trials, the same ones for every attack, so that what attacks have in common stays in.
    """
    trials, whole, draws = Measured(rows), np.arange(rows.header["n"]), [*resamples(rows.header["n"])]
    clean = trials.clean

    def spread(column: Column) -> Interval:
        return percentiles([_mean(column[at]) for at in draws])

    def estimate(score: Callable[[Column], Score]) -> Estimate | None:
        if not trials.complete:
            return None
        made = score(whole)
        return Estimate(made.value, percentiles([score(at).value for at in draws]), made.parts)

    robust = {name: 100 * one * other for name, (one, other) in trials.recalls.items()}
    worst = None if clean is None else _worst(rows, trials.count)
    together: dict[str, Interval] = {}
    if clean is not None and worst is not None:
        for name, column in (("clean", clean), ("attacked", worst), ("robust", clean * worst)):
            together[name] = spread(100 * column)
    return SuiteScores(
        threat=rows.header["config"]["threat"],
        trials=trials.count,
        optimiser=trials.optimiser,
        before={name: _mean(column) for name, column in trials.before.items()},
        reached={name: _mean(column) for name, column in trials.after.items()},
        interval={name: spread(column) for name, column in trials.after.items()},
        clean_recall=None if clean is None else 100 * _mean(clean),
        robust_recall={name: _mean(column) for name, column in robust.items()},
        robust_interval={name: spread(column) for name, column in robust.items()},
        attacked_recall_all=None if worst is None else 100 * _mean(worst),
        robust_recall_all=None if worst is None or clean is None else 100 * _mean(clean * worst),
        recall_interval=together,
        ers=estimate(trials.ers),
        ers_gtm_mended=estimate(trials.ers_gtm_mended) if trials.published else None,
        ars_ratio=estimate(trials.ars_ratio),
        ars_trial=estimate(trials.ars_trial),
    )


_ALIKE = ("images", "queries", "candidates", "seed", "threat", "search")


def ars_difference(ours: Sequence[Rows], theirs: Sequence[Rows]) -> tuple[list[float], Interval]:
    """By how much the ARS (ratio) of one way of training is above another's: seed by seed, and the mean's interval.

    Both sequences are in the order of the seeds; a seed's two suites asked the same queries, so the
    interval resamples them together. It speaks of queries, not of other training seeds.
    """
    gaps, draws = [], []
    for mine, yours in zip(ours, theirs, strict=True):
        if any(mine.header["config"][name] != yours.header["config"][name] for name in _ALIKE):
            raise DataError("two suites can be compared only where they attack the same queries alike")
        one, other = Measured(mine), Measured(yours)
        if not (one.complete and other.complete):
            raise DataError("two suites can be compared only where both hold every attack of ERS")
        whole = np.arange(one.count)
        gaps.append(one.ars_ratio(whole).value - other.ars_ratio(whole).value)
        draws.append([one.ars_ratio(at).value - other.ars_ratio(at).value for at in resamples(one.count)])
    return gaps, percentiles(np.mean(draws, axis=0))


def shown(part: str, value: float) -> str:
    """A number of a suite as tables print it."""
    kinds = (kind for kind in OBJECTIVES.values() if kind.number() == part)
    digits = next((MEASURES[kind.measures].digits for kind in kinds), 1)
    return f"{value:.{digits}f}"


def part_columns(rows: Rows, optimiser: str) -> tuple[dict[str, Column], dict[str, Column]]:
    """The columns before and after of each number of ERS, in the order of the trials.

    Under the published search `GTM` is the published one, and GTM as it is meant stands beside it.
    """
    before, after = {}, {}
    names = dict.fromkeys(rows.columns["attack"])
    called = {name: OBJECTIVES[name].number() for name in names}
    if PublishedMisrank.name in names:
        called |= {PublishedMisrank.name: GreedyMisrank.number(), GreedyMisrank.name: MENDED}
    for name in names:
        part = called[name]
        mine = _of(rows, name, optimiser)
        before[part], after[part] = rows.columns["before"][mine], rows.columns["after"][mine]
        if name == EmbeddingShift.name:
            recalls = [100 * _share(rows.columns[c][mine]) for c in ("recall_before", "recall_after")]
            if not np.isnan(recalls[0]).all():
                before["ES:R"], after["ES:R"] = recalls
    return before, after


def _recalls(rows: Rows, optimiser: str) -> dict[str, tuple[Column, Column]]:
    """Recall@1 of each query before and after, for each attack on queries; NaN where nothing can be found."""
    found = {}
    for name in dict.fromkeys(rows.columns["attack"]):
        mine = _of(rows, name, optimiser)
        if OBJECTIVES[name].alters == "query":
            one, other = (_share(rows.columns[c][mine]) for c in ("recall_before", "recall_after"))
            found[name] = (one, other)
    return found


def _worst(rows: Rows, count: int) -> Column:
    """The least recall of each query after any attack on it; NaN where nothing can be found."""
    worst = np.ones(count, dtype=np.int64)
    of_query = [name for name, kind in OBJECTIVES.items() if kind.alters == "query"]
    on_query = np.isin(rows.columns["attack"], of_query)
    np.minimum.at(worst, rows.columns["trial"][on_query], rows.columns["recall_after"][on_query])
    return _share(worst)


def _of(rows: Rows, attack: str, optimiser: str) -> NDArray[np.int64]:
    return np.flatnonzero((rows.columns["attack"] == attack) & (rows.columns["optimiser"] == optimiser))


def _share(hits: Column) -> Column:
    return np.where(hits < 0, np.nan, hits.astype(np.float64))


def _mean(values: Column) -> float:
    known = values[~np.isnan(values)] if values.dtype.kind == "f" else values
    return float(known.mean()) if len(known) else 0.0
