"""The plan of the first hit: its runs are of settings that exist, and its tables say what is closed-set."""

from __future__ import annotations

from pathlib import Path

from holdfast.training import parse
from reproduction.cells import Number, cell
from reproduction.plan import read_plan
from reproduction.ranking import first_hit, recall_table

HOME = Path(__file__).resolve().parents[2] / "reproduce" / "kakizaki"


def test_its_runs_can_be_trained_and_closed_sets_are_called_so():
    plan = read_plan(HOME, "first-hit")
    jobs = plan.jobs()
    for job in jobs:
        parse(job.config)
    coded = [job for job in jobs if job.method.startswith("class-code")]
    assert {(job.dataset, job.config["defence"]["eps"]) for job in coded} == {
        ("mnist", 0.2),
        ("fashion-mnist", 0.1),
        ("fashion-mnist", 0.2),
        ("cifar-10", 2 / 255),
    }
    assert all(plan.says(job.method).startswith("closed-set") == (job in coded) for job in jobs)

    def shown(method: str) -> list[str]:
        key = ("first hit", "fashion-mnist", "small", method, "query", "0.1", 1, "certified_hit_rate")
        cells = [cell(key, None, Number(0.5, n=10, seeds=1), "first-hit")]
        return [recall_table("first hit", cells, plan), first_hit(cells, plan)]

    for table in shown("class-code-eps=0.1"):
        assert "class-code-eps=0.1 (closed-set: the classes of the training set) |" in table
    for table in shown("certified-rank"):
        assert "| certified-rank |" in table
        assert "closed-set" not in table
