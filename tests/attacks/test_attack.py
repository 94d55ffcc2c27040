"""Attacks as a whole: inside the threat, the same by seed, honest about what they used and refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from holdfast import models
from holdfast.attacks import (
    OBJECTIVES,
    OPTIMISERS,
    Attack,
    Ball,
    Candidates,
    Given,
    Nes,
    Pgd,
    PlainPgd,
    Spsa,
    TopK,
    Universal,
    objective,
    optimiser,
)
from holdfast.errors import ConfigError, DataError, ModelError
from holdfast.threat import Threat

B, N = 6, 20


@pytest.fixture(scope="module")
def scene():
    torch.manual_seed(0)
    embedder = models.build("small", spec=(1, 8, 8), dim=8, unit_norm=True).double()
    gallery = torch.randint(0, 256, (N, 1, 8, 8), dtype=torch.uint8)
    labels = torch.arange(N) % 4
    vectors = embedder.embed(gallery)
    return embedder, gallery, Candidates(vectors, labels), labels


def wanted(name, scene, rows=slice(0, B)):
    _, _, candidates, labels = scene
    own = torch.arange(N)[rows]
    given = Given(candidates, labels[rows], (own + 7) % N, own, candidates.vectors)
    return objective(name, given)


FAST = {
    "pgd": {"steps": 5, "restarts": 2},
    "pgd-plain": {"steps": 5},
    "nes": {"queries": 40, "probes": 8},
    "spsa": {"queries": 40, "probes": 8},
    "universal": {"steps": 5},
}


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("how", OPTIMISERS)
def test_every_combination_stays_inside_and_never_ends_worse(scene, name, how, norm):
    embedder, gallery, _, _ = scene
    threat = Threat(norm, 0.1 if norm == "linf" else 0.5, "both")
    attack = Attack(wanted(name, scene), optimiser(how, **FAST[how]), threat)
    altered = attack.run(embedder, gallery[:B], eight_bit=how == "nes")
    clean = gallery[:B] / 255
    assert (Ball.of(threat, clean.double()).excess(altered.images) <= 0).all()
    state = attack.objective.bind(slice(0, B), embedder.embed(clean.double())).assess(
        embedder.embed(altered.images)
    )
    assert torch.allclose(altered.loss, state.loss, atol=1e-9)
    assert torch.allclose(altered.score, state.score, atol=1e-9)
    if how == "nes":
        assert torch.equal(altered.bytes() / 255, altered.images.float())
    elif how == "pgd":
        # The clean image (for es a point beside it) is one of the iterates.
        assert (altered.score <= altered.score_before + 1e-9).all()
        assert torch.equal(altered.gradients, torch.full((B,), 10))
    assert altered.trajectory.shape[0] == B
    assert (altered.trajectory.diff(dim=1) <= 0).all()


@pytest.mark.parametrize("how", OPTIMISERS)
@pytest.mark.parametrize("name", ["es", "qa+", "ca-"])
def test_batch_size_and_part_change_nothing(scene, name, how):
    """Draws are the same exactly; in float64 the rounding of other batch sizes is far below this."""
    embedder, gallery, _, _ = scene
    threat = Threat("linf", 0.1, "both")

    def run(rows, **options):
        attack = Attack(wanted(name, scene, rows), optimiser(how, **FAST[how]), threat)
        return attack.run(embedder, gallery[rows], seed=3, **options)

    whole = run(slice(0, B), batch_size=B)
    for size in (1, 4):
        again = run(slice(0, B), batch_size=size)
        assert torch.allclose(again.images, whole.images, atol=1e-9)
    if how != "universal":
        part = run(slice(2, 5), numbers=[2, 3, 4])
        assert torch.allclose(part.images, whole.images[2:5], atol=1e-9)


def test_seeds_matter_and_repeat(scene):
    embedder, gallery, _, _ = scene
    attack = Attack(wanted("es", scene), Pgd(steps=3), Threat("linf", 0.1))
    one, same, other = (attack.run(embedder, gallery[:B], seed=seed).images for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


class Counting(nn.Module):
    """A bowl whose bottom the first step overshoots; counts what it is asked."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.forwards = self.backwards = 0

    def forward(self, images):
        self.forwards += 1
        out = self.scale * images.flatten(1)
        if out.requires_grad:
            out.register_hook(self._backward)
        return out

    def _backward(self, gradient):
        assert not self.scale.requires_grad
        self.backwards += 1


def test_best_iterate_is_kept_and_the_work_is_what_is_said():
    model = Counting().train()
    images = torch.full((3, 1, 1, 2), 0.5)
    # One pixel's width from the target: steps of 0.1 jump over it and back.
    given = Given(Candidates(torch.tensor([[0.53, 0.53], [9.0, 9.0]]), torch.tensor([1, 0])), torch.zeros(3))
    gtm = objective("gtm", Given(given.candidates, torch.zeros(3, dtype=torch.int64)))
    threat = Threat("linf", 0.2)
    last = Attack(gtm, PlainPgd(steps=7, step=0.1), threat).run(model, images)
    assert (model.forwards, model.backwards) == (1 + 7 + 1, 7)
    best = Attack(gtm, Pgd(steps=7, step=0.1, schedule="fixed", momentum=0), threat).run(model, images)
    assert (model.forwards, model.backwards) == (18, 14)
    assert (best.loss < last.loss).all()
    assert torch.equal(best.images, images)
    auto = Attack(gtm, Pgd(steps=20, step=0.1), threat).run(model, images)
    assert (auto.loss < 0.25 * best.loss).all()
    assert (best.gradients == 7).all()
    assert (best.queries == 2).all()
    assert model.training
    assert model.scale.requires_grad


def test_model_is_put_back_after_an_error():
    class Broken(Counting):
        def forward(self, images):
            assert not self.training
            return super().forward(images) * (torch.nan if self.forwards > 1 else 1.0)

    model = Broken().train()
    with pytest.raises(ModelError, match="NaN or infinity near image 0"):
        Attack(objective("es", Given()), Pgd(), Threat("linf", 0.1)).run(model, torch.rand(2, 1, 2, 2))
    assert model.training
    assert model.scale.requires_grad


def test_restarts_only_help(scene):
    embedder, gallery, _, _ = scene
    threat = Threat("linf", 0.05)
    one, three = (
        Attack(wanted("ltm", scene), Pgd(steps=4, restarts=n), threat).run(embedder, gallery[:B])
        for n in (1, 3)
    )
    assert ((three.score < one.score) | ((three.score == one.score) & (three.loss <= one.loss))).all()
    assert (three.loss < one.loss).any()


def test_masked_gradients_are_said():
    class Masked(nn.Module):
        def forward(self, images):
            return (images.flatten(1) * 8).floor() + 0 * images.flatten(1)

    images = torch.rand(4, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    altered = Attack(objective("es", Given()), Pgd(steps=4), Threat("linf", 0.01)).run(Masked(), images)
    assert altered.telemetry()["zero_gradient"] == 1.0
    given = Given(Candidates(torch.rand(5, 4)), targets=torch.zeros(4, dtype=torch.int64))
    fair = Attack(objective("qa-", given), Pgd(steps=4), Threat("linf", 0.01)).run(Counting(), images)
    assert fair.telemetry()["zero_gradient"] == 0.0


def test_late_gain_shows_that_more_steps_would_help(scene):
    embedder, gallery, _, _ = scene
    es = wanted("es", scene)
    slow = Attack(es, PlainPgd(steps=20, step=0.001), Threat("linf", 0.3)).run(embedder, gallery[:B])
    done = Attack(es, Pgd(steps=40), Threat("linf", 0.01)).run(embedder, gallery[:B])
    assert slow.telemetry()["late_gain"] > 0.05
    assert done.telemetry()["late_gain"] < 0.01


@pytest.mark.parametrize("how", [Nes, Spsa])
def test_lists_alone_are_enough_to_raise_and_to_push_out(scene, how):
    embedder, gallery, candidates, _ = scene
    seen = 0

    def search(images):
        nonlocal seen
        seen += len(images)
        with torch.no_grad():
            return candidates.distances(embedder(images.double())).topk(10, largest=False).indices

    images = gallery[:B]
    options = how(queries=400, probes=20, sigma=0.1)
    for name in ("gtt", "qa+"):
        attack = Attack(wanted(name, scene), options, Threat("linf", 0.4))
        altered = attack.run(TopK(search), images)
        assert float(altered.loss.mean()) < float(altered.loss_before.mean()) - 0.1, name
        assert seen == int(altered.queries.sum())
        assert (altered.queries <= 400).all()
        seen = 0
    with pytest.raises(
        ConfigError, match="pgd needs gradients, which this model does not give; use nes or spsa"
    ):
        Attack(wanted("gtt", scene), Pgd(), Threat("linf", 0.1)).run(TopK(search), images)
    with pytest.raises(ConfigError, match="needs vectors; this model shows only lists"):
        Attack(wanted("ca+", scene), Nes(), Threat("linf", 0.1, "candidates")).run(TopK(search), images)


def test_a_start_can_be_given(scene):
    embedder, gallery, _, _ = scene
    attack = Attack(wanted("tma", scene), Pgd(steps=1, step=0.0), Threat("linf", 0.2))
    start = gallery[7 : 7 + B] / 255
    altered = attack.run(embedder, gallery[:B], start=start)
    clean = gallery[:B].double() / 255
    assert torch.allclose(altered.images, torch.maximum(torch.minimum(start, clean + 0.2), clean - 0.2))


def test_bad_input_is_one_clear_line(scene):
    embedder, gallery, _, _ = scene
    qa, ca, threat = wanted("qa+", scene), wanted("ca+", scene), Threat("linf", 0.1)
    images = gallery[:B]
    with pytest.raises(ConfigError, match="gtt needs the candidates' vectors"):
        Attack(objective("gtt", Given()), Pgd(), threat).run(embedder, images)
    with pytest.raises(ConfigError, match=r"ca. alters the candidates, which the threat query:linf:0.1"):
        Attack(ca, Pgd(), threat)
    with pytest.raises(
        ConfigError, match="pgd needs gradients, which this model does not give; use nes or spsa"
    ):
        Attack(qa, Pgd(), threat).run(lambda x: x.flatten(1), images)
    with pytest.raises(ConfigError, match="universal needs gradients"):
        Attack(qa, Universal(), threat).run(lambda x: x.flatten(1), images)
    with pytest.raises(DataError, match="there are 3 images, but 6 rows"):
        Attack(qa, Pgd(), threat).run(embedder, images[:3])
    with pytest.raises(ModelError, match="images of one size can be attacked together; found 1x8x8, 1x9x8"):
        Attack(qa, Pgd(), threat).run(embedder, [torch.rand(1, 8, 8), torch.rand(1, 9, 8)])
    with pytest.raises(ModelError, match="this embedder takes images of 1x8x8, found 1x9x9"):
        Attack(qa, Pgd(), threat).run(embedder, torch.rand(6, 1, 9, 9))
    with pytest.raises(ModelError, match="one vector of floats per image"):
        Attack(objective("es", Given()), Nes(queries=30), threat).run(lambda x: x, images)
    with pytest.raises(ModelError, match="vector of image 1 of a batch of 6 is not finite"):
        Attack(objective("es", Given()), Nes(queries=30), threat).run(
            lambda x: torch.where(torch.arange(len(x)) == 1, torch.nan, 1.0)[:, None], images
        )
    with pytest.raises(ModelError, match="passes no gradient"):
        Attack(objective("es", Given()), Pgd(), threat).run(Blind(), images)
    with pytest.raises(DataError, match="no images to attack"):
        Attack(objective("es", Given()), Pgd(), threat).run(embedder, images[:0])
    with pytest.raises(ModelError, match="can be attacked, not int"):
        Attack(qa, Pgd(), threat).run(3, images)
    with pytest.raises(ConfigError, match="unknown option of nes 'steps'; known: momentum, probes, queries"):
        optimiser("nes", steps=3)
    with pytest.raises(ConfigError, match="20 probes a step need a budget of 23 queries, not 22"):
        Nes(queries=22)
    with pytest.raises(ConfigError, match="an even number"):
        Spsa(probes=3)
    for wrong in ({"steps": 0}, {"restarts": 0}, {"momentum": 1.0}, {"step": -1.0}, {"schedule": "x"}):
        with pytest.raises(ConfigError):
            Pgd(**wrong)


class Blind(nn.Module):
    def forward(self, images):
        return images.flatten(1).detach()


def test_streaming_gives_the_same_parts(scene):
    embedder, gallery, _, _ = scene
    attack = Attack(wanted("gtt", scene), Pgd(steps=3), Threat("linf", 0.1))
    parts = list(attack.stream(embedder, gallery[:B], batch_size=4))
    assert [span for span, _ in parts] == [range(4), range(4, 6)]
    whole = attack.run(embedder, gallery[:B], batch_size=4)
    assert torch.equal(torch.cat([part.images for _, part in parts]), whole.images)
