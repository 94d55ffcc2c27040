from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from holdfast.errors import ConfigError
from holdfast.evaluate.scores import ars_difference, score_suite
from holdfast.reproduce import cells as cells_of_rows
from holdfast.reproduce import make_cells, open_reproduction, read_plan, reproduce_job, write_page
from holdfast.reproduce.cells import read_targets, write_cells
from holdfast.reproduce.run import er_rows, missing_parts
from holdfast.rows import read_header, read_rows
from holdfast.training import held_out, load_data, parse

PLAN = """
queries = 60
candidates = 80
ks = [1, 5]

[tests.paper]
method = "paper"
clip = false
rounding = false

[tests.tight]
method = "last-layer"

[attacks]
tables = ["2"]
seeds = [0]
steps = 2
ca_queries = 3
sources = 20

[attacks.on.triplet]
by = ["ours", "published"]

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
    attacked = {**cell, "threat": "candidates", "metric": "er_recall", "paper": 0.5}
    (folder / "targets.json").write_text(json.dumps([cell, {**cell, "method": "unheard-of"}, attacked]))
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


def test_a_network_may_have_its_own_settings(home):
    more = PLAN.replace("[datasets.mini]", "[attacks.on.large]\nca_queries = 2\n\n[datasets.mini]")
    more += """
[methods.tbt.on.large]
train.steps = 5

[[experiments]]
model = "large"
datasets = ["mini"]
methods = ["tbt"]
tables = { "0.02" = "2" }
"""
    (home / "tiny.toml").write_text(more)
    plan = read_plan(home, "tiny")
    small, large = plan.jobs(only="*small-tbt-*"), plan.jobs(only="*large-tbt-*")
    jobs = {job.model: job for job in plan.jobs() if job.method == "tbt"}
    assert (len(small), len(large)) == (0, 1), "the small one is only there for what it begins"
    assert [jobs[name].config["train"]["steps"] for name in ("small", "large")] == [3, 5]
    assert jobs["large"].config["defence"]["kappa"] == 0.25
    assert [plan.attacks_of(jobs[name]).ca_queries for name in ("small", "large")] == [3, 2]


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
    for by in ("ours", "published"):
        er = by_key["2", "mini", "small", "triplet", "candidates", "0.02", 5, "er_recall", by]
        assert (er.n, er.seeds) == (3, 1)
        assert er.paper == (0.5 if by == "published" else None), "printed numbers stand with their own attack"
        attacked_rows = read_rows(attacked.with_name(er_rows(by)))
        assert attacked_rows.header["config"]["search"][0]["steps"] == (2 if by == "ours" else 100)
        mine = attacked_rows.columns["threat"] == "candidates:linf:0.02"
        assert er.ours == pytest.approx(attacked_rows.columns["attacked_5"][mine].mean())
    tuned = ("2", "mini", "small", "tuned", "candidates", "0.02", 5, "er_recall")
    assert (*tuned, "ours") in by_key
    assert (*tuned, "published") not in by_key, "only triplet is attacked as published"
    random = by_key["1", "mini", "small", "chance", "none", "0", 1, "recall"]
    shares = [np.unique(r.columns["label"][:60], return_counts=True)[1] / 60 for r in rows]
    assert random.ours == pytest.approx(np.mean([(share**2).sum() for share in shares]))
    write_cells(home / "cells.json", cells)
    assert len(json.loads((home / "cells.json").read_text())) == len(cells)
    page = write_page(home, {"tiny": plan}, cells).read_text()
    assert "## Table 2" in page
    first = next(line for line in page.splitlines() if line.startswith("| mini | small | 0.02 | triplet"))
    assert f"| {random.ours:.2f} | {clean.ours:.2f} |".replace(" 0.", " .") in first
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


def test_certificates_can_be_on_images_held_out_of_training(home, tmp_path):
    """Rows of the run's own held-out images, which no training saw; the switch counts as a setting of the rows."""
    switched = "held_out = true\n" + PLAN.replace('tables = ["2"]', 'tables = ["9"]')
    (home / "tiny.toml").write_text(switched)
    plan = read_plan(home, "tiny")
    job = plan.jobs(only="*triplet-s0")[0]
    assert reproduce_job(home, "tiny", job, plan, tmp_path / "work", lambda line: None)
    rows = read_rows(home / "rows" / "tiny" / job.name / "tight.csv.gz").columns
    held = held_out(tmp_path / "work" / "tiny" / job.name)
    training = load_data(parse(job.config)).train
    assert len(held) == 0.1 * len(training)
    assert set(rows["query"]) <= set(held.ids)
    assert not set(rows["query"]) & set(load_data(parse(job.config)).test.ids)

    (home / "tiny.toml").write_text(switched.replace("held_out = true\n", ""))
    plain = read_plan(home, "tiny")
    with pytest.raises(ConfigError, match="other settings"):
        missing_parts(home, "tiny", plain.jobs(only="*triplet-s0")[0], plain)


SUITE = """
queries = 60
candidates = 80
ks = [1]

[suite]
clean_queries = 20
queries = 12
candidates = 40
steps = 2
attacks = ["ours", "published"]
scores = { ers = "2", ars = "1" }
compare = [["act", "est"]]

[datasets.mini]
train_eps = "8/255"
data = { name = "fashion-mnist-mini", validation = 0 }

[methods.act]
seeds = [0, 1]
defence = { name = "act", attack_steps = 1 }
train = { steps = 2, batch = 16 }

[methods.est]
seeds = [0, 1]
defence = { name = "est", attack_steps = 1 }
train = { steps = 2, batch = 16 }

[[experiments]]
model = "small"
datasets = ["mini"]
methods = ["act", "est"]
tables = { "8/255" = "1" }
"""


def test_a_suite_is_a_table_of_attacks(home, tmp_path):
    (home / "tiny.toml").write_text(SUITE)
    cell = {
        "table": "1", "dataset": "mini", "model": "small", "method": "act", "threat": "suite", "eps": "8/255",
        "k": 0, "metric": "ARS", "paper": 40.3,
    }  # fmt: skip
    (home / "targets.json").write_text(json.dumps([cell]))
    plan = read_plan(home, "tiny")
    for job in plan.jobs():
        assert missing_parts(home, "tiny", job, plan) == ["run", "suite"]
        assert reproduce_job(home, "tiny", job, plan, tmp_path / "work", lambda line: None)
        assert missing_parts(home, "tiny", job, plan) == []
    made = make_cells(home, "tiny", plan)
    cells = {(c.table, c.metric, c.attack): c for c in made if c.method == "act"}
    every = [read_rows(home / "rows" / "tiny" / job.name / "suite.csv.gz") for job in plan.jobs()]
    runs, others = every[:2], every[2:]
    named = [job.name for job in plan.jobs()][:2]
    published = [read_rows(home / "rows" / "tiny" / name / "suite-published.csv.gz") for name in named]
    for by, some in (("ours", runs), ("published", published)):
        for table, metric, want in (
            ("1", "ARS", [score_suite(rows).ars_ratio.value for rows in some]),
            ("2", "ERS", [score_suite(rows).ers.value for rows in some]),
            ("2", "QA+", [score_suite(rows).reached["QA+"] for rows in some]),
        ):
            assert cells[table, metric, by].ours == pytest.approx(np.mean(want))
    # A printed number stands beside the published attack alone.
    beside = cells["1", "ARS", "published"]
    assert (beside.paper, beside.seeds, cells["1", "ARS", "ours"].paper) == (40.3, 2, None)
    mended = [score_suite(rows).ers_gtm_mended.value for rows in published]
    assert cells["2", "ERS (GTM mended)", "published"].ours == pytest.approx(np.mean(mended))
    assert {metric for table, metric, _ in cells if table == "1"} >= {"R@1", "R@2", "mAP", "NMI", "CA+"}
    assert ("1", "R@1", "") in cells, "without an attack there is none to name"
    page = write_page(home, {"tiny": plan}, made).read_text()
    assert f"40.3 / {beside.ours:.1f}" in page
    assert f"– / {cells['1', 'ARS', 'ours'].ours:.1f}" in page
    write_cells(home / "cells.json", made)
    kept = json.loads((home / "cells.json").read_text())
    assert {cell.get("attack") for cell in kept if cell["metric"] == "ERS"} == {"ours", "published"}
    assert all("attack" not in cell for cell in kept if cell["metric"] == "R@1")
    gaps, (low, high) = ars_difference(runs, others)
    scores = [[score_suite(rows).ars_ratio.value for rows in some] for some in (runs, others)]
    assert gaps == pytest.approx([one - other for one, other in zip(*scores, strict=True)])
    assert low <= np.mean(gaps) <= high
    line = next(line for line in page.splitlines() if "| ours | act − est |" in line)
    assert f"| {np.mean(gaps):+.1f} | {low:+.1f} to {high:+.1f} |" in line
    assert f"| {gaps[0]:+.1f}, {gaps[1]:+.1f} |" in line
    # Of two numbers the t interval is their mean ± 12.706 · half their distance.
    half = 12.7062 * abs(gaps[0] - gaps[1]) / 2
    assert f"| {np.mean(gaps) - half:+.1f} to {np.mean(gaps) + half:+.1f} |" in line
    assert ars_difference(runs, runs)[1] == (0, 0)
    assert "On the way" in page
    (home / "tiny.toml").write_text(SUITE.replace("steps = 2\nattacks", "steps = 3\nattacks"))
    with pytest.raises(ConfigError, match="other settings"):
        missing_parts(home, "tiny", plan.jobs()[0], read_plan(home, "tiny"))


ONE = (
    SUITE.replace(
        'seeds = [0, 1]\ndefence = { name = "act"', 'seeds = [0]\nprinted = "ACT"\ndefence = { name = "act"'
    )
    .replace('methods = ["act", "est"]', 'methods = ["act"]')
    .replace("queries = 12\ncandidates = 40\nsteps = 2", "queries = 6\ncandidates = 20\nsteps = 1")
)
CHOICE = (
    ("held_out = true\n" + ONE)
    .replace("validation = 0", "validation = 0.25")
    .replace(
        'tables = { "8/255" = "1" }', 'tables = { "8/255" = "rates" }\nsweep = { "train.lr" = [0.01, 0.001] }'
    )
)


def test_presets_of_one_paper_do_not_overwrite_each_other(home, tmp_path):
    """Cells and page are of all rows, whichever preset is asked for; a choice of settings has its own page."""
    for name, text in (("first", ONE), ("second", ONE), ("choice", CHOICE)):
        (home / f"{name}.toml").write_text(text)
    (home / "tiny.toml").unlink()

    def do(preset):
        found = open_reproduction(home, preset)
        for job in found.jobs():
            assert found.run(job, tmp_path / "work", lambda line: None)
        return found.write()

    def kept():
        return [(home / name).read_text() for name in ("cells.json", "results.md")]

    cell = {
        "table": "1", "dataset": "mini", "model": "small", "method": "ACT", "threat": "suite", "eps": "8/255",
        "k": 0, "metric": "ARS", "paper": 40.3,
    }  # fmt: skip
    (home / "targets.json").write_text(json.dumps([cell, {**cell, "dataset": "unheard-of"}]))
    cells, page = do("second")
    (beside,) = (
        one for one in cells if (one.metric, one.attack) == ("ARS", "published") and one.method == "act"
    )
    assert beside.paper == 40.3, "by the name that the paper prints"
    assert {cell.preset for cell in cells} == {"second"}
    assert page == home / "results.md"
    assert "# Preset" not in page.read_text()
    alone = kept()
    chosen, page = do("choice")
    assert page == home / "choice.md"
    assert kept() == alone, "nothing of the paper's is touched"
    rows = home / "rows" / "choice"
    names = [job.name for job in open_reproduction(home, "choice").jobs()]
    assert names == ["mini-small-act-lr=0.01-s0", "mini-small-act-lr=0.001-s0"]
    held, test = (
        read_header(home / "rows" / preset / name / "suite.csv.gz")["config"]["images"]
        for preset, name in (("choice", names[0]), ("second", "mini-small-act-s0"))
    )
    assert held != test, "settings are not chosen on the test part"
    scores = {name: score_suite(read_rows(rows / name / "suite.csv.gz")) for name in names}
    ars = {name: scores[name].ars_ratio.value for name in names}
    lines = [line.split(" | ") for line in page.read_text().splitlines() if line.startswith("| act-lr")]
    assert [line[0][2:] for line in lines] == [
        name.removeprefix("mini-small-") for name in sorted(names, key=lambda name: -ars[name])
    ]
    head = next(line for line in page.read_text().splitlines() if line.startswith("| run")).split(" | ")
    for line in lines:
        name = f"mini-small-{line[0][2:]}"
        at = dict(zip(head, line, strict=True))
        assert at["ARS, ours"].startswith(f"{ars[name]:.1f} (")
        record = json.loads((rows / name / "run.json").read_text())
        # Two steps of 8 pairs with one PGD step: two images move, three are in the loss.
        assert at["gradients"] == f"{2 * 8 * (2 + 3) / 1e6:.2f} M"
        assert at["else"] == f"lr {record['config']['train']['lr']:g}"
        assert at["ARS a minute |"] == f"{ars[name] / record['metrics']['cpu_seconds'] * 60:.1f} |"
    assert chosen
    assert all(cell.ours is not None for cell in chosen)
    cells, page = do("first")
    assert {cell.preset for cell in cells if cell.ours is not None} == {"first", "second"}
    empty = [cell for cell in cells if cell.ours is None]
    assert len(empty) == len({one.key for one in empty}), "a printed number stands once"
    assert "unheard-of" in {one.dataset for one in empty}
    both = kept()
    assert both[1].count("# Preset `") == 2
    assert open_reproduction(home, "second").write()[1] == page
    assert kept() == both, "the same from either"


def test_a_printed_number_stands_with_the_others_of_its_table(monkeypatch):
    def one(preset, table, paper, ours, *attack):
        key = (table, "mini", "small", "tbt", "query", "0.1", 1, "er_recall", *attack)
        return cells_of_rows.cell(key, paper, ours, None, None, 5, 1, preset)

    made = {
        "first": [one("first", "6", 0.5, None, "published"), one("first", "9", 0.7, None, "published")],
        "second": [
            one("second", "6", 0.5, None, "published"),
            one("second", "9", 0.7, None, "published"),
            one("second", "6", None, 0.4, "ours"),
        ],
    }
    monkeypatch.setattr(cells_of_rows, "make_cells", lambda folder, preset, plan: made[preset])
    kept = cells_of_rows.all_cells(Path(), dict.fromkeys(made))
    assert [(c.preset, c.table, c.attack) for c in kept] == [
        ("first", "9", "published"),
        ("second", "6", "published"),
        ("second", "6", "ours"),
    ]


def test_an_experiment_may_ask_fewer_queries(home):
    other = """
[[experiments]]
model = "small"
datasets = ["mini"]
methods = ["METHOD"]
tables = { "8/255" = "3" }
suite.queries = 5
"""
    (home / "tiny.toml").write_text(ONE + other.replace("METHOD", "est"))
    plan = read_plan(home, "tiny")
    asked = {job.method: plan.suite_of(job) for job in plan.jobs()}
    assert [asked[name].queries for name in ("act", "est")] == [6, 5]
    assert asked["est"].clean_queries == 20
    (home / "tiny.toml").write_text(ONE + other.replace("METHOD", "act"))
    with pytest.raises(ConfigError, match="mini-small-act-s0 stands in experiments with different suites"):
        read_plan(home, "tiny").jobs()


SMOOTHED = """
queries = 8
candidates = 30
ks = [1]

[smoothing]
queries = 8
n = 60
first = 20
gallery = 4
attacks = [0.5]

[datasets.mini]
data = { name = "fashion-mnist-mini", validation = 0 }
smoothing = { candidates = 30, marks = [30] }

[methods.dml]
seeds = [0]
defence.name = "margin"
model.unit_norm = true
train = { steps = 8, batch = 40 }
sigmas = [0.1, 0.5]

[methods.gdml]
seeds = [0, 1]
defence.name = "margin"
model.unit_norm = true
train = { steps = 8, batch = 40, noise = 0.1 }
sigmas = [0.1]
smoothing = { n = 80, alphas = [0.1] }

[[experiments]]
model = "small"
datasets = ["mini"]
methods = ["dml", "gdml"]
tables = { "0" = "figure 2" }
"""


def test_smoothed_searches_are_figures(home, tmp_path):
    (home / "tiny.toml").write_text(SMOOTHED)
    (home / "targets.json").write_text("[]")
    plan = read_plan(home, "tiny")
    jobs = plan.jobs()
    assert missing_parts(home, "tiny", jobs[0], plan)[-1] == "smoothed search"
    for job in jobs:
        assert reproduce_job(home, "tiny", job, plan, tmp_path / "work", lambda line: None)
        assert missing_parts(home, "tiny", job, plan) == []
    files = sorted(path.name for path in (home / "rows" / "tiny" / "mini-small-dml-s0").iterdir())
    assert files == ["run.json", "smoothed-0.1.csv.gz", "smoothed-0.5.csv.gz"]
    cells = {(c.method, c.eps, c.k, c.metric): c for c in make_cells(home, "tiny", plan)}
    kept = [
        read_rows(home / "rows" / "tiny" / f"mini-small-gdml-s{s}" / "smoothed-0.1.csv.gz") for s in (0, 1)
    ]
    columns = {
        name: np.concatenate([rows.columns[name] for rows in kept])
        for name in ("answerable", "voted_1", "votes_1", "votes_1_a0.1")
    }
    some = columns["answerable"] > 0
    radius = np.where(columns["voted_1"] > 0, columns["votes_1"], 0)[some]
    cell = cells["gdml", "0.1", 1, "mean radius: votes, n = 80"]
    assert (cell.ours, cell.n, cell.seeds) == (pytest.approx(radius.mean()), some.sum(), 2)
    assert cell.ours > 0
    surer = cells["gdml", "0.1", 1, "mean radius: votes, n = 80, alpha = 0.1"]
    assert surer.ours == pytest.approx(
        np.where(columns["voted_1"] > 0, columns["votes_1_a0.1"], 0)[some].mean()
    )
    assert cells["gdml", "0.1", 1, "recall at r > 0: votes, n = 80"].ours == pytest.approx(
        (radius > 0).mean()
    )
    assert ("dml", "0.5", 5, "mean radius: cdf, n = 30") in cells
    text = write_page(home, {"tiny": plan}, list(cells.values())).read_text()
    assert "## Figure 2: Recall@1(r)" in text
    assert "paper, projected to n = 100,000" in text
    assert "## Radius against the number of samples" in text
    assert "## Radius against the failure probability" in text
    assert f"| mini | gdml | 0.1 | 0.05 | {some.sum()} |" in text, "an attack of half the noise"
    (home / "tiny.toml").write_text(SMOOTHED.replace("n = 60", "n = 70"))
    with pytest.raises(ConfigError, match="of other settings than the plan's"):
        missing_parts(home, "tiny", jobs[0], read_plan(home, "tiny"))


def test_what_is_wrong_with_a_plan_is_said(home):
    with pytest.raises(ConfigError, match="no preset 'laptop'; known: tiny"):
        read_plan(home, "laptop")
    (home / "tiny.toml").write_text(PLAN + "colour = 1\n")
    with pytest.raises(ConfigError, match="colour"):
        read_plan(home, "tiny")
    (home / "tiny.toml").write_text(PLAN.replace('methods = ["triplet", "tuned"]', 'methods = ["other"]'))
    with pytest.raises(ConfigError, match="no method 'other'; known: tbt, triplet, tuned"):
        read_plan(home, "tiny").jobs()


@pytest.mark.parametrize(
    ("paper", "preset", "wanted"),
    [
        ("kakizaki", "laptop", {"1", "2", "4", "6", "7"}),
        ("kakizaki", "paper", {"6", "7"}),
        ("kakizaki", "own-schedule", {"5", "6", "7"}),
        ("kakizaki", "high-resolution", {"high resolution"}),
        ("ca-tride", "laptop", {"1", "3", "4"}),
        ("ca-tride", "full", {"1", "3", "4"}),
        (
            "ca-tride",
            "choice",
            {"which adversary", "beyond the papers, 4 million gradients", "learning rate"},
        ),
        ("ca-tride", "paper", {"1", "3", "4"}),
        ("retrievalguard", "laptop", {"figure 2", "figure 3", "figure 4", "figure 5"}),
        ("retrievalguard", "paper", {"figure 2", "figure 3", "figure 4", "figure 5"}),
    ],
)
def test_the_committed_plans_are_whole(paper, preset, wanted):
    home = Path(__file__).parents[2] / "reproduce" / paper
    plan = read_plan(home, preset)
    assert wanted <= {table for job in plan.places() for table in job.tables.values()}
    assert read_targets(home) or plan.smoothing is not None, "its paper prints no numbers"
    for job in plan.jobs():
        start = {"defence": {**job.config["defence"], "start": "x"}} if job.start else {}
        assert parse({**job.config, **start}).seed == job.seed


def test_the_main_tables_are_planned_whole():
    """Every method with Large on every data set, four values of κ on two of them, three seeds on Small."""
    plan = read_plan(Path(__file__).parents[2] / "reproduce" / "kakizaki", "laptop")
    methods = {"triplet", "act", "c-ibp", "tbt", "tbt-fctb", "class-code", "certified-rank"}
    for dataset in ("mnist", "fashion-mnist", "cifar-10"):
        of_data = [job for job in plan.jobs() if job.dataset == dataset]
        assert {job.method for job in of_data if job.model == "large"} == methods
        for method in ("triplet", "act", "c-ibp", "tbt", "tbt-fctb", "certified-margin", "certified-rank"):
            found = [job for job in of_data if (job.model, job.method) == ("small", method)]
            assert [job.seed for job in found] == [0, 1, 2]
            attacks = [plan.attacks_of(job) for job in found]
            assert sum(how.ca_queries for how in attacks if how is not None) >= 300
        if dataset != "mnist":
            for method in ("tbt", "c-ibp"):
                swept = {
                    job.config["defence"].get("kappa", 0.5)
                    for job in of_data
                    if job.model == "small" and job.method.split("-kappa")[0] == method and job.seed == 0
                }
                assert swept == {0.0, 0.3, 0.5, 0.7}
    searched = {job.model: plan.attacks_of(job).by for job in plan.jobs() if job.method == "certified-rank"}
    assert searched == {"large": ["ours"], "small": ["ours", "published"]}
