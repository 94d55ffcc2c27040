"""A reproduction of metrics on feature vectors: sets × methods, certified and attacked errors at every radius.

Its plan names sets of features, methods that learn a metric on them, and for which K the test points are certified.
A run is one method on one set with one seed; its rows are kept for each K, with a record of what it cost.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from holdfast import data
from holdfast.data.settings import data_folders
from holdfast.errors import ConfigError, DataError, RunError
from holdfast.files import atomic_write
from holdfast.metrics import bootstrap
from holdfast.models.metric import Metric
from holdfast.neighbours import METHODS, learn
from holdfast.neighbours.certification import attacked_radii, certify_metric, contradictions, within
from holdfast.neighbours.features import Features, image_features, load_features
from holdfast.neighbours.networks import certify_perceptron
from holdfast.provenance import commit, versions
from holdfast.reproduce.cells import CELLS, Cell, cell, read_targets, write_cells
from holdfast.reproduce.plan import Table
from holdfast.rows import ROWS, Rows, config_hash, read_rows

RUN = "run.json"
NETWORK = "network.csv.gz"
EUCLIDEAN = "euclidean"
TIMED = "timed-"
"""What stands before the method in the name of a run that is only timed."""


class SetPlan(Table):
    """A set of features: a file below a data folder, or a data set of images, whose features are its pixels."""

    file: str | None = None
    vectors: str = "X"
    labels: str = "y"
    images: str | None = None
    train: int | None = Field(default=None, ge=2)
    """How many of the images train."""
    about: str = ""


class MetricPlan(Table):
    """A method by the paper's name, with its settings, and what is otherwise on a set."""

    method: str
    options: dict[str, Any] = Field(default_factory=dict)
    on: dict[str, dict[str, Any]] = Field(default_factory=dict)


class NetworkPlan(Table):
    """A small network on features, certified by CROWN or by smoothing, beside the metrics on some sets (Figure i)."""

    way: Literal["crown", "smoothing"]
    sets: list[str]
    sigma: float = 0.0
    n: int = 1000
    alpha: float = 0.01
    epochs: int = 30


class TimedPlan(Table):
    """Learners that are only timed, for so many iterations that a printed table names, on one set."""

    set: str
    methods: dict[str, MetricPlan]


class KPlan(Table):
    """How test points are certified for one K, and the table that the numbers stand in."""

    k: int = Field(ge=1)
    exact: bool = False
    table: str


class NeighbourPlan(Table):
    """All that a preset does."""

    points: int = Field(ge=1)
    shares: list[float] = Field(default=[0.25, 0.5, 0.75])
    """Radii are those where the Euclidean metric has these certified robust errors."""
    seeds: list[int] = Field(min_length=1)
    certified: list[KPlan] = Field(min_length=1)
    sets: dict[str, SetPlan]
    methods: dict[str, MetricPlan]
    networks: dict[str, NetworkPlan] = Field(default_factory=dict)
    timed: TimedPlan | None = None


@dataclass(frozen=True)
class MetricJob:
    """One metric, learned on one set."""

    dataset: str
    method: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.dataset}-{self.method}-s{self.seed}"


class NeighbourReproduction:
    """A folder below reproduce/ whose plan is about metrics."""

    def __init__(self, folder: Path, preset: str, plan: NeighbourPlan) -> None:
        self.folder, self.preset, self.plan = folder, preset, plan
        self.learners = dict(plan.methods)
        """How each metric is learned, those that are only timed included."""
        if plan.timed is not None:
            self.learners |= {TIMED + name: how for name, how in plan.timed.methods.items()}
        for name, how in self.learners.items():
            if how.method not in METHODS:
                raise ConfigError(f"{name} names an unknown method '{how.method}'")

    def jobs(self, table: str | None = None, only: str | None = None) -> list[MetricJob]:
        """The runs whose name matches; every table needs all of them."""
        if table is not None and table not in {how.table for how in self.plan.certified}:
            return []
        every = list(product(self.plan.sets, self.plan.methods, self.plan.seeds))
        for name, network in self.plan.networks.items():
            every += product(network.sets, [name], self.plan.seeds)
        if self.plan.timed is not None:
            timed = [TIMED + name for name in self.plan.timed.methods]
            every += product([self.plan.timed.set], timed, self.plan.seeds)
        jobs = [MetricJob(*each) for each in every]
        return [job for job in jobs if only is None or fnmatch(job.name, only)]

    def missing(self, job: MetricJob) -> list[str]:
        """What of a run has no rows; rows of other settings are an error."""
        kept = self.kept(job)
        if not (kept / RUN).exists():
            return ["run"]
        if json.loads((kept / RUN).read_text())["hash"] != self._hash(job):
            raise ConfigError(f"{kept / RUN} is of other settings than the plan's; remove it to run it anew")
        return []

    def run(self, job: MetricJob, work: Path, say: Callable[[str], None]) -> bool:
        """Learn the metric or the network, certify the test points, keep the rows."""
        found = features_of(self.plan.sets[job.dataset])
        # Of other settings or vectors nothing is gone on with.
        made_with = config_hash({"job": self._hash(job), "digest": found.digest})
        out, kept = work / self.preset / f"{job.name}-{made_with[:12]}", self.kept(job)
        for folder in (out, kept):
            folder.mkdir(parents=True, exist_ok=True)
        if job.method in self.plan.networks:
            say(f"{job.name}: training and certifying a network")
            cost = self._network(job, found, out, kept)
        else:
            cost = self._metric(job, found, out, kept, say)
        record = {
            "hash": self._hash(job),
            "train": len(found.train),
            "test": len(found.test),
            "features": found.train.shape[1],
            "classes": len(found.classes),
            "digest": found.digest,
            "cpu_seconds": cost,
            "versions": versions(),
            "commit": commit(),
        }
        # Last, because a folder with this file is a finished run.
        atomic_write(kept / RUN, json.dumps(record, indent=2) + "\n")
        return True

    def _metric(
        self, job: MetricJob, found: Features, out: Path, kept: Path, say: Callable[[str], None]
    ) -> float:
        """Learn a metric, certify by it for each K, keep the rows; the seconds that learning took."""
        file, cost = out / "metric", out / "cost.json"
        if not cost.exists():
            say(f"{job.name}: learning from {len(found.train):,} vectors of {found.train.shape[1]} features")
            method, options = self.learners[job.method].method, self._options(job)
            begun, scale = time.process_time(), self.plan.sets[job.dataset].images is None
            made = learn(found.train, found.train_labels, method, seed=job.seed, scale=scale, **options)
            made.save(file)
            atomic_write(cost, json.dumps(time.process_time() - begun))
        metric = Metric.load(file)
        for one in self._certified(job):
            say(f"{job.name}: certifying K = {one.k}")
            done = certify_metric(
                metric, found, out / f"k{one.k}", k=one.k, exact=one.exact, points=self.plan.points, seed=0
            )
            if wrong := contradictions(done.rows):
                raise RunError(f"{job.name}: {wrong[0].text}")
            atomic_write(kept / f"k{one.k}.csv.gz", (done.folder / ROWS).read_bytes())
        return float(json.loads(cost.read_text()))

    def _network(self, job: MetricJob, found: Features, out: Path, kept: Path) -> float:
        """Train and certify a network, keep the rows; the seconds that all of it took."""
        begun = time.process_time()
        certify_perceptron(
            found,
            out,
            scale=self.plan.sets[job.dataset].images is None,
            points=self.plan.points,
            seed=job.seed,
            **self.plan.networks[job.method].model_dump(exclude={"sets"}),
        )
        atomic_write(kept / NETWORK, (out / ROWS).read_bytes())
        return round(time.process_time() - begun, 2)

    def network_rows(self, dataset: str, name: str) -> list[Rows]:
        """The rows of a network for every seed that is done."""
        kept = [self.kept(MetricJob(dataset, name, seed)) for seed in self.plan.seeds]
        return [read_rows(one / NETWORK) for one in kept if (one / RUN).exists()]

    def cells(self) -> list[Cell]:
        """The certified and attacked error of every run at every radius, and the printed numbers."""
        printed = read_targets(self.folder)
        made: dict[tuple[Any, ...], Cell] = {}
        for how, dataset in product(self.plan.certified, self.plan.sets):
            radii = self.radii(dataset, how)
            for method in self.plan.methods:
                runs = self.rows(dataset, method, how)
                for share, radius in radii.items() if runs else ():
                    name = "0" if share == 0 else f"{share:g} of euclidean"
                    place = (how.table, dataset, "1-NN" if how.k == 1 else f"{how.k}-NN", method, "l2", name)
                    for metric, value in errors_of(runs, radius).items():
                        key = (*place, how.k, f"{metric} robust error")
                        made[key] = cell(key, printed.get(key), *value, len(runs), self.preset)
        for key, paper in printed.items():
            if key not in made:
                ours = self.seconds(key[3]) if key[7] == "seconds" else None
                made[key] = cell(key, paper, ours, None, None, 0, 0 if ours is None else 1, self.preset)
        return sorted(made.values(), key=lambda one: (*one.key[:6], one.metric, one.k))

    def write(self) -> tuple[list[Cell], Path]:
        """The cells, written, and where the page beside them is."""
        from holdfast.reproduce.neighbour_page import write_page

        cells = self.cells()
        write_cells(self.folder / CELLS, cells)
        return cells, write_page(self, cells)

    def kept(self, job: MetricJob) -> Path:
        """Where the rows of a run are kept."""
        return self.folder / "rows" / self.preset / job.name

    def _options(self, job: MetricJob) -> dict[str, Any]:
        """What a run is made with, besides its seed."""
        if job.method in self.plan.networks:
            return self.plan.networks[job.method].model_dump(exclude={"sets"})
        how = self.learners[job.method]
        return {**how.options, **how.on.get(job.dataset, {})}

    def _hash(self, job: MetricJob) -> str:
        return config_hash(
            {
                "set": self.plan.sets[job.dataset].model_dump(exclude={"about"}),
                "method": "network" if job.method in self.plan.networks else self.learners[job.method].method,
                "options": self._options(job),
                "seed": job.seed,
                "points": self.plan.points,
                "certified": [how.model_dump(exclude={"table"}) for how in self._certified(job)],
            }
        )

    def _certified(self, job: MetricJob) -> list[KPlan]:
        return [] if job.method.startswith(TIMED) else self.plan.certified

    def rows(self, dataset: str, method: str, how: KPlan) -> list[Rows]:
        """The rows of every seed that is done."""
        kept = [self.kept(MetricJob(dataset, method, seed)) for seed in self.plan.seeds]
        return [read_rows(one / f"k{how.k}.csv.gz") for one in kept if (one / RUN).exists()]

    def radii(self, dataset: str, how: KPlan) -> dict[float, float]:
        """0, and the radii where the Euclidean metric's certified robust error is a quarter, half, …"""
        runs = self.rows(dataset, EUCLIDEAN, how)
        if not runs:
            return {}
        own = np.quantile(runs[0].columns["lower"], self.plan.shares, method="inverted_cdf").tolist()
        return {0.0: 0.0, **dict(zip(self.plan.shares, own, strict=True))}

    def seconds(self, method: str) -> float | None:
        """What a learner that is only timed took, in the mean over seeds; None if it did not run yet."""
        if self.plan.timed is None:
            return None
        jobs = [MetricJob(self.plan.timed.set, TIMED + method, seed) for seed in self.plan.seeds]
        files = [self.kept(job) / RUN for job in jobs]
        costs = [json.loads(file.read_text())["cpu_seconds"] for file in files if file.exists()]
        return float(np.mean(costs)) if costs else None


def errors_of(runs: list[Rows], radius: float) -> dict[str, tuple[float, float, float, int]]:
    """The mean over seeds of the certified and the attacked error, with an interval over points, and their number."""
    found: dict[str, tuple[float, float, float, int]] = {}
    radii = {"certified": [run.columns["lower"] for run in runs]}
    attacked = [attacked_radii(run) for run in runs]
    if all(one is not None for one in attacked):
        radii["attacked"] = [one for one in attacked if one is not None]
    for name, columns in radii.items():
        reached = [within(column, radius) for column in columns]
        low, high = np.mean([bootstrap(one) for one in reached], axis=0).tolist()
        found[name] = (float(np.mean([one.mean() for one in reached])), low, high, len(reached[0]))
    return found


@lru_cache(maxsize=1)
def features_of(plan: SetPlan) -> Features:
    """The features that a plan means."""
    if plan.images is not None:
        return image_features(data.load(plan.images), plan.train)
    if plan.file is None:
        raise ConfigError("a set of features names a file or images")
    for folder in data_folders():
        if (folder / plan.file).is_file():
            return load_features(folder / plan.file, vectors=plan.vectors, labels=plan.labels)
    raise DataError(f"{plan.file} is in no data folder; put it into one that HOLDFAST_DATA names")
