"""A new objective, added as CONTRIBUTING says: one file and one line reach suites, tables, scores and the report."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from torch import Tensor, nn

from holdfast.attacks import OBJECTIVES, Assessment, Objective, Wish, objective_rows
from holdfast.cli.attacked import print_suite
from holdfast.data import ImageSet
from holdfast.evaluate.suite import attack_suite
from holdfast.models import wrap
from holdfast.report import write_report
from holdfast.spec import ImageSpec
from holdfast.threat import Threat

SPEC = ImageSpec(1, 1, 2)


# What would be src/holdfast/attacks/objectives/hide.py.
@dataclass(frozen=True, eq=False)
class HideWish(Wish):
    """‖f(q̃) − the mean of all candidates‖."""

    middle: Tensor

    def assess(self, seen: Tensor) -> Assessment:
        away = (seen - self.middle).norm(dim=1)
        return Assessment(away, away.detach())


class Hide(Objective):
    """The altered query's vector is brought to the middle of the gallery."""

    name = "hide"
    wants = "bring the query to the middle of the gallery"
    measures = "shift"

    def bind(self, rows: slice, clean: Tensor) -> Wish:
        return HideWish(self.candidates.like(clean).vectors.mean(0).expand_as(clean))


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(OBJECTIVES, Hide.name, Hide)


def test_it_reaches_suites_tables_and_the_report(tmp_path, capsys):
    pixels = np.random.default_rng(0).integers(60, 255, (20, 1, 1, 2), dtype=np.uint8)
    names = tuple(f"i{i}" for i in range(20))
    images = ImageSet("points", names, np.arange(20) % 2, ("a", "b"), SPEC, pixels, np.arange(20))
    plane = wrap(nn.Flatten(), SPEC)
    done = attack_suite(plane, images, tmp_path / "s", Threat.parse("linf:0.1"), attacks="hide,es")
    columns = done.rows.columns
    mine = columns["attack"] == "hide"
    assert mine.sum() == 20
    assert (columns["loss_end"][mine] <= columns["loss_start"][mine]).all()
    # By hand: what moved is what was measured, and an attack that wants nothing else moves no less.
    assert done.scores.reached["HIDE"] == pytest.approx(columns["after"][mine].mean())
    assert 0 < done.scores.reached["HIDE"] <= done.scores.reached["ES:D"]
    assert done.scores.ers is None
    print_suite(done, "points")
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("HIDE"))
    assert line.split()[:3] == ["HIDE", "0.000", f"{done.scores.reached['HIDE']:.3f}"]
    page = write_report(tmp_path / "s").read_text()
    assert "hide: bring the query to the middle of the gallery" in page
    assert f"{done.scores.reached['HIDE']:.3f}" in page


def test_it_is_in_the_table_of_the_documentation():
    row = next(row for row in objective_rows() if row["attack"] == "`hide`")
    assert row["the attacker wants to"] == Hide.wants
    assert row["labels"] == "–"
