"""What every kind of measurement of a reproduction has in common: what it runs, its rows, its cells, its page."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from holdfast.errors import ConfigError
from holdfast.progress import Say
from reproduction.cells import Cell, Key, Number

AnyPlan = TypeVar("AnyPlan")
Job = TypeVar("Job")
Made = TypeVar("Made")
RUN = "run.json"
"""The record of a run, beside its rows: its settings and their hash, what it cost, versions and commit."""


@dataclass(frozen=True)
class Home:
    """A folder below reproduce/ and one of its presets."""

    folder: Path
    preset: str

    def kept(self, run: str) -> Path:
        """Where the rows of a run are kept."""
        return self.folder / "rows" / self.preset / run


class Experiment(ABC, Generic[AnyPlan, Job, Made]):
    """One kind of measurement that a plan may ask for; a run is what is measured.

    Rows are of the plan if the settings that they were made with have the hash of the plan's settings, whichever
    version of the code made them.
    """

    name: ClassVar[str]

    def __init__(self, home: Home, plan: AnyPlan) -> None:
        self.home, self.plan = home, plan

    @abstractmethod
    def planned(self, job: Job) -> dict[Path, str]:
        """The files that the plan asks of a run, each with the hash of its settings; none if it asks for nothing."""

    @abstractmethod
    def settings(self, file: Path) -> str:
        """The hash of the settings that a file was made with."""

    @abstractmethod
    def run(self, job: Job, made: Made, files: Sequence[Path], say: Say) -> None:
        """Make the files that are missing."""

    def missing(self, job: Job) -> list[Path]:
        """The files that are not there yet; one of other settings is an error, never mixed in."""
        lacking = []
        for file, wanted in self.planned(job).items():
            if not file.exists():
                lacking.append(file)
            elif self.settings(file) != wanted:
                raise ConfigError(f"{file} is of other settings than the plan's; remove it to run it anew")
        return lacking

    def numbers(self, printed: dict[Key, float]) -> dict[Key, Number]:
        """What the rows that are there say, by cell."""
        return {}

    def printed_as(self, key: Key) -> Key:
        """The key of the printed number beside which a cell stands."""
        return key

    def opening(self, cells: Sequence[Cell]) -> list[str]:
        """Sections of the page that come before the paper's tables."""
        return []

    def shows(self, cell: Cell) -> bool:
        """Whether the cell stands in one of its tables."""
        return False

    def table(self, number: str, cells: Sequence[Cell]) -> str:
        """A table of the paper, from the cells that it shows."""
        return ""

    def closing(self) -> list[str]:
        """Sections that come after the paper's tables."""
        return []
