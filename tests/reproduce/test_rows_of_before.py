"""Rows made by the version before the library moved out of the package are read as they are, without conversion.

`tests/fixtures/reproduce` was written by that version: tiny plans of every kind, their rows, cells and pages.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from holdfast.errors import ConfigError
from reproduction import open_reproduction

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures" / "reproduce"
PRESETS = [("images", "ranking"), ("images", "suite"), ("images", "smoothing"), ("vectors", "tiny")]
COMMITTED = sorted(
    (folder.parents[1].name, folder.name)
    for folder in (ROOT / "reproduce").glob("*/rows/*")
    if folder.is_dir()
)


@pytest.fixture
def before(tmp_path):
    return Path(shutil.copytree(FIXTURES, tmp_path / "reproduce"))


@pytest.mark.parametrize(("paper", "preset"), PRESETS)
def test_they_are_finished_runs_and_give_the_same_cells(before, paper, preset):
    found = open_reproduction(before / paper, preset)
    for job in found.jobs():
        assert found.missing(job) == []
        assert found.run(job, before / "nowhere", print), "nothing is trained"
    known, (cells, _) = by_name(json.loads((FIXTURES / paper / "cells.json").read_text())), found.write()
    made = by_name([vars(one) for one in cells])
    assert made == known
    assert any(said[1] is not None for said in known.values())


def by_name(cells):
    """What the cells say; since then ER-Recall names whose attack it is of."""
    names = ("table", "dataset", "model", "method", "threat", "eps", "k", "metric")
    found = {}
    for cell in cells:
        by = "" if cell["metric"] in ("er_recall", "robust_recall") else cell.get("attack", "")
        found[(*(cell[name] for name in names), by)] = [
            cell[name] for name in ("paper", "ours", "ci_low", "ci_high", "n", "seeds")
        ]
    return found


@pytest.mark.parametrize(("paper", "preset"), PRESETS)
def test_only_settings_count(before, paper, preset):
    """A run that finishes later names another commit and other versions; one of other settings is refused."""
    found = open_reproduction(before / paper, preset)
    for job in found.jobs():
        record = found.home.kept(job.name) / "run.json"
        said = json.loads(record.read_text())
        record.write_text(json.dumps({**said, "commit": "0123abc-dirty", "versions": {"python": "3.99"}}))
        assert found.missing(job) == []
        record.write_text(json.dumps({**said, "hash": "0" * 16}))
        with pytest.raises(ConfigError, match="other settings than the plan's"):
            found.missing(job)


@pytest.mark.parametrize(
    ("preset", "old", "new"),
    [
        ("ranking", "ca_queries = 3", "ca_queries = 4"),
        ("ranking", "sources = 10", "sources = 9"),
        ("ranking", "steps = 2\nca_queries", "steps = 9\nca_queries"),
        ("suite", "clean_queries = 8", "clean_queries = 9"),
        ("suite", "candidates = 20", "candidates = 21"),
        ("smoothing", "gallery = 4", "gallery = 5"),
        ("smoothing", "alphas = [0.1]", "alphas = [0.2]"),
        ("smoothing", "marks = [30]", "marks = [31]"),
        ("smoothing", "attacks = [0.5]", "attacks = [0.6]"),
    ],
)
def test_rows_of_other_settings_are_refused(before, preset, old, new):
    plan = before / "images" / f"{preset}.toml"
    text = plan.read_text()
    assert old in text
    plan.write_text(text.replace(old, new))
    changed = open_reproduction(before / "images", preset)
    with pytest.raises(ConfigError, match="other settings than the plan's"):
        changed.missing(changed.jobs()[0])


@pytest.mark.parametrize(("paper", "preset"), COMMITTED)
def test_the_committed_rows_are_of_their_plans(paper, preset):
    found = open_reproduction(ROOT / "reproduce" / paper, preset)
    there = {folder.name for folder in (ROOT / "reproduce" / paper / "rows" / preset).iterdir()}
    known = [job for job in found.jobs() if job.name in there]
    assert known
    for job in known:
        assert (found.home.kept(job.name) / "run.json").exists() == ("run" not in found.missing(job))
