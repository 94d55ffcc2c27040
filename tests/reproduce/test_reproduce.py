from __future__ import annotations

import json

import numpy as np
import pytest

from holdfast.errors import ConfigError
from holdfast.evaluate.rows import read_rows
from holdfast.reproduce import make_cells, read_plan, reproduce_job, write_page
from holdfast.reproduce.cells import write_cells
from holdfast.reproduce.run import missing_parts

PLAN = """
queries = 60
candidates = 80
ks = [1, 5]

[tests.paper]
method = "paper"
clip = false
rounding = false

[tests.tight]
method = "elided"

[attacks]
tables = ["2"]
seeds = [0]
steps = 2
ca_queries = 3
sources = 20

[datasets.mini]
train_eps = "0.1"
data = { name = "fashion-mnist-mini", validation = 0.1 }

[methods.triplet]
seeds = [0, 1]
defence.name = "triplet"
train = { steps = 3, batch = 40 }

[methods.tbt]
seeds = [0]
defence.name = "tbt"
train = { steps = 3, batch = 40 }

[methods.tbt.on.mini]
defence.kappa = 0.25

[methods.tuned]
seeds = [0]
start = "tbt"
defence.name = "fctb"
train = { steps = 2, batch = 40 }

[[experiments]]
model = "small"
datasets = ["mini"]
methods = ["triplet", "tuned"]
tables = { "0.02" = "2", "2/255" = "3", "0" = "1" }
"""


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "reproduce" / "paper"
    folder.mkdir(parents=True)
    (folder / "tiny.toml").write_text(PLAN)
    cell = {
        "table": "2", "dataset": "mini", "model": "small", "method": "triplet", "threat": "query",
        "eps": "0.02", "k": 5, "metric": "cr_recall", "paper": 0.01,
    }  # fmt: skip
    (folder / "targets.json").write_text(json.dumps([cell, {**cell, "method": "unheard-of"}]))
    return folder


def test_a_plan_makes_each_run_once_and_what_it_builds_on_first(home):
    plan = read_plan(home, "tiny")
    names = [job.name for job in plan.jobs()]
    assert names == [
        "mini-small-triplet-s0",
        "mini-small-triplet-s1",
        "mini-small-tbt-s0",
        "mini-small-tuned-s0",
    ]
    assert [job.name for job in plan.jobs(only="*tuned*")] == names[2:]
    assert plan.jobs(table="9") == []
    tbt = plan.jobs(only="*tuned*")[0]
    assert tbt.config["defence"] == {"name": "tbt", "kappa": 0.25, "eps": 0.1}
    assert tbt.eps == ["0.02", "2/255"]
    assert plan.jobs(only="*tuned*")[1].config["defence"]["draw_seed"] == 0
    assert "eps" not in plan.jobs(only="*triplet-s1")[0].config["defence"]


def test_from_plan_to_page(home, tmp_path):
    plan = read_plan(home, "tiny")
    said: list[str] = []
    for job in plan.jobs():
        assert reproduce_job(home, "tiny", job, plan, tmp_path / "work", said.append)
        assert missing_parts(home, "tiny", job, plan) == []
    attacked = home / "rows" / "tiny" / "mini-small-triplet-s0" / "er-recall.csv.gz"
    kept = attacked.read_bytes()
    attacked.unlink()
    assert missing_parts(home, "tiny", plan.jobs()[0], plan) == ["attacks"]
    assert reproduce_job(home, "tiny", plan.jobs()[0], plan, tmp_path / "work", said.append)
    assert attacked.read_bytes() == kept, "the same network attacked anew gives the same rows"
    before = len(said)
    assert reproduce_job(home, "tiny", plan.jobs()[0], plan, tmp_path / "nowhere", said.append)
    assert len(said) == before, "finished rows are not made again"

    cells = make_cells(home, "tiny", plan)
    by_key = {cell.key: cell for cell in cells}
    found = by_key["2", "mini", "small", "triplet", "query", "0.02", 5, "cr_recall"]
    rows = [read_rows(home / "rows" / "tiny" / f"mini-small-triplet-s{s}" / "paper.csv.gz") for s in (0, 1)]
    naive = [
        np.mean([cr for cr, threat in zip(r.columns["cr_5"], r.columns["threat"], strict=True)
                 if threat == "query:linf:0.02"])
        for r in rows
    ]  # fmt: skip
    assert found.ours == pytest.approx(np.mean(naive))
    assert (found.paper, found.n, found.seeds) == (0.01, 120, 2)
    assert found.ci_low <= found.ours <= found.ci_high
    clean = by_key["1", "mini", "small", "triplet", "none", "0", 1, "recall"]
    assert clean.ours == pytest.approx(np.mean([r.columns["recall_1"][:60].mean() for r in rows]))
    assert by_key["2", "mini", "small", "unheard-of", "query", "0.02", 5, "cr_recall"].ours is None
    tight = by_key["3", "mini", "small", "tuned", "candidates", "2/255", 5, "cr_recall_tight"]
    assert tight.ours >= by_key["3", "mini", "small", "tuned", "candidates", "2/255", 5, "cr_recall"].ours
    er = by_key["2", "mini", "small", "triplet", "candidates", "0.02", 5, "er_recall"]
    assert (er.n, er.seeds) == (3, 1)
    attacked_rows = read_rows(attacked).columns
    mine = attacked_rows["threat"] == "candidates:linf:0.02"
    assert er.ours == pytest.approx(attacked_rows["attacked_5"][mine].mean())
    write_cells(home / "cells.json", cells)
    assert len(json.loads((home / "cells.json").read_text())) == len(cells)
    page = write_page(home, "tiny", plan, cells).read_text()
    assert "## Table 2" in page
    assert f".01 / {found.ours:.2f}".replace("/ 0.", "/ .") in page

    (home / "tiny.toml").write_text(PLAN.replace("steps = 3", "steps = 4"))
    changed = read_plan(home, "tiny")
    with pytest.raises(ConfigError, match="other settings"):
        missing_parts(home, "tiny", changed.jobs()[0], changed)
    (home / "rows" / "tiny" / changed.jobs()[0].name / "run.json").unlink()
    with pytest.raises(ConfigError, match=r"another plan: train\.steps"):
        reproduce_job(home, "tiny", changed.jobs()[0], changed, tmp_path / "work", said.append)


def test_attacks_of_another_network_are_not_mixed_in(home, tmp_path):
    plan = read_plan(home, "tiny")
    one, other = plan.jobs(only="*triplet-s0")[0], plan.jobs(only="*tuned*")[0]
    for job in (one, other):
        assert reproduce_job(home, "tiny", job, plan, tmp_path / "work", lambda line: None)
    rows = home / "rows" / "tiny"
    (rows / one.name / "er-recall.csv.gz").write_bytes((rows / other.name / "er-recall.csv.gz").read_bytes())
    with pytest.raises(ConfigError, match="other settings"):
        missing_parts(home, "tiny", one, plan)


def test_what_is_wrong_with_a_plan_is_said(home):
    with pytest.raises(ConfigError, match="no preset 'laptop'; known: tiny"):
        read_plan(home, "laptop")
    (home / "tiny.toml").write_text(PLAN + "colour = 1\n")
    with pytest.raises(ConfigError, match="colour"):
        read_plan(home, "tiny")
    (home / "tiny.toml").write_text(PLAN.replace('methods = ["triplet", "tuned"]', 'methods = ["other"]'))
    with pytest.raises(ConfigError, match="no method 'other'; known: tbt, triplet, tuned"):
        read_plan(home, "tiny").jobs()


def test_the_committed_plans_are_whole():
    from pathlib import Path

    from holdfast.training import parse

    home = Path(__file__).parents[2] / "reproduce" / "kakizaki"
    for preset in ("laptop", "paper"):
        plan = read_plan(home, preset)
        tables = {table for job in plan.jobs() for table in job.tables.values()}
        assert {"6", "7"} <= tables
        for job in plan.jobs():
            start = {"defence": {**job.config["defence"], "start": "x"}} if job.start else {}
            assert parse({**job.config, **start}).seed == job.seed
