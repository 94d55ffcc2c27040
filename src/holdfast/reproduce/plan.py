"""The plan of a reproduction: which runs a preset trains, and how each of them is tested.

A plan is a TOML file. Each method and data set has a table of training settings; an experiment
names the methods, data sets and network that stand in some tables of the paper. A run's config is
its data set's settings, with its method's laid over them, and last what the method says `on` that
data set and on that network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer, ValidationError

from holdfast.certify.smoothing import Smoothing
from holdfast.errors import ConfigError
from holdfast.methods import bound_method
from holdfast.models.smoothed import Backend
from holdfast.threat import Threat, parse_eps
from holdfast.training import merge, read_toml
from holdfast.training.config import explain
from holdfast.training.defences import defence_class

THREATS = ("query", "candidates")
AnyPlan = TypeVar("AnyPlan", bound=BaseModel)


StoredMethod = Annotated[
    str,
    AfterValidator(lambda name: bound_method(name).name),
    PlainSerializer(lambda name: bound_method(name).stored),
]
"""A method of bounds; settings name it as rows of before do."""


class Table(BaseModel):
    """A table of a plan's file: nothing unknown in it, nothing changed afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Test(Table):
    """How rankings are certified: the bounds, and whether rounding and the image domain count."""

    method: StoredMethod
    clip: bool = True
    rounding: bool = True


SuiteAttack = Literal["ours", "published"]
"""Whose search for altered images: ours, or the one behind the printed numbers."""


class AttackChange(Table):
    """What of the attacks is otherwise for a network or a method."""

    ca_queries: int | None = Field(default=None, ge=1)
    sources: int | None = Field(default=None, ge=1)
    by: list[SuiteAttack] | None = None


class AttackPlan(Table):
    """How ER-Recall is measured: for which tables and training seeds, by whose PGD, on how many queries."""

    tables: list[str] = Field(min_length=1)
    seeds: list[int] = Field(min_length=1)
    steps: int = Field(default=100, ge=1)
    """Of our PGD; the paper's takes 100 plain steps of eps/10."""
    by: list[SuiteAttack] = Field(default=["ours"], min_length=1)
    ca_queries: int = Field(default=100, ge=1)
    """Queries whose candidates are altered; queries that are altered themselves are all of them."""
    sources: int = Field(default=100, ge=1)
    """Candidates that are altered for a query."""
    on: dict[str, AttackChange] = {}
    """By method or network; the network's is laid over the method's."""


class SuitePlan(Table):
    """How the suite of ERS and ARS is run: on a draw of this size; our PGD has so many steps."""

    queries: int = Field(ge=1)
    clean_queries: int = Field(ge=1)
    """Queries of the columns without an attack, which cost little."""
    candidates: int | None = Field(default=None, ge=5)
    """None: all images of the test part that are not queries."""
    steps: int = Field(default=32, ge=1)
    attacks: list[SuiteAttack] = ["ours"]
    """By whom: our PGD, and the search of the published tables."""
    scores: dict[str, str]
    """The table that each score (`ers`, `ars`) stands in; an experiment of any other table has the columns of
    ARS there, and ERS."""
    compare: list[tuple[str, str]] = []
    """Methods whose difference in ARS the page gives, seed by seed on the same queries."""


class SmoothChange(Table):
    """What of the plan's smoothing is otherwise for a data set or a method."""

    queries: int | None = Field(default=None, ge=1)
    candidates: int | None = Field(default=None, ge=2)
    n: int | None = Field(default=None, ge=1)
    alpha: float | None = Field(default=None, gt=0, lt=1)
    first: int | None = Field(default=None, ge=1)
    gallery: int | None = Field(default=None, ge=1)
    backend: Backend | None = None
    marks: list[int] | None = None
    alphas: list[float] | None = None
    attacks: list[float] | None = None


class SmoothPlan(Table):
    """How smoothed searches are certified: on a draw of this size, by so many samples."""

    queries: int = Field(ge=1)
    candidates: int | None = Field(default=None, ge=2)
    """None: all images of the test part that are not queries."""
    n: int = Field(default=1000, ge=1)
    alpha: float = Field(default=0.01, gt=0, lt=1)
    first: int = Field(default=100, ge=1)
    gallery: int = Field(default=32, ge=1)
    backend: Backend = "torch"
    marks: list[int] = []
    """Smaller numbers of samples at which the same is written down."""
    alphas: list[float] = []
    """Other failure probabilities for which all samples answer."""
    attacks: list[float] = []
    """Sizes of ℓ2 attacks, in units of σ."""

    def noise(self, sigma: float) -> Smoothing:
        return Smoothing(
            sigma,
            n=self.n,
            alpha=self.alpha,
            first=self.first,
            gallery=self.gallery,
            backend=self.backend,
        )


class _Settings(Table):
    data: dict[str, Any] = {}
    model: dict[str, Any] = {}
    defence: dict[str, Any] = {}
    train: dict[str, Any] = {}
    smoothing: SmoothChange = SmoothChange()

    def config(self) -> dict[str, Any]:
        return {name: dict(getattr(self, name)) for name in ("data", "model", "defence", "train")}


class SuiteChange(Table):
    """What of the plan's suite is otherwise on a data set or in an experiment."""

    queries: int | None = Field(default=None, ge=1)
    clean_queries: int | None = Field(default=None, ge=1)
    candidates: int | None = Field(default=None, ge=5)
    steps: int | None = Field(default=None, ge=1)


_AS_PLANNED = SuiteChange()


class DatasetPlan(_Settings):
    """A data set by the paper's name; defences that train for an eps get `train_eps`."""

    train_eps: str = "0"
    suite: SuiteChange = _AS_PLANNED


class MethodPlan(_Settings):
    """A method by the paper's name; `start` names the method whose run it fine-tunes."""

    seeds: list[int] = Field(min_length=1)
    start: str | None = None
    printed: str | None = None
    """The name under which the paper prints it, where two of ours stand beside one printed row."""
    sigmas: list[float] = []
    """The noise by which its search is smoothed, where the plan says how."""
    on: dict[str, _Settings] = {}


class Experiment(Table):
    """Methods compared on data sets with one network; `tables` gives each eps the number of its table.

    `sweep` names settings of the defence (or, as `train.lr`, of another table) with some values each, and trains each
    method once with each of them, as `METHOD-SETTING=VALUE`: a figure's curve.
    """

    model: str
    datasets: list[str]
    methods: list[str]
    tables: dict[str, str]
    seeds: list[int] | None = None
    sweep: dict[str, list[float]] = {}
    suite: SuiteChange = _AS_PLANNED
    about: str = ""
    """What is compared, for the page of a plan that chooses settings."""

    @property
    def points(self) -> list[tuple[str, float] | None]:
        """The settings of the sweep one by one; without a sweep the methods as they are."""
        return [(key, value) for key, values in self.sweep.items() for value in values] or [None]


class Plan(Table):
    """All that a preset does."""

    queries: int = Field(ge=1)
    candidates: int = Field(ge=1)
    ks: list[int]
    tests: dict[str, Test] = {}
    held_out: bool = False
    """On images that each run kept from training, instead of the test part: the plan chooses settings. Its numbers have
    a page of their own and are no cells of the paper's tables."""
    attacks: AttackPlan | None = None
    suite: SuitePlan | None = None
    smoothing: SmoothPlan | None = None
    datasets: dict[str, DatasetPlan]
    methods: dict[str, MethodPlan]
    experiments: list[Experiment]

    def jobs(self, table: str | None = None, only: str | None = None) -> list[Job]:
        """The runs that stand in `table` (all of them if None) whose name matches the pattern `only`.

        A run that another one fine-tunes comes before it, whether asked for or not.
        """
        found: dict[str, Job] = {}
        for job in self.places(table, only):
            if found.setdefault(job.name, job).suite != job.suite:
                raise ConfigError(
                    f"{job.name} stands in experiments with different suites; give those the same [suite]"
                )
        return list(found.values())

    def places(self, table: str | None = None, only: str | None = None) -> list[Job]:
        """The same, with a run that stands in several experiments once for each, with that one's tables."""
        found: list[Job] = []
        for experiment in self.experiments:
            if table is not None and table not in experiment.tables.values():
                continue
            for dataset in experiment.datasets:
                for method in experiment.methods:
                    seeds = experiment.seeds or self._method(method).seeds
                    for point, seed in product(experiment.points, seeds):
                        job = self._job(experiment, dataset, method, seed, point)
                        if only is not None and not fnmatch(job.name, only):
                            continue
                        if job.start is not None:
                            found.append(self._job(experiment, dataset, job.start, seed))
                        found.append(job)
        return found

    def attacks_of(self, job: Job) -> AttackPlan | None:
        """How the run's ER-Recall is measured; None if it is not."""
        if self.attacks is None or not job.attacked(self.attacks):
            return None
        changed = self.attacks
        for place in (job.method, job.model):
            change = self.attacks.on.get(place, AttackChange())
            changed = changed.model_copy(update=change.model_dump(exclude_none=True))
        return changed

    def says(self, method: str) -> str:
        """What tables must say of a method of the plan, by the name of its runs; nothing of others."""
        trained = {job.method: job.config["defence"]["name"] for job in self.places()}
        return defence_class(trained[method]).says if method in trained else ""

    def suite_of(self, job: Job) -> SuitePlan | None:
        """How the run's suite is run."""
        if self.suite is None:
            return None
        changed = self.suite
        for change in (self.datasets[job.dataset].suite, job.suite):
            changed = changed.model_copy(update=change.model_dump(exclude_none=True))
        return changed

    def smoothing_of(self, job: Job) -> SmoothPlan | None:
        """How the run's search is smoothed: the plan's way, as its data set, its method and both change it."""
        method = self.methods.get(job.method)
        if self.smoothing is None or method is None or not method.sigmas:
            return None
        changed = self.smoothing
        for change in (self.datasets[job.dataset], method, method.on.get(job.dataset)):
            if change is not None:
                changed = changed.model_copy(update=change.smoothing.model_dump(exclude_none=True))
        return changed

    def _method(self, name: str) -> MethodPlan:
        if name not in self.methods:
            raise ConfigError(f"the plan has no method '{name}'; known: {', '.join(sorted(self.methods))}")
        return self.methods[name]

    def _job(
        self,
        experiment: Experiment,
        dataset: str,
        method: str,
        seed: int,
        point: tuple[str, float] | None = None,
    ) -> Job:
        if dataset not in self.datasets:
            raise ConfigError(f"the plan has no data set '{dataset}'; known: {', '.join(self.datasets)}")
        where, how = self.datasets[dataset], self._method(method)
        config = merge(where.config(), how.config())
        for place in (dataset, experiment.model):
            if place in how.on:
                config = merge(config, how.on[place].config())
        options = defence_class(config["defence"]["name"]).Options
        if "eps" in options.model_fields:
            config["defence"].setdefault("eps", parse_eps(where.train_eps))
        if method_draws := {"queries", "candidates", "draw_seed"} & set(options.model_fields):
            drawn = {"queries": self.queries, "candidates": self.candidates, "draw_seed": seed}
            config["defence"].update({name: drawn[name] for name in method_draws})
        config["model"].setdefault("name", experiment.model)
        config["seed"] = seed
        if point is not None:
            key, value = point
            section, _, name = key.rpartition(".")
            config[section or "defence"][name] = value
            method = f"{method}-{name}={value:.10g}"
        return Job(
            dataset,
            experiment.model,
            method,
            seed,
            config,
            how.start,
            dict(experiment.tables),
            experiment.suite,
        )


@dataclass(frozen=True)
class Job:
    """One training run, by the paper's names, and the tables that its numbers stand in."""

    dataset: str
    model: str
    method: str
    seed: int
    config: Mapping[str, Any]
    start: str | None
    tables: Mapping[str, str]
    suite: SuiteChange = _AS_PLANNED
    """What its experiment changes of the plan's suite."""

    @property
    def name(self) -> str:
        return f"{self.dataset}-{self.model}-{self.method}-s{self.seed}"

    @property
    def start_name(self) -> str:
        """The run that this one fine-tunes."""
        return f"{self.dataset}-{self.model}-{self.start}-s{self.seed}"

    def attacked(self, plan: AttackPlan) -> bool:
        """Whether its ER-Recall is measured."""
        return self.seed in plan.seeds and bool({*plan.tables} & {*self.tables.values()})

    @property
    def suite_threat(self) -> Threat:
        """What the attacks of a suite may do: the one size of its tables."""
        if len(self.eps) != 1:
            raise ConfigError(f"a suite is run at one eps; {self.name} has {', '.join(self.eps) or 'none'}")
        return Threat.parse(f"query:linf:{self.eps[0]}")

    @property
    def threats(self) -> list[Threat]:
        """What it is tested against."""
        return [Threat.parse(f"{who}:linf:{eps}") for eps in self.eps for who in THREATS]

    @property
    def eps(self) -> list[str]:
        """The sizes, as printed, at which it is tested; 0 stands for no attack and needs no test."""
        return [size for size in self.tables if parse_eps(size) > 0]


def read_plan(folder: Path, preset: str) -> Plan:
    """The plan `preset` of the reproduction in `folder`."""
    return parse_plan(Plan, plan_file(folder, preset))


def plan_file(folder: Path, preset: str) -> Path:
    """Where the plan `preset` of the reproduction in `folder` is."""
    path = folder / f"{preset}.toml"
    if not path.exists():
        known = sorted(entry.stem for entry in folder.glob("*.toml"))
        raise ConfigError(f"{folder} has no preset '{preset}'; known: {', '.join(known) or 'none'}")
    return path


def parse_plan(kind: type[AnyPlan], path: Path) -> AnyPlan:
    """The plan in a file; what is wrong with it in one line."""
    try:
        return kind.model_validate(read_toml(path))
    except ValidationError as error:
        problem = error.errors()[0]
        if problem["type"] != "extra_forbidden":
            raise ConfigError(f"{path}: {explain(error, kind)}") from None
        raise ConfigError(f"{path}: unknown key '{'.'.join(str(part) for part in problem['loc'])}'") from None
