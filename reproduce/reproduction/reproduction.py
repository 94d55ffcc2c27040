"""A reproduction by its folder and preset: what it runs, what is done, its cells and its page, whatever its plan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from holdfast.files import atomic_write
from holdfast.progress import Say
from holdfast.training import read_toml
from reproduction.cells import CELLS, SUITE, Cell, Number, cell, read_targets, together, write_cells
from reproduction.choice import write_choice
from reproduction.experiment import Experiment, Home
from reproduction.metrics import MetricJob, Metrics, NeighbourPlan, Vectors, features_of
from reproduction.metrics_page import costs
from reproduction.page import PAGE
from reproduction.plan import Job, Plan, parse_plan, plan_file
from reproduction.ranking import Attacks, Certificates
from reproduction.smoothed import SmoothedSearches
from reproduction.suites import Suites
from reproduction.training import Trained, runs_table, trained


class Named(Protocol):
    """A run of a plan."""

    @property
    def name(self) -> str: ...


AnyJob = TypeVar("AnyJob", bound=Named)
Made = TypeVar("Made")


class Reproduction(ABC, Generic[AnyJob, Made]):
    """A folder below reproduce/ and one of its presets: its runs, and the experiments that measure them."""

    chooses = False
    """Whether it chooses settings: its page is its own then, and its numbers are no cells of the paper's tables."""

    def __init__(self, home: Home, experiments: Sequence[Experiment[Any, AnyJob, Made]]) -> None:
        self.home = home
        self.experiments = experiments

    @abstractmethod
    def jobs(self, table: str | None = None, only: str | None = None) -> list[AnyJob]:
        """The runs that stand in `table` and whose name matches `only`."""

    @abstractmethod
    def prepare(self, job: AnyJob, work: Path, say: Say) -> Made | None:
        """What a run's experiments measure; None if it was stopped on the way."""

    @abstractmethod
    def reading(self, alone: bool) -> str:
        """How to read the page; `alone` if it is of this preset only."""

    @property
    @abstractmethod
    def drawn(self) -> str:
        """How many queries are asked of how many images."""

    @abstractmethod
    def costs(self) -> str:
        """The last section of the page: what was run, and what it cost."""

    def missing(self, job: AnyJob) -> list[str]:
        """The experiments of which a run has no rows yet."""
        return [one.name for one in self.experiments if one.missing(job)]

    def run(self, job: AnyJob, work: Path, say: Say) -> bool:
        """Do what is missing of a run and keep its rows; False if it was stopped on the way."""
        lacking = [(one, files) for one in self.experiments if (files := one.missing(job))]
        made = self.prepare(job, work / self.home.preset, say) if lacking else None
        if made is not None:
            self.home.kept(job.name).mkdir(parents=True, exist_ok=True)
            for one, files in lacking:
                one.run(job, made, files, say)
        return made is not None or not lacking

    def cells(self) -> list[Cell]:
        """Every cell that the rows give, and every printed one, with `ours` empty where there are no rows."""
        printed = read_targets(self.home.folder)
        cells = [
            cell(key, printed.get(one.printed_as(key)), number, self.home.preset)
            for one in self.experiments
            for key, number in one.numbers(printed).items()
        ]
        known = {cell.key for cell in cells}
        cells += [
            cell(key, paper, Number(None), self.home.preset)
            for key, paper in printed.items()
            if key not in known
        ]
        # Of one number by two searches the printed one's comes first, but in tables of suites ours.
        return sorted(
            cells, key=lambda c: (*c.key[:6], c.metric, c.k, c.threat != SUITE and c.attack == "ours")
        )

    def sections(self, cells: Sequence[Cell]) -> list[str]:
        """The page below its head: what stands before the paper's tables, the tables, and what stands after."""
        parts = [part for one in self.experiments for part in one.opening(cells)]
        for table in sorted({one.table for one in cells}):
            inside = [one for one in cells if one.table == table]
            parts += [one.table(table, list(filter(one.shows, inside))) for one in self.experiments]
        parts += [part for one in self.experiments for part in one.closing()]
        return [*parts, self.costs()]

    def write(self) -> tuple[list[Cell], Path]:
        """Write what is generated from the rows of all presets, whichever this one is: every number, and the page."""
        if self.chooses:
            cells = [one for one in self.cells() if one.ours is not None]
            return cells, self.write_choice(cells)
        presets = presets_with_rows(self.home.folder) or {self.home.preset: self}
        cells = together([cell for one in presets.values() for cell in one.cells()])
        write_cells(self.home.folder / CELLS, cells)
        parts = [self._head(presets)]
        for preset, one in presets.items():
            if len(presets) > 1:
                parts.append(f"# Preset `{preset}`\n\n{one.drawn.capitalize()}.")
            parts += one.sections([cell for cell in cells if cell.preset == preset])
        page = self.home.folder / PAGE
        atomic_write(page, "\n\n".join(part for part in parts if part) + "\n")
        return cells, page

    def write_choice(self, cells: Sequence[Cell]) -> Path:
        """Write the page of a plan that chooses settings."""
        raise NotImplementedError

    def _head(self, presets: Mapping[str, AnyReproduction]) -> str:
        folder, (preset, first) = self.home.folder, next(iter(presets.items()))
        about = folder / "about.md"
        text = about.read_text().strip() if about.exists() else f"# Reproduction of {folder.name}"
        made = f"This page is generated from the rows by `holdfast reproduce {folder.name} --preset {preset}`"
        return f"{text}\n\n{made}{first.reading(len(presets) == 1)}"


AnyReproduction = Reproduction[Any, Any]


class Embedders(Reproduction[Job, Trained]):
    """A reproduction whose plan trains embedders."""

    def __init__(self, home: Home, plan: Plan) -> None:
        kinds = (Certificates, Attacks, Suites, SmoothedSearches)
        super().__init__(home, [kind(home, plan) for kind in kinds])
        self.plan, self.chooses = plan, plan.held_out

    def jobs(self, table: str | None = None, only: str | None = None) -> list[Job]:
        return self.plan.jobs(table, only)

    def prepare(self, job: Job, work: Path, say: Say) -> Trained | None:
        return trained(job, self.plan, work, say)

    def reading(self, alone: bool) -> str:
        if self.plan.smoothing is not None:
            return "; `cells.json` has every number with a 95 % interval over queries."
        drawn = f" at {self.drawn}" if alone else ""
        return (
            f". In every cell the printed number comes first, then ours: the mean over training seeds{drawn}, as far "
            "as the paper prints it. A dash stands for what is not printed or was not run. `cells.json` has every "
            "cell, with a 95 % interval where it is a mean over queries."
        )

    @property
    def drawn(self) -> str:
        suite = self.plan.suite
        if suite is None:
            return f"{self.plan.queries:,} queries against {self.plan.candidates:,} candidates"
        found = "all other" if suite.candidates is None else f"{suite.candidates:,}"
        return (
            f"{suite.queries:,} attacked queries ({suite.clean_queries:,} in the columns without an "
            f"attack; a data set or a table may say otherwise) against {found} images"
        )

    def costs(self) -> str:
        return runs_table(self.home, self.plan)

    def write_choice(self, cells: Sequence[Cell]) -> Path:
        return write_choice(self.home, self.plan, cells)


class Learners(Reproduction[MetricJob, Vectors]):
    """A reproduction whose plan is about metrics on sets of features."""

    def __init__(self, home: Home, plan: NeighbourPlan) -> None:
        self.metrics = Metrics(home, plan)
        super().__init__(home, [self.metrics])
        self.plan = plan

    def jobs(self, table: str | None = None, only: str | None = None) -> list[MetricJob]:
        return self.plan.jobs(table, only)

    def prepare(self, job: MetricJob, work: Path, say: Say) -> Vectors:
        return Vectors(features_of(self.plan.sets[job.dataset]), work)

    def reading(self, alone: bool) -> str:
        return (
            "; `cells.json` has every number of the tables of metrics with a 95 % interval over test points."
        )

    @property
    def drawn(self) -> str:
        return f"{self.plan.points:,} test points"

    def costs(self) -> str:
        return costs(self.metrics)


def presets_with_rows(folder: Path) -> dict[str, AnyReproduction]:
    """The presets of which there are rows, but those that choose settings."""
    rows = folder / "rows"
    presets = sorted(entry.name for entry in rows.iterdir() if entry.is_dir()) if rows.is_dir() else []
    found = {preset: open_reproduction(folder, preset) for preset in presets}
    return {preset: one for preset, one in found.items() if not one.chooses}


def open_reproduction(folder: Path, preset: str) -> AnyReproduction:
    """The reproduction in `folder`; a plan that names sets of features is about metrics."""
    path, home = plan_file(folder, preset), Home(folder, preset)
    if "sets" in read_toml(path):
        return Learners(home, parse_plan(NeighbourPlan, path))
    return Embedders(home, parse_plan(Plan, path))
