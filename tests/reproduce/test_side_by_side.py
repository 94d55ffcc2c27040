"""Bounds and smoothing in one table, from rows of both."""

from __future__ import annotations

from holdfast.evaluate.smoothed_tables import radii_of
from holdfast.reproduce import make_cells, read_plan, reproduce_job, write_page
from holdfast.rows import read_rows

PLAN = """
queries = 20
candidates = 30
ks = [1]

[tests.paper]
method = "paper"
clip = false

[tests.tight]
method = "elided"

[smoothing]
queries = 12
candidates = 30
n = 200
first = 20
gallery = 4

[datasets.mini]
train_eps = "0.002"
data = { name = "fashion-mnist-mini", validation = 0 }

[methods.triplet]
seeds = [0]
defence.name = "triplet"
train = { steps = 8, batch = 40 }

[methods.gdml]
seeds = [0]
defence.name = "margin"
model.unit_norm = true
train = { steps = 8, batch = 40, noise = 0.1 }
sigmas = [0.1]

[[experiments]]
model = "small"
datasets = ["mini"]
methods = ["triplet", "gdml"]
tables = { "0.002" = "high resolution", "0" = "high resolution" }
"""


def test_a_proof_by_bounds_stands_beside_one_by_smoothing(tmp_path):
    home = tmp_path / "reproduce" / "paper"
    home.mkdir(parents=True)
    (home / "tiny.toml").write_text(PLAN)
    (home / "targets.json").write_text("[]")
    plan = read_plan(home, "tiny")
    for job in plan.jobs():
        assert reproduce_job(home, "tiny", job, plan, tmp_path / "work", lambda line: None)
    page = write_page(home, {"tiny": plan}, make_cells(home, "tiny", plan)).read_text()
    table = page.split("## Bounds beside smoothing")[1].split("\n## ")[0]
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table.splitlines()
        if line.startswith("| mini")
    ]
    assert [line[2:4] for line in lines] == [
        ["triplet", "bounds"],
        ["gdml", "bounds"],
        ["gdml", "smoothing, σ = 0.1"],
    ]
    rows = home / "rows" / "tiny"
    proved = read_rows(rows / "mini-small-triplet-s0" / "tight.csv.gz").columns
    mine = proved["hit_1"][proved["threat"] == "query:linf:0.002"].mean()
    assert (lines[0][4], lines[0][7]) == ("20", f"{mine:.2f}".removeprefix("0"))
    assert lines[0][8:] == ["–", "–", "–"], "a proof by bounds says nothing of a larger ℓ2 ball"
    right, radius = radii_of(read_rows(rows / "mini-small-gdml-s0" / "smoothed-0.1.csv.gz"), "cdf", 1)
    shares = [right.mean(), *((radius > r).mean() for r in (0.002 * 28, 0.1, 0.25, 0.5))]
    assert lines[2][6:] == [f"{share:.2f}".removeprefix("0") for share in shares]
    assert (radius > 0.002).mean() != shares[1], "an ℓ∞ ball needs an ℓ2 radius √d times as large"
