"""Reproductions: a paper's tables from a plan of runs, with the rows committed and the pages generated."""

from holdfast.reproduce.cells import Cell, all_cells, make_cells, read_targets
from holdfast.reproduce.opening import Reproduction, open_reproduction
from holdfast.reproduce.page import write_page
from holdfast.reproduce.plan import Job, Plan, read_plan
from holdfast.reproduce.run import reproduce_job

__all__ = [
    "Cell",
    "Job",
    "Plan",
    "Reproduction",
    "all_cells",
    "make_cells",
    "open_reproduction",
    "read_plan",
    "read_targets",
    "reproduce_job",
    "write_page",
]
