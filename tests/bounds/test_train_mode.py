"""Batch norm that learns, in training on bounds: one function of one image, and statistics of clean images."""

from __future__ import annotations

import pytest
import torch
from networks import attempts
from torch import nn

from holdfast import models
from holdfast.bounds import image_box, interval_bounds, trace
from holdfast.errors import ModelError
from holdfast.training import parse
from holdfast.training.batch_norm import held, learns_statistics, recorded
from holdfast.training.defences import Batch, Moment, build_defence


def network(seed: int = 0) -> nn.Module:
    """Batch norm behind a convolution and behind a linear layer, in train mode, with scales of both signs."""
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 10, bias=False),
        nn.BatchNorm1d(10),
        nn.ReLU(),
        nn.Linear(10, 5),
    )
    for layer in (net[1], net[5]):
        nn.init.normal_(layer.weight)
        nn.init.normal_(layer.bias)
    return net.train()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize("eps", [0.0, 0.02, 0.2])
def test_no_image_leaves_the_box_under_the_statistics_of_the_clean_batch(seed, clip, eps):
    net = network(seed)
    images = torch.rand(12, 2, 8, 8).round(decimals=1)
    with recorded(net) as statistics:
        clean = net(images)
    box = interval_bounds(trace(net, as_is=True).under(statistics), image_box(images[:5], eps, clip=clip))
    with held(statistics, detached=True):
        tried = [(x, net(x)) for x in (images[:5], *attempts(net, images[:5], eps, clip, seed))]
    torch.testing.assert_close(tried[0][1], clean[:5], msg="the batch itself is normalised as it was")
    if eps == 0:
        torch.testing.assert_close(box.centre, clean[:5])
    for _, out in tried:
        assert ((out - box.centre).abs() <= box.radius + 1e-5 * (1 + box.centre.abs())).all()
    if eps:
        assert any((out - clean[:5]).abs().max() > 0.1 * eps for _, out in tried[1:]), "the attacks move it"


def test_a_box_by_hand():
    """Pixels 0, 1/4 and 1/2: mean 1/4, variance 1/24, and a scale of −2 and a shift of 3."""
    net = nn.Sequential(nn.BatchNorm2d(1, eps=0.125 - 1 / 24)).train()
    nn.init.constant_(net[0].weight, -2.0)
    nn.init.constant_(net[0].bias, 3.0)
    images = torch.tensor([0.0, 0.25, 0.5]).view(3, 1, 1, 1)
    with recorded(net) as statistics:
        net(images)
    mean, variance = statistics[net[0]]
    assert (mean.item(), variance.item()) == (pytest.approx(1 / 4), pytest.approx(1 / 24))
    box = interval_bounds(trace(net, as_is=True).under(statistics), image_box(images, 0.125, clip=False))
    size = 2 * 8**0.5
    assert box.centre.flatten().tolist() == pytest.approx([3 + size / 4, 3.0, 3 - size / 4])
    assert box.radius.flatten().tolist() == pytest.approx([size / 8] * 3)


def test_gradients_go_through_the_statistics():
    """The upper end of a box, derived by a weight: against the difference quotient of all that depends on it."""
    net = network().double()
    images = torch.rand(9, 2, 8, 8, dtype=torch.float64)

    def upper() -> torch.Tensor:
        with recorded(net) as statistics:
            net(images)
        return interval_bounds(
            trace(net, as_is=True).under(statistics), image_box(images[:4], 0.03)
        ).upper.sum()

    for weight in (net[0].weight, net[4].weight, net[1].weight):
        (gradient,) = torch.autograd.grad(upper(), weight)
        place = (0,) * weight.ndim
        with torch.no_grad():
            weight[place] += 1e-6
            above = upper()
            weight[place] -= 2e-6
            below = upper()
            weight[place] += 1e-6
        assert gradient[place].item() == pytest.approx((above - below).item() / 2e-6, rel=1e-4, abs=1e-7)


def test_without_statistics_there_are_no_bounds_in_train_mode():
    net, images = network(), torch.rand(3, 2, 8, 8)
    graph = trace(net, as_is=True)
    with pytest.raises(ModelError, match="need the statistics of a batch") as refused:
        interval_bounds(graph, image_box(images, 0.1))
    assert "\n" not in str(refused.value)
    inference = interval_bounds(trace(net), image_box(images, 0.1))
    torch.testing.assert_close(
        inference.centre, interval_bounds(trace(net.eval()), image_box(images, 0.1)).centre
    )


def test_a_layer_that_is_used_twice_is_refused():
    norm = nn.BatchNorm2d(2)
    net = nn.Sequential(norm, nn.Conv2d(2, 2, 3), norm).train()
    with pytest.raises(ModelError, match="used twice in one pass"), recorded(net):
        net(torch.rand(3, 2, 8, 8))
    assert not norm._forward_pre_hooks


def test_what_is_held_is_given_back():
    net, images = network(), torch.rand(6, 2, 8, 8)
    with recorded(net) as statistics:
        net(images)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with held(statistics):
        net(torch.rand(2, 2, 8, 8))
    with pytest.raises(RuntimeError), held(statistics):
        net(torch.rand(2, 3, 8, 8))
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items()), (
        "nothing is learned"
    )
    assert all("forward" not in vars(layer) for layer in net.modules())
    assert learns_statistics(net)
    assert not learns_statistics(net.eval())


DEFENCES = {
    "tbt": {},
    "certified-margin": {},
    "c-ibp": {"dim": 16},
    "certified-rank": {},
    "certified-rank, attacked": {"attacked": 0.5, "attack_steps": 2},
    "certified-rank, small boxes": {"box_share": 0.5, "attack_steps": 2},
    "certified-rank, regularised": {"regularise": 0.5},
}


@pytest.mark.parametrize("case", DEFENCES)
def test_running_statistics_are_of_one_clean_pass(case):
    name = case.partition(",")[0]
    torch.manual_seed(0)
    embedder = models.build("cnn7-narrow", spec=(1, 12, 12), dim=16, width=2)
    options = {"name": name, "eps": 0.1, **DEFENCES[case]}
    defence = build_defence(parse({"defence": options}).defence, 4)
    defence.prepare(embedder)
    images, labels = torch.rand(30, 1, 12, 12), torch.arange(30) % 4
    clean = images[24:] if name == "certified-rank" else images  # 24 of 30 are boxes
    with torch.no_grad():
        expected = 0.1 * embedder.network[0](clean).mean((0, 2, 3))
    terms = defence.terms(embedder, Batch(images, labels), Moment(30, 100))
    terms.loss.backward()
    norms = [part for part in embedder.modules() if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d)]
    assert [norm.num_batches_tracked.item() for norm in norms] == [1] * 6
    torch.testing.assert_close(norms[0].running_mean, expected)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in embedder.parameters())
    assert terms.logs["eps"] > 0


@pytest.mark.parametrize("case", DEFENCES)
def test_a_shift_before_batch_norm_has_no_gradient(case):
    """It moves images, boxes and attacked images as far as the mean that is taken off, if gradients go through it."""
    name = case.partition(",")[0]
    net = network().double()
    defence = build_defence(parse({"defence": {"name": name, "eps": 0.1, **DEFENCES[case]}}).defence, 4)
    if name == "c-ibp":
        defence.head = nn.Linear(5, 4)
    defence.double()
    images, labels = torch.rand(30, 2, 8, 8, dtype=torch.float64), torch.arange(30) % 4
    defence.terms(net, Batch(images, labels), Moment(30, 100)).loss.backward()
    assert net[0].weight.grad.abs().max() > 1e-4
    assert net[0].bias.grad.abs().max() < 1e-9


def test_ibp_initialisation_leaves_batch_norm_as_it_is():
    embedder = models.build("cnn7-narrow", spec=(1, 12, 12), dim=16, width=2)
    defence = build_defence(parse({"defence": {"name": "certified-rank"}}).defence, 4)
    first = embedder.network[0].weight.clone()
    defence.prepare(embedder)
    assert not torch.equal(first, embedder.network[0].weight)
    for norm in (part for part in embedder.modules() if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d)):
        assert (norm.weight == 1).all()
        assert (norm.bias == 0).all()
