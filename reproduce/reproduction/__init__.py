"""Reproductions: a paper's tables from a plan of runs, with the rows committed and the pages generated.

It is no part of the package: it lies beside the rows that it makes, and `holdfast reproduce` finds it there.
"""

from reproduction.cells import Cell, read_targets, write_cells
from reproduction.experiment import Experiment, Home
from reproduction.plan import Job, Plan, read_plan
from reproduction.reproduction import Reproduction, open_reproduction

__all__ = [
    "Cell",
    "Experiment",
    "Home",
    "Job",
    "Plan",
    "Reproduction",
    "open_reproduction",
    "read_plan",
    "read_targets",
    "write_cells",
]
