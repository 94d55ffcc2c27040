"""A reproduction by its folder and preset: what it runs, what is done, its cells and its page, whatever its plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from holdfast.reproduce.cells import CELLS, Cell, all_cells, make_cells, write_cells
from holdfast.reproduce.choice import write_choice
from holdfast.reproduce.neighbours import NeighbourPlan, NeighbourReproduction
from holdfast.reproduce.page import write_page
from holdfast.reproduce.plan import Job, Plan, parse_plan, plan_file, read_plan
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

    def write(self) -> tuple[list[Cell], Path]:
        """Write what is generated from the rows; every number, ours beside the printed one, and where the page is."""
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

    def write(self) -> tuple[list[Cell], Path]:
        """The cells and the page of the paper are made from the rows of all its presets, whichever this one is.

        A plan that chooses settings has a page of its own, and its numbers are no cells of the paper.
        """
        if self.plan.held_out:
            cells = [one for one in make_cells(self.folder, self.preset, self.plan) if one.ours is not None]
            return cells, write_choice(self.folder, self.preset, self.plan, cells)
        plans = plans_with_rows(self.folder) or {self.preset: self.plan}
        cells = all_cells(self.folder, plans)
        write_cells(self.folder / CELLS, cells)
        return cells, write_page(self.folder, plans, cells)


def plans_with_rows(folder: Path) -> dict[str, Plan]:
    """The plans of which there are rows, but those that choose settings."""
    rows = folder / "rows"
    presets = sorted(entry.name for entry in rows.iterdir() if entry.is_dir()) if rows.is_dir() else []
    plans = {preset: read_plan(folder, preset) for preset in presets}
    return {preset: plan for preset, plan in plans.items() if not plan.held_out}


def open_reproduction(folder: Path, preset: str) -> Reproduction:
    """The reproduction in `folder`; a plan that names sets of features is about metrics."""
    path = plan_file(folder, preset)
    if "sets" in read_toml(path):
        return NeighbourReproduction(folder, preset, parse_plan(NeighbourPlan, path))
    return EmbedderReproduction(folder, preset, parse_plan(Plan, path))
