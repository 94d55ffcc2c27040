"""Certified retrieval by smoothing: rows that attacks cannot contradict, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from holdfast import data, models
from holdfast.attacks.noisy import NoisyAttack
from holdfast.errors import ConfigError, DataError
from holdfast.evaluation.smoothing import certify_smoothed
from holdfast.gallery import Gallery
from holdfast.gallery.indexing import embedder_info
from holdfast.gallery.searching import search
from holdfast.gallery.smoothed import smoothed, smoothed_info
from holdfast.models import Smoothed
from holdfast.proofs.smoothing import Smoothing, parse_smoothing
from holdfast.proofs.smoothing.confidence import ball
from holdfast.training import parse, train

HOW = Smoothing(sigma=0.3, n=400, first=50, gallery=16)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    table = {
        "data": {"name": "fashion-mnist-mini", "validation": 0},
        "model": {"name": "small", "unit_norm": True, "dim": 16},
        "defence": {"name": "triplet", "margin": 0.2},
        "train": {"steps": 60, "batch": 60},
    }
    folder = tmp_path_factory.mktemp("smoothed") / "run"
    train(parse(table), folder, say=lambda line: None)
    return models.load(folder), data.load("fashion-mnist-mini").test


@pytest.fixture(scope="module")
def certified(trained, tmp_path_factory):
    out = tmp_path_factory.mktemp("certified")
    return certify_smoothed(
        *trained, out, HOW, queries=12, candidates=150, ks=(1, 5),
        marks=[100], alphas=[0.2, 0.001], attacks=[0.02, 0.3],
    )  # fmt: skip


def plain(certified):
    """The lines of the run's own n and alpha, by rule and K."""
    return {
        (line.rule, line.k): line for line in certified.table if (line.n, line.alpha) == (HOW.n, HOW.alpha)
    }


def test_the_forms_stand_in_their_order(certified):
    columns = certified.rows.columns
    assert (columns["cdf_1"] > 0).sum() >= 3
    assert (columns["cdf_1"] >= columns["paper_1"]).all()
    assert (columns["half-space_1"] >= columns["ball_1"]).all()
    assert (columns["ball_1"] >= columns["paper_1"]).all()
    assert (columns["cdf_5"] >= 0).all()
    assert set(columns["paper_1"][columns["margin"] <= 0]) <= {-1.0}
    lines = plain(certified)
    assert lines["cdf", 1].mean_radius > lines["paper", 1].mean_radius
    assert ("paper", 5) not in lines
    for line in certified.table:
        assert line.certified + line.rejected == pytest.approx(line.recall)
        assert list(line.recall_at) == sorted(line.recall_at, reverse=True)


def test_no_attack_within_a_radius_turns_the_ranking(trained, certified):
    """Gradient steps on the mean projection, with many noisy copies; the altered query is asked afresh."""
    embedder, images = trained
    columns = certified.rows.columns
    asked, found = data.draw(images, 12, 150, 0)
    frozen = Smoothed(embedder, HOW.sigma, HOW.gallery)
    gallery = frozen.embed(images.take(found))
    labels = torch.from_numpy(images.require_labels("test"))
    looked = 0
    for i in np.flatnonzero(columns["cdf_1"] > 0)[:3]:
        radius = 0.95 * float(columns["cdf_1"][i])
        image = images.batch([int(asked[i])]).float() / 255
        same = labels[found] == labels[asked[i]]
        noise = HOW.sigma * torch.randn(
            128, *image.shape[1:], generator=torch.Generator().manual_seed(int(i))
        )
        delta = torch.zeros_like(image)
        for _ in range(8):
            delta.requires_grad_()
            g = embedder(image + delta + noise).mean(0)
            away = (gallery - g).norm(dim=1)
            (slope,) = torch.autograd.grad(away[~same].min() - away[same].min(), delta)
            delta = (delta - 0.5 * radius * slope / slope.norm()).detach()
            delta = delta * min(1.0, radius / float(delta.norm()))
        moved = image + delta
        vectors = torch.cat(list(Smoothed(embedder, HOW.sigma, 1, seed=9).sample(moved[0], 0, 2000)))
        away = (gallery - vectors.mean(0)).norm(dim=1)
        margin = float(away[~same].min() - away[same].min())
        assert margin > -2 * ball(2000, 0.001, frozen.bound)
        assert margin < float(columns["margin"][i]) + 0.01, "the attack went the right way"
        looked += 1
    assert looked == 3


def test_votes_are_a_deployment_of_their_own(trained, certified, tmp_path):
    """The same radii for every rule; abstentions and attacks are those of the search by votes."""
    done = certify_smoothed(
        *trained,
        tmp_path,
        replace(HOW, rule="votes"),
        queries=12,
        candidates=150,
        ks=(1,),
        attacks=[0.02, 0.3],
    )
    rows, other = done.rows.columns, certified.rows.columns
    for name in ("votes_1", "cdf_1", "voted_1"):
        assert np.allclose(rows[name], other[name], atol=1e-9)
    # What it states has a share of α only: never more than votes with all of it.
    proved = rows["deployed_1"] > 0
    assert proved.sum() >= 3
    assert (rows["deployed_1"] <= rows["votes_1"] + 1e-9).all()
    assert not rows["abstains"][proved].any()
    assert (rows["abstains"] != other["abstains"]).any()
    for line in done.attacks:
        assert line.certified == np.mean((rows["deployed_1"] > line.eps) & (rows["right_1"] > 0))
        assert line.contradicted == 0
        assert line.certified <= line.attacked + 1e-9
    assert done.attacks[1].attacked < done.attacks[1].recall


@pytest.mark.parametrize("rule", ["mean", "votes"])
def test_what_is_measured_is_what_a_search_says(trained, tmp_path, rule):
    """The same first hit, the same statement about its class, the same abstention as a search of a gallery file."""
    embedder, images = trained
    how = replace(HOW, rule=rule)
    done = certify_smoothed(embedder, images, tmp_path / "rows", how, queries=8, candidates=60, ks=(1, 5))
    asked, found = data.draw(images, 8, 60, 0)
    frozen = smoothed(embedder, how)
    labels = [str(label) for label in images.require_labels("test")[found]]
    info = smoothed_info(frozen, embedder_info(frozen), how)
    with Gallery.create(tmp_path / "g", dim=16, embedder=info) as gallery:
        gallery.add([f"{n:02d}" for n in range(60)], frozen.embed(images.take(found)).numpy(), labels=labels)
        stated = 0
        for row, number in enumerate(asked.tolist()):
            one = {name: column[row] for name, column in done.rows.columns.items()}
            hits = search(gallery, frozen, images.image(number), 1, seed=frozen.seed)
            right = hits.proof.label == str(one["label"])
            assert one["right_1"] == (hits[0].label == str(one["label"]))
            assert one["abstains"] == (hits.proof.label is not None and hits.proof.label_radius <= 0)
            assert one["deployed_1"] == pytest.approx(hits.proof.label_radius if right else 0.0, abs=1e-9)
            stated += one["deployed_1"] > 0
        assert stated >= 2


def test_a_stopped_run_goes_on_and_another_setting_is_refused(trained, certified, tmp_path, monkeypatch):
    from holdfast.evaluation import smoothing as module

    real, calls = module._Query.row, []

    def dying(*words):
        calls.append(1)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return real(*words)

    monkeypatch.setattr(module._Query, "row", dying)
    with pytest.raises(KeyboardInterrupt):
        certify_smoothed(*trained, tmp_path, HOW, queries=12, candidates=150, ks=(1, 5))
    again = certify_smoothed(*trained, tmp_path, HOW, queries=12, candidates=150, ks=(1, 5))
    assert len(calls) == 8 + 12 - 7
    for name, column in certified.rows.columns.items():
        if name not in again.rows.columns:
            assert name.endswith(("_n100", "_a0.2", "_a0.001")) or name.startswith(
                ("attacked", "forced", "fooled")
            )
        elif column.dtype.kind == "f":
            assert np.allclose(column, again.rows.columns[name], atol=1e-6), name
        else:
            assert (column == again.rows.columns[name]).all(), name
    with pytest.raises(ConfigError, match="another model or setting"):
        certify_smoothed(*trained, tmp_path, Smoothing(0.2, n=400), queries=12, candidates=150, ks=(1, 5))


def test_what_cannot_be_certified_is_said(trained, tmp_path):
    embedder, images = trained
    with pytest.raises(
        ConfigError, match=r"4 samples cannot certify anything at alpha 0\.01 for the top 1; take at least 7"
    ):
        certify_smoothed(
            embedder, images, tmp_path / "x", Smoothing(0.1, n=4), queries=2, candidates=9, ks=(1,)
        )
    with pytest.raises(ConfigError, match="K lies between"):
        certify_smoothed(embedder, images, tmp_path / "x", HOW, queries=2, candidates=9, ks=(10,))
    bare = data.ImageSet(
        name="flat", ids=images.ids[:20], labels=None, classes=(), spec=images.spec,
        pixels=images.pixels, rows=images.rows[:20],
    )  # fmt: skip
    with pytest.raises(DataError, match="needs labels"):
        certify_smoothed(embedder, bare, tmp_path / "x", HOW)
    assert not (tmp_path / "x").exists()


def test_smoothing_in_words():
    assert parse_smoothing("sigma=0.1, n=500,alpha=0.05") == Smoothing(0.1, n=500, alpha=0.05)
    for wrong, says in (
        ("n=5", "standard deviation"),
        ("sigma=x", "sigma is a number"),
        ("sigma=0.1,m=3", "found 'm=3'"),
        ("sigma=0.1,alpha=2", "between 0 and 1"),
        ("sigma=0.1,n=0", "at least 1 sample"),
    ):
        with pytest.raises(ConfigError, match=says):
            parse_smoothing(wrong)


def test_the_report_shows_it(certified):
    from holdfast.reports import write_report

    page = write_report(certified.folder).read_text()
    assert "Smoothed search on fashion-mnist-mini" in page
    lines = plain(certified)
    assert f"{lines['cdf', 1].mean_radius:.4f}" in page
    assert "Recall@5 under any change" in page


def test_few_candidates_and_lonely_classes_give_finite_numbers(trained, tmp_path):
    embedder, images = trained
    few = certify_smoothed(embedder, images.take(np.arange(12)), tmp_path / "few", HOW, queries=3, ks=(1, 9))
    assert np.isfinite(few.rows.columns["cdf_9"]).all()
    labels = images.require_labels("test")
    lonely = images.take(np.unique(labels, return_index=True)[1])
    none = certify_smoothed(embedder, lonely, tmp_path / "none", HOW, queries=2, ks=(1,))
    assert none.table == ()
    assert (none.rows.columns["cdf_1"] == 0).all()


def test_fewer_samples_say_what_a_run_with_fewer_says(trained, certified, tmp_path):
    """The same samples in the same order: a mark is the row that a shorter run would have written."""
    few = certify_smoothed(*trained, tmp_path, replace(HOW, n=100), queries=12, candidates=150, ks=(1, 5))
    for name in ("cdf_1", "paper_1", "votes_5", "item_1", "half-space_5", "recall_1", "margin"):
        assert few.rows.columns[name] == pytest.approx(certified.rows.columns[f"{name}_n100"]), name
    means = {
        line.n: line.mean_radius
        for line in certified.table
        if (line.rule, line.k, line.alpha) == ("cdf", 1, HOW.alpha)
    }
    assert 0 < means[100] < means[400]


def test_other_failure_probabilities_say_what_a_run_with_them_says(trained, certified, tmp_path):
    other = certify_smoothed(*trained, tmp_path / "a", replace(HOW, alpha=0.2), queries=12, candidates=150)
    for name in ("cdf_1", "paper_1", "votes_5", "item_1", "half-space_5"):
        assert other.rows.columns[name] == pytest.approx(certified.rows.columns[f"{name}_a0.2"]), name
    means = {
        line.alpha: line.mean_radius
        for line in certified.table
        if (line.rule, line.k, line.n) == ("cdf", 1, HOW.n)
    }
    assert 0 < means[0.001] < means[0.01] < means[0.2]
    with pytest.raises(ConfigError, match="alphas are probabilities"):
        certify_smoothed(*trained, tmp_path / "b", HOW, queries=2, candidates=20, alphas=[1.0])
    assert not (tmp_path / "b").exists()


def test_attacks_leave_at_least_what_is_certified(trained, certified):
    small, large = certified.attacks
    assert (small.eps, large.eps) == (0.02, 0.3)
    for line in certified.attacks:
        assert line.certified <= line.attacked + line.forced
        assert line.contradicted == 0
    assert small.certified > 0
    assert large.attacked < large.recall, "an attack that does nothing shows nothing"


def test_an_attack_stays_within_its_size_and_lowers_the_margin(trained):
    embedder, images = trained
    asked, found = data.draw(images, 4, 150, 0)
    frozen = Smoothed(embedder, HOW.sigma, HOW.gallery)
    gallery, kinds = frozen.embed(images.take(found)).double().numpy(), images.labels[found]
    attack = NoisyAttack(frozen)

    def margin(image, kind):
        away = np.linalg.norm(gallery - frozen.embed(image[None])[0].double().numpy(), axis=1)
        return away[kinds != kind].min() - away[kinds == kind].min()

    for number in asked:
        image, kind = models.to_unit(images.batch([int(number)]))[0], int(images.labels[number])
        altered = attack.altered(image, 0.5, gallery, kinds, kind)
        assert (altered - image).norm() <= 0.5 + 1e-4
        assert 0 <= altered.min() <= altered.max() <= 1
        assert margin(altered, kind) < margin(image, kind) - 0.02
    everyone = np.full_like(kinds, kind)
    assert torch.equal(attack.altered(image, 0.5, gallery, everyone, kind), image), "nothing to lose it to"
    black = Smoothed(models.CallableEmbedder(lambda x: x.flatten(1), (1, 2, 2), unit_norm=True), 0.1, 4)
    with pytest.raises(ConfigError, match="need gradients"):
        NoisyAttack(black)


def test_the_first_candidate_itself_is_certified_too(certified):
    """It stays first no farther than it stays among five; being first is no easier than its class being first."""
    columns = certified.rows.columns
    assert (columns["item_5"] >= columns["item_1"] - 1e-9).all()
    assert (columns["item_5"] > 0).any()
    lines = plain(certified)
    assert lines["item", 1].recall >= lines["item", 1].certified


def test_attacks_are_about_the_nearest(trained, tmp_path):
    with pytest.raises(ConfigError, match="have 1 among the Ks"):
        certify_smoothed(*trained, tmp_path / "x", HOW, queries=2, candidates=20, ks=(5,), attacks=[0.1])


def test_marks_lie_below_n(trained, tmp_path):
    with pytest.raises(ConfigError, match="marks lie between"):
        certify_smoothed(*trained, tmp_path / "x", HOW, queries=2, candidates=20, marks=[400])
