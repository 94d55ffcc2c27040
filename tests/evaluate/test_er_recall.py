"""ER-Recall by known answers; resuming; certified ≤ attacked ≤ clean, and what breaks that is found."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from torch import nn

from holdfast.attacks import PlainPgd, Settings
from holdfast.data import ImageSet
from holdfast.errors import ConfigError
from holdfast.evaluate import er_recall as module
from holdfast.evaluate import read_rows
from holdfast.evaluate.certify import certify
from holdfast.evaluate.er_recall import er_recall
from holdfast.evaluate.suite import attack_suite
from holdfast.evaluate.validity import (
    certified_beside,
    check_rows,
    contradictions,
    covers,
    cross_check,
    proofs_at,
)
from holdfast.models import wrap
from holdfast.spec import ImageSpec
from holdfast.threat import Threat

SPEC = ImageSpec(1, 1, 2)
BOTH = ["query:linf:{}", "candidates:linf:{}"]


def points(n: int = 60) -> ImageSet:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 3, n)
    return ImageSet(
        name="points",
        ids=tuple(f"i{i}" for i in range(n)),
        labels=labels,
        classes=("a", "b", "c"),
        spec=SPEC,
        pixels=rng.integers(0, 256, (n, 1, 1, 2), dtype=np.uint8),
        rows=np.arange(n),
    )


@pytest.fixture(scope="module")
def plane():
    return wrap(nn.Flatten(), SPEC)


def run(embedder, out, eps, **settings):
    threats = [Threat.parse(text.format(eps)) for text in BOTH]
    usual = {"queries": 12, "candidates": 30, "ca_queries": 6, "sources": 9, "ks": (1, 5, 30)}
    return er_recall(
        embedder, points(), out, threats, **{**usual, "settings": Settings(steps=30), **settings}
    )


def test_an_attacker_who_can_do_next_to_nothing_changes_nothing(plane, tmp_path):
    done = run(plane, tmp_path / "e", 1e-6)
    for line in done.table:
        assert line.recall == line.er_recall == line.robust_recall
    assert [line.queries for line in done.table] == [12] * 3 + [6] * 3


def test_an_attacker_who_can_do_anything_wins_where_it_is_possible(plane, tmp_path):
    """Nine candidates of other classes land on the query; nearly every query lands on one of another class."""
    done = run(plane, tmp_path / "e", 1)
    table = {(line.threat.split(":")[0], line.k): line for line in done.table}
    assert table["query", 1].robust_recall == 0
    assert table["query", 1].er_recall <= 1 / 12
    assert table["candidates", 1].er_recall == 0
    assert table["candidates", 5].er_recall == 0
    assert table["query", 30].er_recall == table["candidates", 30].er_recall == 1
    for line in done.table:
        assert line.robust_recall <= min(line.recall, line.er_recall)
        assert line.interval["er_recall"][0] <= line.er_recall <= line.interval["er_recall"][1]


def test_the_papers_optimiser_is_that_of_section_5():
    made = Settings(optimiser="paper").make(0.2)
    assert isinstance(made, PlainPgd)
    assert (made.steps, made.step, made.momentum, made.keep, made.schedule) == (
        100,
        0.02,
        0.0,
        "last",
        "fixed",
    )


def test_a_killed_evaluation_goes_on_with_the_same_rows(plane, tmp_path, monkeypatch, killed_at):
    monkeypatch.setattr(module, "QUERY_BLOCK", 5)
    monkeypatch.setattr(module, "CANDIDATE_BLOCK", 2)
    quick = Settings(steps=3)
    straight = run(plane, tmp_path / "straight", 0.1, settings=quick)
    with killed_at(5):
        run(plane, tmp_path / "killed", 0.1, settings=quick)
    again = run(plane, tmp_path / "killed", 0.1, settings=quick)
    for name in ("rows.csv.gz", "pictures.zip"):
        assert (straight.folder / name).read_bytes() == (again.folder / name).read_bytes()


def test_another_batch_size_gives_the_same_rows(plane, tmp_path):
    one, other = (
        run(plane, tmp_path / str(size), 0.1, settings=Settings(steps=6), batch_size=size) for size in (3, 50)
    )
    for name, column in one.rows.columns.items():
        if column.dtype.kind == "f":
            np.testing.assert_allclose(column, other.rows.columns[name], rtol=1e-4, atol=1e-5, err_msg=name)
        else:
            assert column.tolist() == other.rows.columns[name].tolist(), name


def test_bad_input_writes_nothing(plane, tmp_path):
    out = tmp_path / "e"
    with pytest.raises(ConfigError, match="at least one threat"):
        er_recall(plane, points(), out, [])
    with pytest.raises(ConfigError, match="ask for each by itself"):
        er_recall(plane, points(), out, [Threat.parse("both:linf:0.1")])
    with pytest.raises(ConfigError, match="allows 5 altered candidates"):
        er_recall(plane, points(), out, [Threat.parse("candidates:linf:0.1:m=5")])
    with pytest.raises(ConfigError, match="fewer than the 29 that are needed"):
        run(plane, out, 0.1, sources=29)
    with pytest.raises(ConfigError, match="K lies between"):
        run(plane, out, 0.1, ks=(1, 31))
    assert not out.exists()


@pytest.fixture(scope="module")
def proved(trained, photos, tmp_path_factory):
    """A certified network: its certificates and its attacks on the same queries."""
    folder = tmp_path_factory.mktemp("proved")
    drawn = {"queries": 60, "candidates": 200}
    threats = [Threat.parse("query:linf:0.01"), Threat.parse("candidates:linf:0.01")]
    certified = certify(trained, photos, folder / "certified", threats, ks=(1, 5, 20), **drawn)
    quick = Settings(steps=8)
    attacked = er_recall(
        trained,
        photos,
        folder / "er",
        threats,
        ks=(1, 5, 20),
        ca_queries=4,
        sources=20,
        settings=quick,
        **drawn,
    )
    suite = attack_suite(
        trained, photos, folder / "suite", threats[0], attacks="qa-,es,ltm,gtm", settings=quick, **drawn
    )
    return folder, certified, attacked, suite


def test_certified_is_at_most_attacked_is_at_most_clean(proved):
    folder, certified, attacked, suite = proved
    for done in (attacked, suite):
        assert cross_check(done.rows, folder) == []
    rates = {(line.threat, line.k): line.certified_hit_rate for line in certified.table}
    assert rates["query:linf:0.01", 20] > 0.2
    for line in attacked.table:
        mine = attacked.rows.columns["threat"] == line.threat
        queries = attacked.rows.columns["query"][mine].tolist()
        sure = certified_beside(
            attacked.rows, [certified.rows], Threat.parse(line.threat), 20, line.k, queries
        )
        assert sure <= line.robust_recall <= line.recall
        if line.threat.startswith("query"):
            assert sure == pytest.approx(rates[line.threat, line.k])


def with_column(rows, name, values):
    return dataclasses.replace(rows, columns={**rows.columns, name: values})


def test_a_certificate_that_an_attack_breaks_is_an_error(proved):
    """Certificates that claim everything are contradicted by both kinds of attacked rows."""
    _, certified, attacked, suite = proved
    false = certified.rows
    for k in (1, 5, 20):
        false = with_column(false, f"hit_{k}", np.ones_like(false.columns[f"hit_{k}"]))
    for done in (attacked, suite):
        found = contradictions(done.rows, false)
        assert found
        assert all(finding.level == "error" for finding in found)
        assert "certified > attacked" in str(found[0])
    other = dataclasses.replace(
        false, header={**false.header, "config": {**false.header["config"], "seed": 9}}
    )
    assert contradictions(attacked.rows, other) == [], "another draw is about other rankings"


def test_which_proofs_speak_about_which_attacks():
    def about(proof, attack, altered=1):
        return covers(Threat.parse(proof), Threat.parse(attack), altered)

    assert about("query:linf:0.1", "query:linf:0.1")
    assert about("query:linf:0.2", "query:linf:0.1")
    assert not about("query:linf:0.05", "query:linf:0.1")
    assert not about("query:linf:0.2", "candidates:linf:0.1")
    assert about("both:linf:0.1", "candidates:linf:0.1", 100)
    assert about("candidates:linf:0.1", "candidates:linf:0.1", 100)
    assert not about("candidates:linf:0.1:m=5", "candidates:linf:0.1", 100)
    assert about("candidates:linf:0.1:m=5", "candidates:linf:0.1", 5)
    assert not about("query:linf:0.1", "query:l2:0.1")


def test_proofs_of_any_size(proved):
    _, certified, _, _ = proved
    columns = {"query": np.array(["a", "b"], dtype=object), "eps_1": np.array([0.05, -1.0])}
    rows = dataclasses.replace(certified.rows, columns=columns, header={"config": {"ks": [1]}})
    assert proofs_at(rows, 0.05).hits == {1: {"a": True, "b": False}}
    assert proofs_at(rows, 0.06).hits == {1: {"a": False, "b": False}}


def test_warnings_from_rows(proved):
    _, _, attacked, suite = proved
    rows = with_column(suite.rows, "zero_gradient", np.ones(len(suite.rows), dtype=np.int64))
    assert any("no usable gradient" in finding.text for finding in check_rows(rows))
    rows = with_column(suite.rows, "loss_late", suite.rows.columns["loss_start"])
    assert sum("last tenth" in finding.text for finding in check_rows(rows)) >= 3
    rows = with_column(attacked.rows, "attacked_1", np.ones(len(attacked.rows), dtype=np.int64))
    assert any("er_recall is above clean recall at K = 1" in finding.text for finding in check_rows(rows))
    rows = with_column(attacked.rows, "robust_1", np.full(len(attacked.rows), 2))
    assert any(finding.level == "error" for finding in check_rows(rows))


class Stairs(nn.Module):
    """Rounds its input: gradients are zero everywhere although small changes matter."""

    def forward(self, x):
        return (x.flatten(1) * 40).round() / 40 + 0 * x.flatten(1)


def test_masked_gradients_are_found_out(tmp_path):
    """No gradient at any first point, and black-box search goes farther than white-box."""
    done = attack_suite(
        wrap(Stairs(), SPEC),
        points(20),
        tmp_path / "s",
        Threat.parse("linf:0.3"),
        attacks="qa+",
        settings=Settings(steps=4, budget=150),
        check_black_box=12,
    )
    texts = [finding.text for finding in done.findings]
    assert any("no usable gradient" in text for text in texts)
    assert any("black-box search (nes) goes farther" in text for text in texts)
    assert done.scores.trials == 20
    assert len(read_rows(done.folder / "rows.csv.gz")) == 32
