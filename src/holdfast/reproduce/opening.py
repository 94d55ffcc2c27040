"""A reproduction by its folder and preset: what it runs, what is done, its cells and its page, whatever its plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from holdfast.reproduce.cells import Cell, make_cells
from holdfast.reproduce.neighbours import NeighbourPlan, NeighbourReproduction
from holdfast.reproduce.page import write_page
from holdfast.reproduce.plan import Job, Plan, parse_plan, plan_file
from holdfast.reproduce.run import missing_parts, reproduce_job
from holdfast.training import read_toml


class Named(Protocol):
    """A run of a plan."""

    @property
    def name(self) -> str: ...


class Reproduction(Protocol):
    """What `holdfast reproduce` needs of one."""

    def jobs(self, table: str | None = None, only: str | None = None) -> Sequence[Named]:
        """The runs that stand in `table` and whose name matches `only`."""
        ...

    def missing(self, job: Any) -> list[str]:
        """What of a run has no rows yet."""
        ...

    def run(self, job: Any, work: Path, say: Callable[[str], None]) -> bool:
        """Do one run and keep its rows; False if it was stopped on the way."""
        ...

    def cells(self) -> list[Cell]:
        """Every number, ours beside the printed one."""
        ...

    def page(self, cells: list[Cell]) -> Path:
        """Write the page."""
        ...


class EmbedderReproduction:
    """A folder below reproduce/ whose plan trains embedders."""

    def __init__(self, folder: Path, preset: str, plan: Plan) -> None:
        self.folder, self.preset, self.plan = folder, preset, plan

    def jobs(self, table: str | None = None, only: str | None = None) -> list[Job]:
        return self.plan.jobs(table, only)

    def missing(self, job: Job) -> list[str]:
        return missing_parts(self.folder, self.preset, job, self.plan)

    def run(self, job: Job, work: Path, say: Callable[[str], None]) -> bool:
        return reproduce_job(self.folder, self.preset, job, self.plan, work, say)

    def cells(self) -> list[Cell]:
        return make_cells(self.folder, self.preset, self.plan)

    def page(self, cells: list[Cell]) -> Path:
        return write_page(self.folder, self.preset, self.plan, cells)


def open_reproduction(folder: Path, preset: str) -> Reproduction:
    """The reproduction in `folder`; a plan that names sets of features is about metrics."""
    path = plan_file(folder, preset)
    if "sets" in read_toml(path):
        return NeighbourReproduction(folder, preset, parse_plan(NeighbourPlan, path))
    return EmbedderReproduction(folder, preset, parse_plan(Plan, path))
