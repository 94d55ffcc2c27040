"""Adversaries of triplet training against their equations, written out with loops."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from holdfast import models
from holdfast.errors import ConfigError, RunError
from holdfast.training import parse, train
from holdfast.training.adversary import Search, Triple, collapseness, hardness, nearer_half, perturb
from holdfast.training.defences import Batch, Moment, build_defence
from holdfast.training.defences.ca_tride import attention_for
from holdfast.training.losses import paired_triplets
from holdfast.training.watch import Watch, refuse_constant

EPS = 0.1
NAMES = ("est", "act", "hm", "ca-tride")


def quiet(line):
    pass


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.ReLU(), nn.Linear(16, 4))


def triple(seed=0, rows=6):
    """Positives nearer to their anchors than negatives are."""
    g = torch.Generator().manual_seed(seed)
    a, noise, n = (torch.rand(rows, 1, 6, 6, generator=g) for _ in range(3))
    return Triple(a, (a + 0.4 * (noise - 0.5)).clamp(0, 1), n)


def embedded(network, images):
    with torch.no_grad():
        return Triple(*(network(part) for part in (images.a, images.p, images.n)))


def defence(name, **options):
    return build_defence(parse({"defence": {"name": name, "eps": EPS, **options}}).defence, 3)


def naive_near_mean(values, attention):
    weights = [math.exp(-attention * (v - min(values))) for v in values]
    return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)


def lengths(one, other):
    return [float((x - y).norm()) for x, y in zip(one, other, strict=True)]


@pytest.mark.parametrize("attention", [0.0, 2.0, 10.0])
def test_collapseness_is_equation_5(attention):
    z = Triple(*torch.randn(3, 7, 4, dtype=torch.float64))
    near, far = (naive_near_mean(lengths(z.a, other), attention) for other in (z.p, z.n))
    assert collapseness(z, attention).item() == pytest.approx(near - far)
    if attention == 0:
        assert collapseness(z, 0).item() == pytest.approx(hardness(z).mean().item())


def test_attention_follows_table_5():
    for between, within, by_hand in ((0.287, 0.226, 10.0), (0.325, 0.256, 9.5), (0.664, 0.438, 2.0)):
        assert attention_for(within, between) == pytest.approx(by_hand, rel=0.15)
        # It has no unit: twice the distances, half the λ.
        assert attention_for(2 * within, 2 * between) == pytest.approx(attention_for(within, between) / 2)
    assert attention_for(1.0, 1.0) == attention_for(1.1, 1.0) == 50


def test_one_triplet_a_pair():
    labels = torch.tensor([0, 0, 1, 1, 0, 0, 2, 2])
    a, p, n = paired_triplets(labels)
    assert a.tolist() == [0, 2, 4, 6]
    assert p.tolist() == [1, 3, 5, 7]
    assert (labels[n] != labels[a]).all()
    distance = torch.cdist(torch.randn(8, 3), torch.randn(8, 3))
    a, p, n = paired_triplets(labels, distance, 100.0)
    for i, j, k in zip(a.tolist(), p.tolist(), n.tolist(), strict=True):
        band = [c for c in range(8) if labels[c] != labels[i] and distance[i, c] > distance[i, j]]
        assert k in band or not band


@pytest.mark.parametrize("name", NAMES)
def test_perturbed_images_stay_inside_and_serve_their_goal(name):
    network, images = net(), triple()
    clean = embedded(network, images)
    for step in (0, 1):
        found = defence(name, attack_steps=12).attack(network, images, clean, Moment(step, 2))
        z = embedded(network, found.images)
        for role in "apn":
            one, other = getattr(images, role), getattr(found.images, role)
            assert ((one - other).abs() <= EPS + 1e-6).all()
            assert ((other >= 0) & (other <= 1)).all()
        moved = {
            role for role in "apn" if not torch.equal(getattr(images, role), getattr(found.images, role))
        }
        if name == "est":
            assert moved == set("apn")
            assert (z.of("apn") - clean.of("apn")).norm(dim=1).mean() > 0.1
        elif name == "act":
            assert moved == set("pn")
            assert ((z.p - z.n).norm(dim=1) < (clean.p - clean.n).norm(dim=1)).all()
        elif name == "hm":
            assert moved == set("apn")
            assert hardness(z).mean() > hardness(clean).mean()
        else:
            assert moved == (set("a") if step else set("pn")), "candidates first, anchors next"
            assert collapseness(z, 10.0) > collapseness(clean, 10.0)


def test_the_search_ends_where_its_loss_is_zero():
    network, images = net(), triple()
    clean = embedded(network, images)
    seen = []

    def goal(z):
        seen.append(collapseness(z, 10.0).item())
        return torch.relu(-collapseness(z, 10.0) + seen[0] + 1e-4)

    found = perturb(network, images, clean, "pn", goal, Search(EPS, steps=50, step=EPS / 50))
    assert 1 < len(seen) < 50
    assert seen[-1] >= seen[0] + 1e-4 > seen[-2]
    assert found.gradients == (len(seen) - 1) * 12
    assert found.images.a is images.a


def test_cap_and_anp_losses_are_equations_10_to_12():
    z = Triple(*torch.randn(3, 7, 4, dtype=torch.float64))
    first = torch.randn(7, 4, dtype=torch.float64)
    made = defence("ca-tride", attention=3.0)
    made.attention = 3.0
    c = naive_near_mean(lengths(z.a, z.p), 3.0) - naive_near_mean(lengths(z.a, z.n), 3.0)
    assert made._cap(z).item() == pytest.approx(max(-c, 0))
    half = sorted(lengths(z.a, z.n))[:3]
    shift = sum(lengths(z.a, first)) / 7
    push = sum(half) / 3 - shift
    assert made._anp(z, first).item() == pytest.approx(max(-c + math.exp(max(c, 0)) * push, 0))
    prose = defence("ca-tride", tr_weight="prose")
    prose.attention = 3.0
    assert prose._anp(z, first).item() == pytest.approx(max(-c + math.exp(-max(-c, 0)) * push, 0))
    plain = defence("ca-tride", top_rank_term=False, measure="hardness")
    assert plain._anp(z, first).item() == pytest.approx(max(-hardness(z).mean().item(), 0))
    naive = defence("ca-tride", aware=False)
    assert naive._cap(z).item() == pytest.approx(-hardness(z).mean().item())


def test_models_lose_what_equation_14_says():
    z = Triple(*torch.randn(3, 8, 4, dtype=torch.float64))
    made = defence("ca-tride")
    found = type("Found", (), {"gradients": 1})()
    margin = sum(max(0.0, h + 0.2) for h in hardness(z).tolist()) / 8
    assert made.loss(found, z, z, Moment(0, 4)).item() == pytest.approx(margin)
    top = sum(sorted(lengths(z.a, z.p))[:4]) / 4 - sum(sorted(lengths(z.a, z.n))[:4]) / 4
    assert made.loss(found, z, z, Moment(1, 4)).item() == pytest.approx(margin + 0.5 * max(0.0, top + 0.04))
    assert defence("ca-tride", top_rank_triplet=False).loss(found, z, z, Moment(1, 4)).item() == (
        pytest.approx(margin)
    )


def test_hardness_is_manipulated_towards_its_destination():
    made, z = defence("hm"), Triple(*torch.randn(3, 8, 4, dtype=torch.float64))
    clean = Triple(*torch.randn(3, 8, 4, dtype=torch.float64))
    network, images = net(), triple()
    found = type("Found", (), {"gradients": 1})()
    loss = made.loss(found, z, clean, Moment(0, 2)).item()
    triplet = sum(max(0.0, h + 0.2) for h in hardness(z).tolist()) / 8
    pairs = zip(lengths(clean.a, z.a), lengths(clean.a, clean.p), strict=True)
    assert loss == pytest.approx(triplet + 0.5 * sum(max(0.0, d - own) for d, own in pairs) / 8)
    assert float(made._last) == pytest.approx(triplet)
    start = embedded(network, images)
    made._last.fill_(0.1)
    far = made.attack(network, images, start, Moment(0, 1))
    hard = hardness(embedded(network, far.images))
    fixed = defence("hm", destination=-0.1).attack(network, images, start, Moment(0, 1))
    assert torch.equal(far.images.a, fixed.images.a), "−0.1 is where a last loss of 0.1 leads"
    assert (hard >= torch.minimum(hardness(start), torch.tensor(-0.1)) - 1e-3).all()


def test_the_step_grows_and_the_band_narrows(monkeypatch):
    from holdfast.training.defences import adversarial

    steps = []
    monkeypatch.setattr(adversarial, "perturb", lambda *rest: steps.append(rest[-1].step))
    made = defence("ca-tride", attack_steps=16, step=0.01)
    for number in (0, 4, 9):
        made.attack(net(), triple(), embedded(net(), triple()), Moment(number, 10))
    assert steps == pytest.approx([0.001, 0.005, 0.01])
    assert defence("ca-tride", attack_steps=4).step == pytest.approx(1.2 * EPS / 4)
    assert nearer_half(torch.tensor([3.0, 1.0, 2.0, 4.0])).item() == 1.5


@pytest.mark.parametrize("name", NAMES)
def test_every_adversary_trains_and_resumes_to_the_same_bits(name, tmp_path):
    options = {"attention": "auto"} if name == "ca-tride" else {}
    config = parse(
        {
            "data": {"name": "fashion-mnist-mini", "validation": 0},
            "defence": {"name": name, "eps": EPS, "attack_steps": 2, "warm_up": 0.2, **options},
            "train": {
                "steps": 6,
                "batch": 16,
                "log_every": 1,
                "checkpoint_seconds": 0,
                "precision": "float32",
            },
        }
    )
    whole = train(config, tmp_path / "whole", say=quiet)
    from holdfast.training import loop

    class Stopped(Exception):
        pass

    def stops(path, *rest):
        before(path, *rest)
        if rest[-1]["step"] == 3:
            raise Stopped

    before = loop.save_state
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "save_state", stops)
        with pytest.raises(Stopped):
            train(config, tmp_path / "cut", say=quiet)
    again = train(config, tmp_path / "cut", say=quiet)
    for one, other in zip(whole.embedder.parameters(), again.embedder.parameters(), strict=True):
        assert torch.equal(one, other)
    log = (tmp_path / "whole" / "log.jsonl").read_text()
    assert all(word in log for word in ("hardness", "collapseness", "shift", "separability", "mean_distance"))


def test_the_batch_is_left_as_it_was():
    network = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(36, 4)).train()
    network[0].eval()
    labels = torch.tensor([0, 0, 1, 1])
    images = torch.rand(4, 1, 6, 6)
    kept = images.clone()
    defence("act").terms(network, Batch(images, labels), Moment(0, 2))
    assert torch.equal(images, kept)
    assert [layer.training for layer in network] == [False, True, True]


@pytest.mark.parametrize(("start", "said"), [("clean", True), ("kept", False), ("random", False)])
def test_a_shift_is_said_only_where_it_is_known(start, said):
    """A search that begins elsewhere never embeds the clean images: their distance to themselves is no shift."""
    network = models.build("small", spec=(1, 6, 6), dim=4)
    labels = torch.arange(12) // 2 % 3
    batch = Batch(torch.rand(12, 1, 6, 6), labels, torch.arange(12))
    made = defence("act", start=start, attack_steps=2, step=EPS)
    made.sampler(labels.numpy(), 12, 0)
    made.prepare(network)
    logs = made.terms(network, batch, Moment(0, 2)).logs
    assert ("shift" in logs) == said
    assert not said or logs["shift"] > 1e-4


def test_every_part_of_a_mixed_defence_keeps_its_own_searches(tmp_path):
    part = {"eps": EPS, "attack_steps": 1, "start": "kept"}
    parts = [{"name": "act", **part}, {"name": "est", **part}]
    data = {"name": "fashion-mnist-mini", "validation": 0}
    mixed = {"name": "mixed", "parts": parts, "weights": [1, 0.5]}
    train(
        parse({"data": data, "defence": mixed, "train": {"steps": 2, "batch": 16}}),
        tmp_path / "run",
        say=quiet,
    )
    kept = load_file(tmp_path / "run" / "state.safetensors")
    found = [kept[name] for name in sorted(kept) if name.endswith("_kept")]
    assert [len(one) for one in found] == [8000, 8000]
    moved = [one.flatten(1).any(1).nonzero().flatten().tolist() for one in found]
    assert moved[0]
    assert moved[1]
    assert moved[0] != moved[1], "ACT leaves the anchors, EST does not"


def test_presets_and_threats_on_the_command_line(tmp_path):
    command = [
        sys.executable,
        "-m",
        "holdfast",
        "train",
        "--data",
        "fashion-mnist-mini",
        "--defence",
        "ca-tride",
    ]
    wanted = [
        "--preset",
        "laptop",
        "--threat",
        "linf:16/255",
        "--set",
        "defence.attack_steps=1",
        "--steps",
        "1",
    ]
    done = subprocess.run(
        [*command, *wanted, "--out", str(tmp_path / "run"), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    config = json.loads(done.stdout)["card"]["config"]
    assert config["defence"]["eps"] == pytest.approx(16 / 255)
    assert (config["defence"]["attack_steps"], config["train"]["batch"]) == (1, 256)
    assert config["train"]["freeze_batch_norm"]


def test_a_collapse_is_reported_as_it_begins_and_once():
    watch = Watch()

    def look(step, distance, separability):
        return list(watch.look(step, 10, {"mean_distance": distance, "separability": separability}))

    assert look(1, 1.0, 0.5) == look(2, 0.05, 0.3) == look(3, 0.5, 0.0) == []
    assert ["a collapse begins" in said for said in look(4, 0.05, 0.01)] == [True]
    assert look(5, 0.04, 0.01) == []
    assert ["has collapsed" in said for said in look(6, 1e-4, 0.0)] == [True]
    assert look(7, 1e-5, 0.0) == []
    watch = Watch(watch.spread, watch.said)
    assert look(8, 1e-5, 0.0) == [], "nor after a resume"
    watch = Watch()
    watch.begin(torch.eye(5))
    assert watch.spread == pytest.approx(2**0.5)
    assert ["a collapse begins" in said for said in look(1, 0.01, 0.5)] == [True], (
        "before anything was logged"
    )


def test_a_constant_network_is_refused():
    with torch.no_grad():
        network = net()
        network[3].weight.zero_()
        z = network(torch.rand(5, 1, 6, 6))
    with pytest.raises(RunError, match="first batch the same embedding"):
        refuse_constant(z)
    refuse_constant(z + torch.arange(5)[:, None] * 1e-3)
    refuse_constant(z[:1])


@pytest.mark.parametrize("objective", ["shift", "together", "hardness", "collapseness"])
@pytest.mark.parametrize("moves", ["a", "pn", "apn"])
def test_who_moves_and_what_for_are_chosen_apart(moves, objective):
    if (moves, objective) == ("a", "together"):
        with pytest.raises(ConfigError, match="only where they move"):
            defence("adversarial", moves=moves, objective=objective)
        return
    network, images = net(), triple()
    clean = embedded(network, images)
    made = defence("adversarial", moves=moves, objective=objective, attack_steps=8)
    found = made.attack(network, images, clean, Moment(0, 1))
    z = embedded(network, found.images)
    for role in "apn":
        one, other = getattr(images, role), getattr(found.images, role)
        idle = role not in moves or (role == "a" and objective == "together")
        assert torch.equal(one, other) == idle
        assert ((one - other).abs() <= EPS + 1e-6).all()
    reached = {
        "shift": lambda t: (t.of("apn") - clean.of("apn")).norm(dim=1).mean(),
        "together": lambda t: -(t.p - t.n).norm(dim=1).mean(),
        "hardness": lambda t: hardness(t).mean(),
        "collapseness": lambda t: collapseness(t, 10.0),
    }[objective]
    assert reached(z) > reached(clean) + 1e-3


def test_without_the_early_stop_every_step_is_made():
    network, images = net(), triple()
    clean = embedded(network, images)
    goal = lambda z: 0 * z.p.sum()  # noqa: E731
    for early, gradients in ((True, 0), (False, 5 * 12)):
        found = perturb(network, images, clean, "pn", goal, Search(EPS, 5, 0.01, early_stop=early))
        assert found.gradients == gradients
        assert torch.equal(found.images.p, images.p)


def test_defences_can_be_mixed(tmp_path):
    parts = [
        {"name": "ca-tride", "eps": EPS, "attack_steps": 1},
        {"name": "certified-margin", "eps": 0.01, "ramp_start": 0, "ramp_end": 0},
    ]
    table = {
        "data": {"name": "fashion-mnist-mini", "validation": 0},
        "defence": {"name": "mixed", "parts": parts, "weights": [1.0, 0.5]},
        "train": {"steps": 2, "batch": 16, "log_every": 1},
    }
    train(parse(table), tmp_path / "run", say=quiet)
    first = json.loads((tmp_path / "run" / "log.jsonl").read_text().splitlines()[0])
    assert first["loss"] == pytest.approx(
        first["loss_ca-tride"] + 0.5 * first["loss_certified-margin"], rel=1e-5
    )
    assert {"hardness", "certified_pairs"} <= set(first)
    again = train(parse(table), tmp_path / "other", say=quiet)
    assert again.config.defence.parts[1].name == "certified-margin"
    with pytest.raises(ConfigError, match="as many weights"):
        parse({"defence": {"name": "mixed", "parts": parts, "weights": [1.0]}})


@pytest.mark.parametrize(
    ("name", "options", "each"),
    [
        ("act", {"attack_steps": 8}, 2 * 8 + 3),
        ("hm", {"attack_steps": 8}, 3 * 8 + 5),
        ("est", {"attack_steps": 4}, 3 * 4 + 3),
        ("ca-tride", {"attack_steps": 4}, 1.5 * 4 + 3),
        ("ca-tride", {"attack_steps": 4, "stages": "anp"}, 4 + 3),
        ("act", {"attack_steps": 8, "warm_up": 0.5}, 8 + 3),
        ("act", {"attack_steps": 9, "steps_ramp": 1.0}, 2 * 5 + 3),
    ],
)
def test_the_gradients_of_a_run_are_what_its_budget_says(name, options, each, tmp_path):
    made = defence(name, early_stop=False, **options)
    assert made.gradients(16) == pytest.approx(8 * each)
    table = {"name": name, "eps": EPS, "early_stop": False, **options}
    config = parse(
        {
            "data": {"name": "fashion-mnist-mini", "validation": 0},
            "defence": table,
            "train": {"gradients": int(10 * 8 * each), "batch": 16, "log_every": 1, "precision": "float32"},
        }
    )
    said = []
    run = train(config, tmp_path / "run", say=said.append)
    assert run.outcome.steps == 10
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    searched = sum(record.get("gradients", 0) for record in log)
    trained = 8 * sum(5 if name == "hm" and record["gradients"] else 3 for record in log if "loss" in record)
    assert searched + trained == pytest.approx(10 * 8 * each, rel=0.1 if "steps_ramp" in options else 1e-9)
    assert any("image gradients" in line for line in said)


def test_a_budget_too_small_for_a_step_is_refused_before_it_starts(tmp_path):
    config = parse(
        {
            "data": {"name": "fashion-mnist-mini", "validation": 0},
            "defence": {"name": "act", "attack_steps": 32},
            "train": {"gradients": 500, "batch": 16},
        }
    )
    with pytest.raises(ConfigError, match=r"takes 536 image gradients, more than the budget of 500"):
        train(config, tmp_path / "run", say=quiet)
    assert not (tmp_path / "run").exists()
