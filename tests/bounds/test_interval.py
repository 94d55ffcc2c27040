"""No image of a box, random, at a corner or found by gradient ascent, leaves the bounds."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import KINDS, attempts, make
from torch import nn

from holdfast.bounds import Box, image_box, interval_bounds, normalised, trace
from holdfast.errors import ConfigError, DataError, ModelError
from holdfast.models import MODELS, build
from holdfast.spec import ImageSpec


@settings(max_examples=80, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 10_000),
    eps=st.sampled_from([0.0, 1e-4, 0.03, 0.3]),
    clip=st.booleans(),
    rounding=st.booleans(),
)
def test_no_image_leaves_the_box(kind, seed, eps, clip, rounding):
    net, shape = make(kind, seed)
    images = torch.rand(3, *shape).round(decimals=1)
    with torch.no_grad():
        box = interval_bounds(
            trace(net), image_box(images, eps, clip=clip, rounding=rounding), rounding=rounding
        )
    allowed = 0.0 if rounding else 1e-5
    for x in attempts(net, images, eps, clip, seed):
        with torch.no_grad():
            out = net(x)
        assert ((out - box.centre).abs() <= box.radius + allowed * (1 + box.centre.abs())).all()


@pytest.mark.parametrize("kind", KINDS)
def test_rounding_covers_float32_and_stays_small(kind):
    """At eps = 0 the box holds both the exact output and float32's, and is far smaller than the output."""
    net, shape = make(kind, 3)
    images = torch.rand(8, *shape)
    with torch.no_grad():
        box = interval_bounds(trace(net), image_box(images, 0.0, rounding=True), rounding=True)
        exact = copy.deepcopy(net).double()(images.double())
        assert ((exact - box.centre).abs() <= box.radius).all()
        assert ((net(images) - box.centre).abs() <= box.radius).all()
        assert box.radius.max() < 2e-3 * exact.abs().max().clamp(min=1)


def test_a_linear_network_is_bounded_exactly():
    net, shape = make("linear", 0)
    images = torch.full((1, *shape), 0.5)
    weight = net[1].weight
    box = interval_bounds(trace(net), image_box(images, 0.25))
    for k in range(6):
        worst = images + 0.25 * weight[k].sign().view(shape)
        torch.testing.assert_close(net(worst)[0, k], box.upper[0, k])


def test_relu_box_by_hand():
    net = nn.Sequential(nn.ReLU())
    box = interval_bounds(trace(net), Box(torch.tensor([[-1.0, 0.5, 2.0]]), torch.tensor([[2.0, 1.0, 1.0]])))
    assert box.lower.tolist() == [[0.0, 0.0, 1.0]]
    assert box.upper.tolist() == [[1.0, 1.5, 3.0]]


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_model_can_be_bounded(name):
    torch.manual_seed(0)
    spec = ImageSpec(3, 32, 32) if MODELS[name].colour_only else ImageSpec(1, 28, 28)
    options = {"pretrained": False} if MODELS[name].shipped else {}
    embedder = build(name, spec=spec, **options).eval()
    images = torch.rand(2, *spec.shape)
    with torch.no_grad():
        box = interval_bounds(trace(embedder), image_box(images, 1e-4, rounding=True), rounding=True)
        # An untrained deep network's bounds may overflow; that must show, never pass for a bound.
        holds = ~torch.isfinite(box.radius)
        for x in (images, (images + 1e-4).clamp(max=1), (images - 1e-4).clamp(min=0)):
            assert (holds | ((embedder.features(x) - box.centre).abs() <= box.radius)).all()


def test_gradients_reach_the_weights():
    net, shape = make("conv", 1)
    box = interval_bounds(trace(net), image_box(torch.rand(2, *shape), 0.1))
    box.radius.sum().backward()
    for name, parameter in net.named_parameters():
        if name.endswith("weight"):
            assert parameter.grad is not None
            assert parameter.grad.abs().sum() > 0
    before = box.radius.sum().item()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter -= 1e-3 * (parameter.grad if parameter.grad is not None else 0)
    assert interval_bounds(trace(net), image_box(torch.rand(2, *shape), 0.1)).radius.sum().item() != before


def test_bounds_follow_training():
    """A graph that was traced before the weights moved bounds the network as it is now."""
    net, shape = make("norm", 2)
    graph, images = trace(net), torch.rand(2, *shape)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1.7)
        net[1].running_mean.add_(0.5)
        box = interval_bounds(graph, image_box(images, 0.01))
        assert ((net(images) - box.centre).abs() <= box.radius + 1e-4).all()


def test_eps_for_each_image():
    net, shape = make("deep", 0)
    images, graph = torch.rand(3, *shape), trace(net)
    eps = torch.tensor([0.0, 0.1, 0.2])
    together = interval_bounds(graph, image_box(images, eps))
    for i in range(3):
        alone = interval_bounds(graph, image_box(images[i : i + 1], float(eps[i])))
        torch.testing.assert_close(together.radius[i], alone.radius[0])


def test_clipping_is_tighter_and_never_looser():
    net, shape = make("conv", 4)
    images = torch.rand(4, *shape).round()
    clipped, whole = (
        interval_bounds(trace(net), image_box(images, 0.2, clip=clip)) for clip in (True, False)
    )
    assert (clipped.upper <= whole.upper + 1e-5).all()
    assert (clipped.radius.sum() < 0.9 * whole.radius.sum()).all()


class Strange(nn.Module):
    def forward(self, x):
        return torch.sin(x.flatten(1))


def test_what_cannot_be_bounded_is_named():
    with pytest.raises(ModelError, match="sin"):
        trace(Strange())
    with pytest.raises(ModelError, match="GELU"):
        trace(nn.Sequential(nn.Flatten(), nn.GELU()))
    with pytest.raises(ModelError, match="no dropout in train mode") as refused:
        trace(nn.Sequential(nn.Conv2d(1, 1, 1), nn.Dropout(), nn.BatchNorm2d(1)).train(), as_is=True)
    assert "\n" not in str(refused.value)
    with pytest.raises(ModelError, match="LeakyReLU"):
        trace(nn.Sequential(nn.LeakyReLU(-0.5)))


class Weighted(nn.Module):
    def forward(self, x):
        x = x.flatten(1)
        return torch.add(x, torch.relu(x), alpha=-2)


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(input=x)


def test_what_looks_like_a_known_layer_and_is_not_is_refused():
    """Each of these would be bounded as something else, and the bound would be wrong."""
    hooked = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    hooked[1].register_forward_hook(lambda module, given, out: 3 * out)
    refused = {
        "padding mode 'reflect'": nn.Sequential(nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect")),
        "further arguments": Weighted(),
        "given by name": Named(),
        "forward hook": hooked,
        "running statistics": nn.Sequential(nn.BatchNorm2d(1, track_running_stats=False)),
        "AvgPool2d with a negative divisor": nn.Sequential(nn.AvgPool2d(2, divisor_override=-4)),
        "ELU that is not increasing": nn.Sequential(nn.ELU(alpha=-1.0)),
    }
    for reason, net in refused.items():
        with pytest.raises(ModelError, match=reason):
            trace(net.eval())


def test_large_average_pools_count_all_their_terms():
    """A mean over 200×200 numbers has 40,000 terms, and its rounding is allowed for as such."""
    net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    images = torch.rand(2, 1, 200, 200)
    box = interval_bounds(trace(net), image_box(images, 0.0, rounding=True), rounding=True)
    assert (box.radius > 40_000 * 2.0**-24 * box.centre).all()


def test_boxes_outside_the_domain_are_refused():
    with pytest.raises(ConfigError, match="eps"):
        image_box(torch.rand(1, 1, 2, 2), -0.1)
    with pytest.raises(ConfigError, match="eps"):
        image_box(torch.rand(1, 1, 2, 2), 1.5)
    with pytest.raises(DataError, match=r"\[0, 1\]"):
        image_box(torch.full((1, 1, 2, 2), 1.2), 0.1)
    with pytest.raises(DataError, match=r"\[0, 1\]"):
        image_box(torch.full((1, 1, 2, 2), torch.nan), 0.1)


def test_normalised_boxes_hold_vectors_whose_norm_was_summed_one_by_one():
    """The worst order of a float32 sum: each small square is lost against the first one."""
    z = np.full(2**16, 2.0**-12.5, dtype=np.float32)
    z[0] = 1
    norm = np.sqrt(np.add.accumulate(z * z)[-1])
    assert norm < np.linalg.norm(z.astype(np.float64)) * (1 - 2.0**-11)
    point = torch.from_numpy(z / norm).double()
    held = normalised(Box(torch.from_numpy(z).double()[None], torch.zeros(1, 2**16, dtype=torch.float64)))
    assert ((point - held.centre[0]).abs() <= held.radius[0]).all()
