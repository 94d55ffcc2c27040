"""Metrics on feature vectors: sets × methods, certified and attacked errors at every radius.

Its plan names sets of features, methods that learn a metric on them, and for which K the test points are certified.
A run is one method on one set with one seed; its rows are kept for each K, with a record of what it cost.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
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
from holdfast.progress import Say
from holdfast.provenance import commit, versions
from holdfast.rows import ROWS, Rows, config_hash, read_rows
from reproduction.cells import Cell, Key, Number
from reproduction.experiment import RUN, Experiment, Home
from reproduction.plan import Table

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

    @property
    def learners(self) -> dict[str, MetricPlan]:
        """How each metric is learned, those that are only timed included."""
        timed = {} if self.timed is None else self.timed.methods
        return {**self.methods, **{TIMED + name: how for name, how in timed.items()}}

    def jobs(self, table: str | None = None, only: str | None = None) -> list[MetricJob]:
        """The runs whose name matches; every table needs all of them."""
        if table is not None and table not in {how.table for how in self.certified}:
            return []
        every = list(product(self.sets, self.methods, self.seeds))
        for name, network in self.networks.items():
            every += product(network.sets, [name], self.seeds)
        if self.timed is not None:
            every += product([self.timed.set], [TIMED + name for name in self.timed.methods], self.seeds)
        jobs = [MetricJob(*each) for each in every]
        return [job for job in jobs if only is None or fnmatch(job.name, only)]


@dataclass(frozen=True)
class MetricJob:
    """One metric, learned on one set."""

    dataset: str
    method: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.dataset}-{self.method}-s{self.seed}"


@dataclass(frozen=True, eq=False)
class Vectors:
    """The features of a run's set, and the folder in which metrics and networks are learned."""

    features: Features
    work: Path


class Metrics(Experiment[NeighbourPlan, MetricJob, Vectors]):
    """A metric or a network on features, certified and attacked for each K; the learners that are only timed."""

    name = "run"

    def __init__(self, home: Home, plan: NeighbourPlan) -> None:
        super().__init__(home, plan)
        for name, how in plan.learners.items():
            if how.method not in METHODS:
                raise ConfigError(f"{name} names an unknown method '{how.method}'")

    def planned(self, job: MetricJob) -> dict[Path, str]:
        return {self.home.kept(job.name) / RUN: self._hash(job)}

    def settings(self, file: Path) -> str:
        return str(json.loads(file.read_text())["hash"])

    def run(self, job: MetricJob, made: Vectors, files: Sequence[Path], say: Say) -> None:
        """Learn the metric or the network, certify the test points, keep the rows."""
        (file,) = files
        found = made.features
        # Never resumes from other settings or vectors.
        made_with = config_hash({"job": self._hash(job), "digest": found.digest})
        out = made.work / f"{job.name}-{made_with[:12]}"
        out.mkdir(parents=True, exist_ok=True)
        if job.method in self.plan.networks:
            say(f"{job.name}: training and certifying a network")
            cost = self._network(job, found, out, file.parent)
        else:
            cost = self._metric(job, found, out, file.parent, say)
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
        atomic_write(file, json.dumps(record, indent=2) + "\n")

    def _metric(self, job: MetricJob, found: Features, out: Path, kept: Path, say: Say) -> float:
        """Learn a metric, certify by it for each K, keep the rows; the seconds that learning took."""
        file, cost = out / "metric", out / "cost.json"
        if not cost.exists():
            say(f"{job.name}: learning from {len(found.train):,} vectors of {found.train.shape[1]} features")
            method, options = self.plan.learners[job.method].method, self._options(job)
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
        kept = [self.home.kept(MetricJob(dataset, name, seed).name) for seed in self.plan.seeds]
        return [read_rows(one / NETWORK) for one in kept if (one / RUN).exists()]

    def numbers(self, printed: dict[Key, float]) -> dict[Key, Number]:
        """The certified and attacked error of every method at every radius, and the seconds that a table prints."""
        made: dict[Key, Number] = {}
        for how, dataset in product(self.plan.certified, self.plan.sets):
            radii = self.radii(dataset, how)
            for method in self.plan.methods:
                runs = self.rows(dataset, method, how)
                for share, radius in radii.items() if runs else ():
                    name = "0" if share == 0 else f"{share:g} of euclidean"
                    place = (how.table, dataset, "1-NN" if how.k == 1 else f"{how.k}-NN", method, "l2", name)
                    for metric, value in errors_of(runs, radius).items():
                        made[(*place, how.k, f"{metric} robust error")] = Number(*value, len(runs))
        for key in printed:
            if key[7] == "seconds" and (ours := self.seconds(key[3])) is not None:
                made[key] = Number(ours, seeds=1)
        return made

    def opening(self, cells: Sequence[Cell]) -> list[str]:
        from reproduction.metrics_page import sections

        return sections(self, cells)

    def _options(self, job: MetricJob) -> dict[str, Any]:
        """What a run is made with, besides its seed."""
        if job.method in self.plan.networks:
            return self.plan.networks[job.method].model_dump(exclude={"sets"})
        how = self.plan.learners[job.method]
        return {**how.options, **how.on.get(job.dataset, {})}

    def _hash(self, job: MetricJob) -> str:
        return config_hash(
            {
                "set": self.plan.sets[job.dataset].model_dump(exclude={"about"}),
                "method": "network"
                if job.method in self.plan.networks
                else self.plan.learners[job.method].method,
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
        kept = [self.home.kept(MetricJob(dataset, method, seed).name) for seed in self.plan.seeds]
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
        files = [self.home.kept(job.name) / RUN for job in jobs]
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
