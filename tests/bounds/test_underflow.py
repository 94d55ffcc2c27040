"""Near zero float32 errs by more than a share of its results; boxes pay for that, and for numbers flushed to zero."""

import math
from contextlib import contextmanager
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from holdfast import wrap
from holdfast.bounds import Box, box_distance_bounds, image_box, interval_bounds, linear_box, trace
from holdfast.bounds.box import TINY
from holdfast.bounds.neighbours import Neighbours, pair_distances
from holdfast.bounds.operations import BatchNorm, Convolution, Linear, Pooling, Scale, Sum
from holdfast.certify.altered_candidates import AlteredCandidates
from holdfast.certify.certifier import Certifier
from holdfast.gallery.boxes import Boxes

SHAPE = (1, 6, 6)
LEAST = 2.0**-149
FLUSHED = 2.0**-126


@contextmanager
def flushing():
    """Numbers below 2⁻¹²⁶ are zero in this thread."""
    assert torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


class Rescaled(nn.Module):
    """A layer with weights near 1e-42, whose outputs are brought back to the size of 1."""

    def __init__(self, layer: nn.Module, size: float, back: int) -> None:
        super().__init__()
        self.flat, self.layer, self.back = nn.Flatten(), layer, back
        for weight in layer.parameters():
            weight.data.mul_(size)

    def forward(self, x):
        z = self.flat(self.layer(x))
        for _ in range(self.back):
            z = z * 1e21
        return z


def networks():
    torch.manual_seed(0)
    yield Rescaled(nn.Sequential(nn.Flatten(), nn.Linear(36, 8)), 1e-41, 2)
    yield Rescaled(nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 4)), 1e-20, 2)
    yield Rescaled(nn.Conv2d(1, 4, 3, groups=1), 1e-41, 2)
    yield Rescaled(nn.Sequential(nn.Conv2d(1, 4, 3), nn.AvgPool2d(2)), 1e-41, 2)
    yield Rescaled(nn.Sequential(nn.Conv2d(1, 4, 3), nn.LeakyReLU(0.3), nn.MaxPool2d(2)), 1e-41, 2)
    norm = nn.BatchNorm2d(1)
    norm.running_var.fill_(1e30)
    yield Rescaled(norm, 1e-26, 2)


@pytest.mark.parametrize("eps", [0.0, 1e-7])
@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("net", list(networks()), ids=lambda net: str(len(list(net.modules()))))
def test_rescaled_subnormal_outputs_stay_in_their_boxes(net, flush, eps):
    """The reported case: weights of 1e-42, times 1e42, at a small eps. The box is made in the other mode too."""
    embedder, images = wrap(net.eval(), SHAPE), torch.rand(20, *SHAPE)
    box = image_box(images.double(), eps, rounding=True)
    graph = trace(embedder)
    with torch.no_grad():
        held = [interval_bounds(graph, box, rounding=True), linear_box(graph, box, rounding=True)]
    if flush:
        with flushing():
            vectors = embedder.embed(images)
            box = image_box(images.double(), eps, rounding=True)
            held.append(interval_bounds(graph, box, rounding=True))
    else:
        vectors = embedder.embed(images)
    for one in held:
        assert ((vectors.double() - one.centre).abs() <= one.radius).all()


def test_a_network_that_underflows_is_refused_or_proves_nothing():
    embedder = wrap(next(networks()).eval(), SHAPE)
    images = torch.rand(9, *SHAPE)
    attack = Certifier(embedder).altered_query(1e-7, "crown", images[:2], embedder.embed(images[2:]))
    ranks = attack.ranks(torch.arange(7).expand(2, -1))
    assert (ranks.best == 1).all()
    assert (ranks.worst == 7).all()


def exactly(weights, xs):
    """Σ w·x without any rounding."""
    return sum(Fraction(float(w)) * Fraction(float(x)) for w, x in zip(weights, xs, strict=True))


def charge_of(operation, value: torch.Tensor) -> float:
    """How wide rounding makes the box of one point."""
    point = Box(value.double(), torch.zeros_like(value, dtype=torch.float64))
    return float(operation.interval([point] * (2 if isinstance(operation, Sum) else 1), True).radius.min())


def test_known_answers_of_flushed_operands_and_results():
    """Products of 2⁻⁸⁰·2⁻⁸⁰ are zero in float32, whose sum is exactly n·2⁻¹⁶⁰; flushed operands lose |w|·|x|."""
    for n, w, x in [
        (300, 2.0**-80, 2.0**-80),
        (16, 1.5 * LEAST, 1.0),
        (7, 2.0**-130, 2.0**20),
        (7, 2.0**20, 2.0**-130),
        (50, 2.0**-127, 2.0**-10),
    ]:
        layer = nn.Linear(n, 1, bias=False)
        layer.weight.data.fill_(w)
        given = torch.full((1, n), x)
        exact = exactly(layer.weight[0].tolist(), given[0].tolist())
        found = []
        with torch.no_grad():
            found.append(layer(given).item())
            with flushing():
                found.append(layer(given).item())
            charged = charge_of(Linear(layer), given)
        for one in found:
            assert abs(Fraction(one) - exact) <= Fraction(charged)
        # What inference may lose at most is charged whole.
        lost = n * (FLUSHED + min(w, FLUSHED) * x + w * min(x, FLUSHED))
        assert charged >= lost


def test_every_operation_charges_something_at_zero():
    """At 0 a share of the value is 0: what is left is the absolute term, at least n·2⁻¹²⁶."""
    plain = {
        Linear(nn.Linear(9, 2, bias=False)): torch.zeros(1, 9),
        Convolution(nn.Conv2d(3, 2, 3, bias=False)): torch.zeros(1, 3, 3, 3),
        Scale(torch.ones(()), None): torch.zeros(1, 4),
        Pooling(nn.AvgPool2d(3), 9): torch.zeros(1, 1, 3, 3),
        Sum(): torch.zeros(1, 4),
        BatchNorm(nn.BatchNorm2d(2).eval()): torch.zeros(1, 2, 2, 2),
    }
    with torch.no_grad():
        for operation, value in plain.items():
            assert charge_of(operation, value) >= value[0].numel() * FLUSHED, type(operation).__name__
            assert charge_of(operation, value) < 1e-6


def test_batch_norm_of_a_vanishing_variance_is_unknown():
    norm = nn.BatchNorm2d(1, eps=0.0).eval()
    norm.running_var.fill_(1e-40)
    with torch.no_grad():
        assert math.isinf(charge_of(BatchNorm(norm), torch.ones(1, 1, 2, 2)))


def test_ordinary_boxes_are_no_wider():
    """The absolute terms vanish beside every other charge."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 6))
    graph, images = trace(net.eval()), image_box(torch.rand(3, *SHAPE).double(), 0.01, rounding=True)
    with torch.no_grad():
        now = interval_bounds(graph, images, rounding=True).radius
        free = interval_bounds(graph, images).radius
    assert (now > free).all()
    assert (now < free * 1.001).all()


def test_distances_pay_for_vectors_read_as_zero():
    """Two candidates whose coordinates are subnormal are one where they are flushed: neither is surely farther."""
    vectors = torch.full((2, 4), 2.0**-149).double()
    vectors[1] *= 2
    box = Box(vectors, torch.zeros_like(vectors))
    ranks = AlteredCandidates(box, torch.zeros(1, 4)).ranks(torch.tensor([[0, 1]]))
    assert ranks.best.tolist() == [[1, 1]]
    assert ranks.worst.tolist() == [[2, 2]]
    upper, lower = box_distance_bounds(box, box)
    assert float(upper.max()) == pytest.approx(2.0**-148)
    assert float(lower.min()) == 0


def test_stored_boxes_hold_what_float32_would_flush():
    centre, radius = np.full((1, 3), 2.0**-140), np.full((1, 3), 2.0**-130)
    with flushing():
        boxes = Boxes.around(centre, radius)
    for near in (boxes.centre.astype(np.float64), np.zeros((1, 3))):
        assert (np.abs(centre - near) + radius <= boxes.radius).all()
    assert (boxes.radius < 2 * TINY).all()


def test_neighbours_whose_squares_underflow_are_not_certified():
    """Squares of 1e-170 are 0 in float64: which of two vectors is nearer cannot be told."""
    vectors = np.array([[1e-170], [3e-170], [1e-140]])
    known = Neighbours(vectors, np.array([0, 1, 1]), np.eye(1))
    point = np.array([1.2e-170])
    squared = known.squared(point)
    every = np.arange(3)
    found = pair_distances(squared, known, known.noise(point), every[:1], every[1:])
    assert found[0, 0] == 0
    assert 0 <= found[0, 1] <= 5e-141
    usual = Neighbours(np.array([[1.0], [3.0]]), np.array([0, 1]), np.eye(1))
    at = np.array([1.5])
    assert pair_distances(usual.squared(at), usual, usual.noise(at), every[:1], every[1:2])[
        0, 0
    ] == pytest.approx(0.5, rel=1e-9)
