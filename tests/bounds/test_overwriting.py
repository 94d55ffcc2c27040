"""Memory that is used again, by bounds or by the network itself, changes no bound."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import KINDS, attempts, make
from torch import nn

from holdfast.bounds import Box, image_box, interval_bounds, normalised, trace
from holdfast.errors import ConfigError, DataError, ModelError
from holdfast.models import build, wrap
from holdfast.proofs.certifier import Certifier
from holdfast.spec import ImageSpec

SHAPE = (1, 6, 6)


class Net(nn.Module):
    """A convolution and two linear layers, put together by a function."""

    def __init__(self, forward, seed=0, last=2 * 144):
        super().__init__()
        torch.manual_seed(seed)
        self.conv, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.one, self.two = nn.Linear(144, 3), nn.Linear(144, 3)
        self.inplace, self.leaky = nn.ReLU(inplace=True), nn.LeakyReLU(0.5, inplace=True)
        nn.init.uniform_(self.conv.bias, -1, 1)
        self.norm.running_mean.uniform_(-1, 1)
        self.put_together = forward

    def forward(self, x):
        return self.put_together(self, x)


def flat(x):
    return torch.flatten(x, 1)


def view_beside(net, x):
    x = net.conv(x)
    f = flat(x)
    return net.one(f) + net.two(flat(F.relu(x)))


def two_views(net, x):
    x = net.conv(x)
    f = flat(x)
    return net.one(f) + net.two(F.relu(flat(x)))


def shortcut(net, x):
    x = net.conv(x)
    return net.one(flat(F.relu(net.norm(F.relu(x)) + x)))


def normalised_last(net, x):
    return net.one(flat(F.relu(net.norm(net.conv(x)))))


def by_view(net, x):
    x = F.relu(net.conv(x))
    return net.one(x.view(x.size(0), -1))


def by_reshape(net, x):
    x = F.relu(net.conv(x))
    return net.one(x.reshape(x.shape[0], -1))


NETS = (view_beside, two_views, shortcut, normalised_last, by_view, by_reshape)


def assert_same(one, other):
    torch.testing.assert_close(one.centre, other.centre.detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(one.radius, other.radius.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rounding", [False, True])
@pytest.mark.parametrize("forward", NETS)
@pytest.mark.parametrize("seed", range(4))
def test_boxes_without_gradients_are_those_with_them(forward, rounding, seed):
    """With gradients nothing is overwritten."""
    net = Net(forward, seed).eval()
    graph, images = trace(net), torch.rand(3, *SHAPE)
    kept = image_box(images, 0.1)
    before = kept.centre.clone(), kept.radius.clone()
    with torch.no_grad():
        found = interval_bounds(graph, kept, rounding=rounding)
    assert torch.equal(kept.centre, before[0])
    assert torch.equal(kept.radius, before[1])
    assert_same(found, interval_bounds(graph, image_box(images, 0.1), rounding=rounding))
    for image in attempts(net, images, 0.1, True, seed):
        out = net(image).detach()
        assert ((out - found.centre).abs() <= found.radius + 1e-5).all()


@settings(max_examples=60, deadline=None)
@given(kind=st.sampled_from(KINDS), seed=st.integers(0, 10_000), rounding=st.booleans())
def test_random_networks_too(kind, seed, rounding):
    net, shape = make(kind, seed)
    graph, images = trace(net), torch.rand(2, *shape)
    with torch.no_grad():
        found = interval_bounds(graph, image_box(images, 0.05), rounding=rounding)
    assert_same(found, interval_bounds(graph, image_box(images, 0.05), rounding=rounding))


def test_batch_norm_keeps_its_allowance():
    """The two terms of the shift cancel and hide their rounding."""
    net = Net(normalised_last).eval()
    net.norm.running_mean.fill_(12345.0)
    with torch.no_grad():
        net.norm.bias.copy_(12345.0 * net.norm.weight / (net.norm.running_var + net.norm.eps).sqrt())
        images = torch.rand(50, *SHAPE)
        box = interval_bounds(trace(net), image_box(images.double(), 0.0, rounding=True), rounding=True)
        assert ((net(images).double() - box.centre).abs() <= box.radius).all()


def in_place_shortcut(net, x):
    x = net.conv(x)
    return net.one(flat(net.inplace(x) + x))


def in_place_sum(net, x):
    x = net.conv(x)
    y = F.relu(x)
    z = y
    y += x
    return net.one(flat(z))


def in_place_then_used(net, x):
    x = net.conv(x)
    F.relu(x, inplace=True)
    return net.one(flat(x))


def in_place_view(net, x):
    x = net.conv(x)
    f = flat(x)
    y = net.leaky(x)
    return net.one(f) + net.two(flat(y))


def in_place_method(net, x):
    x = net.conv(x)
    y = x.relu_()
    return net.one(flat(y)) + net.two(flat(x))


def on_the_image(net, x):
    x = F.relu(x, True)
    return net.one(flat(net.conv(x)))


@pytest.mark.parametrize(
    "forward",
    [in_place_shortcut, in_place_then_used, in_place_view, in_place_method, on_the_image],
)
def test_what_a_network_overwrites_and_uses_again_is_refused(forward):
    with pytest.raises(ModelError, match="in place"):
        trace(Net(forward).eval())


def test_what_a_trace_does_not_show_is_found_by_trying():
    """torch.fx takes `y += x` for a sum, and does not see that another name of y changed with it."""
    embedder = wrap(Net(in_place_sum).eval(), SHAPE)
    with pytest.raises(ModelError, match="cannot be seen in its trace"):
        Certifier(embedder)


def test_in_place_on_what_nobody_needs_is_fine():
    net = Net(lambda net, x: net.one(flat(net.inplace(net.conv(x))))).eval()
    plain = Net(lambda net, x: net.one(flat(F.relu(net.conv(x))))).eval()
    images = image_box(torch.rand(2, *SHAPE), 0.1)
    with torch.no_grad():
        assert_same(interval_bounds(trace(net), images), interval_bounds(trace(plain), images))


def test_lookalikes_are_refused():
    for net, says in (
        (Net(lambda net, x: net.one(net.conv(x).view(-1, 144))), "view or reshape"),
        (nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.Softplus(threshold=0)), "not increasing"),
    ):
        with pytest.raises(ModelError, match=says):
            trace(net.eval())
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 4)).eval()
    net[1].forward = lambda x: x[:, :4]
    with pytest.raises(ModelError, match="forward of its own"):
        trace(net)
    wrong_axis = nn.Sequential(
        nn.Conv2d(1, 4, 5), nn.Flatten(2), nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(16, 2)
    )
    with pytest.raises(ModelError, match="BatchNorm1d"):
        interval_bounds(trace(wrong_axis.eval()), image_box(torch.rand(1, *SHAPE), 0.1))


@pytest.mark.parametrize("size", [1e-13, 1e20])
def test_norms_that_float32_cannot_divide_by_say_nothing(size):
    z = torch.tensor([[3.0, 4.0]]) * size
    box = normalised(Box(z.double(), torch.zeros(1, 2, dtype=torch.float64)))
    assert torch.isinf(box.radius).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_not_certified(dtype):
    embedder = wrap(nn.Sequential(nn.Flatten(), nn.Linear(36, 4)).to(dtype).eval(), SHAPE)
    with pytest.raises(ModelError, match="float32 inference"):
        Certifier(embedder)


def test_an_overflow_of_float32_is_unknown():
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.Linear(4, 3)).eval()
    with torch.no_grad():
        # Half up, half down: a grey image gives zero, a black and white one infinity.
        net[1].weight.copy_(torch.tensor([2e37, -2e37]).repeat(18).expand(4, 36))
        net[2].weight.fill_(1e-38)
    box = Certifier(wrap(net, SHAPE)).box(torch.rand(2, *SHAPE), 0.01)
    assert torch.isinf(box.radius).all()


def test_a_frozen_batch_norm_stays_frozen():
    embedder = build("resnet18", spec=ImageSpec(3, 32, 32), unit_norm=False)
    embedder.freeze_batch_norm = True
    embedder.train()
    modes = [m.training for m in embedder.modules()]
    trace(embedder)
    assert [m.training for m in embedder.modules()] == modes


def test_bad_input_is_one_line():
    certifier = Certifier(wrap(nn.Sequential(nn.Flatten(), nn.Linear(36, 4)).eval(), SHAPE))
    with pytest.raises(ModelError, match="takes images of 1x6x6"):
        certifier.box(torch.rand(2, 1, 5, 5), 0.1)
    with pytest.raises(DataError, match="no images"):
        certifier.box(torch.rand(0, *SHAPE), 0.1)
    with pytest.raises(DataError, match="do not fit"):
        certifier.box(torch.rand(2, *SHAPE), torch.tensor([0.1, 0.1, 0.1]))
    with pytest.raises(DataError, match="floats"):
        image_box(torch.zeros(1, *SHAPE, dtype=torch.uint8), 0.1)
    with pytest.raises(ConfigError, match="crwon"):
        certifier.altered_query(0.1, "crwon", torch.rand(1, *SHAPE), torch.rand(3, 4))
    attack = certifier.altered_query(0.1, "interval", torch.rand(1, *SHAPE), torch.rand(3, 4))
    for hits in (torch.tensor([[3]]), torch.tensor([[0.0]]), torch.tensor([[0], [1]])):
        with pytest.raises(DataError, match="hits"):
            attack.ranks(hits)
    with pytest.raises(DataError, match="no distances"):
        certifier.altered_query(0.1, "interval", torch.rand(1, *SHAPE), torch.rand(3, 5))
