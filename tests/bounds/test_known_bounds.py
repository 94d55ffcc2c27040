"""Bounds whose right answer is known: what each layer must charge for rounding, and lines and boxes by hand."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.bounds import (
    Box,
    box_distance_bounds,
    image_box,
    interval_bounds,
    linear_bounds,
    normalised,
    trace,
)
from holdfast.bounds.box import PIXEL_ROUNDING
from holdfast.bounds.operations import BatchNorm, Convolution, Linear, Pooling, Scale, Sum

UNIT = 2.0**-24


def gamma(terms: int) -> float:
    """What float32 may err in a sum of that many terms, as a share of the sum of their sizes."""
    return terms * UNIT / (1 - terms * UNIT)


def point(value: torch.Tensor, dtype: torch.dtype = torch.float64) -> Box:
    return Box(value.to(dtype), torch.zeros_like(value, dtype=dtype))


def large(layer: nn.Module, size: float = 1e4) -> nn.Module:
    torch.manual_seed(0)
    for parameter in layer.parameters():
        parameter.data.normal_().mul_(size)
    return layer.eval()


def affine_layers():
    """Layers with long sums, what they do, and the size of all that each output sums up."""
    linear, convolution = large(nn.Linear(4000, 3)), large(nn.Conv2d(60, 2, 7, padding=3))
    x, picture = torch.rand(50, 4000), torch.rand(2, 60, 9, 9)
    yield (
        Linear(linear), linear, x, 4000,
        lambda v: nn.functional.linear(v, linear.weight.double().abs(), linear.bias.double().abs()),
    )  # fmt: skip
    yield (
        Convolution(convolution), convolution, picture, 60 * 49,
        lambda v: nn.functional.conv2d(
            v, convolution.weight.double().abs(), convolution.bias.double().abs(), padding=3
        ),
    )  # fmt: skip
    pool = nn.AvgPool2d(70)
    yield Pooling(pool, 4900), pool, torch.rand(3, 1, 70, 70), 4900, pool
    whole = nn.AdaptiveAvgPool2d(1)
    yield Pooling(whole, None), whole, torch.rand(3, 1, 70, 70), 4900, whole
    norm = large(nn.BatchNorm2d(3))
    # Mean and bias cancel, and with them what the shift would tell of their rounding.
    norm.running_mean.fill_(7.0)
    scale = (norm.weight / (norm.running_var + norm.eps).sqrt()).double().view(-1, 1, 1)
    norm.bias.data = 7 * scale.float().flatten()
    bias = norm.bias.double().view(-1, 1, 1)
    yield (
        BatchNorm(norm), norm, 0.01 * torch.rand(2, 3, 4, 4), 3,
        lambda v: scale.abs() * v + (7 * scale).abs() + bias.abs(),
    )  # fmt: skip


def present(layer, x):
    """How many inputs that are not zero go into each output, by a layer of the same shape whose weights are all 1."""
    if not isinstance(layer, nn.Linear | nn.Conv2d):
        return 1.0
    ones = copy.deepcopy(layer).double()
    ones.weight.data.fill_(1.0)
    ones.bias = None
    return ones((x != 0).double())


@pytest.mark.parametrize("shape", ["linear", "convolution"])
def test_inputs_that_are_zero_round_nothing(shape):
    """Linear bounds pay γₖ for the k inputs that can differ from zero, and float32 stays within that."""
    torch.manual_seed(0)
    if shape == "linear":
        layer, x = large(nn.Linear(4000, 20)), torch.rand(30, 4000)
    else:
        layer, x = large(nn.Conv2d(64, 5, 5, padding=2, groups=1)), torch.rand(6, 64, 9, 9)
    x = x * (torch.rand_like(x) < 0.1)
    operation = {"linear": Linear, "convolution": Convolution}[shape](layer)
    with torch.no_grad():
        size = operation.apply_absolute(x.double(), 0.0) + operation.shift.double().abs()
        paid = operation.error([point(x)])
        owed = gamma(present(layer, x)) * size
        assert (paid >= owed).all()
        assert (paid <= 1.3 * owed).all(), "a tenth of the terms costs about a tenth"
        assert ((layer(x).double() - operation.apply(x.double())).abs() <= paid).all()


def test_a_number_that_may_be_zero_counts():
    layer = nn.Linear(2, 1)
    box = Box(torch.zeros(1, 2).double(), torch.tensor([[1e-300, 0.0]], dtype=torch.float64))
    assert Linear(layer).counted(box.centre.abs() + box.radius != 0).tolist() == [[1.0]]
    unknown = Box(torch.tensor([[torch.nan, 0.0]]).double(), torch.zeros(1, 2).double())
    assert Linear(layer).counted(unknown.centre.abs() + unknown.radius != 0).tolist() == [[1.0]]


@pytest.mark.parametrize("case", list(affine_layers()), ids=lambda case: type(case[0]).__name__)
def test_every_affine_layer_charges_what_float32_may_err(case):
    """At one point the radius is at least γₙ(|W||x| + |b|), which is all that a sum in any order can be off by."""
    operation, layer, x, terms, size = case
    with torch.no_grad():
        exact = operation.apply(x.double())
        for dtype in (torch.float64, torch.float32):
            box = operation.interval([point(x, dtype)], rounding=True)
            owed = gamma(terms) * size(x.double())
            assert (box.radius.double() >= owed).all()
            assert (box.radius.double() <= 4 * owed + 1e-5 * size(x.double())).all()
            if dtype == torch.float64:
                # Linear bounds pay for the terms that are there: padding rounds nothing.
                each = gamma(present(layer, x)) * size(x.double())
                assert (operation.error([point(x)]) >= each).all()
                assert (operation.error([point(x)]) <= 4 * owed + 1e-5 * size(x.double())).all()
        assert ((layer(x).double() - exact).abs() <= box.radius).all()


def test_a_large_linear_layer_keeps_its_outputs():
    """The reported case: without the allowance most outputs of this layer lie outside of their box."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), large(nn.Linear(4000, 3)))
    images = torch.rand(50, 1, 50, 80)
    with torch.no_grad():
        out = net(images).double()
        box = image_box(images.double(), 0.0, rounding=True)
        safe = interval_bounds(trace(net), box, rounding=True)
        bare = interval_bounds(trace(net), point(images))
    assert ((out - safe.centre).abs() <= safe.radius).all()
    assert ((out - bare.centre).abs() > bare.radius).any()


def test_the_bias_has_its_share():
    """Of a layer that sees zeros the bias is all that is left to round."""
    bias = torch.tensor([1e6, -3.0])
    linear, convolution = nn.Linear(500, 2), nn.Conv2d(5, 2, 10)
    for layer in (linear, convolution):
        layer.bias.data = bias
    with torch.no_grad():
        for operation, zeros, terms in (
            (Linear(linear), torch.zeros(1, 500), 500),
            (Convolution(convolution), torch.zeros(1, 5, 10, 10), 500),
            (Scale(torch.ones(2), bias), torch.zeros(1, 2), 2),
        ):
            radius = operation.interval([point(zeros)], rounding=True).radius.flatten()
            assert (radius >= gamma(terms) * bias.abs()).all(), type(operation).__name__


def test_the_charge_ahead_of_a_layer_is_the_layers_own():
    """Where an activation charges for the layer behind it, in its own pass, nothing is charged less."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 4000), nn.ReLU(), large(nn.Linear(4000, 3)))
    box = image_box(torch.rand(6, 1, 2, 2).double(), 0.0, rounding=True)
    with torch.no_grad():
        hidden = torch.relu(net[1].double()(box.centre.flatten(1)))
        owed = gamma(4000) * (hidden @ net[3].weight.double().abs().T + net[3].bias.double().abs())
        net.float()
        assert (interval_bounds(trace(net), box, rounding=True).radius >= owed).all()
    with torch.enable_grad():
        assert (interval_bounds(trace(net), box, rounding=True).radius >= owed).all()


def test_boxes_that_may_be_overwritten_are_charged_alike():
    """What saves memory gives the same box, to the last digit."""
    for operation, _, x, _, _ in affine_layers():
        with torch.no_grad():
            kept = operation.interval([Box(x, 0.01 * x)], rounding=True)
            over = operation.interval_over([Box(x.clone(), 0.01 * x)], rounding=True)
        assert torch.equal(kept.centre, over.centre)
        assert torch.equal(kept.radius, over.radius), type(operation).__name__


def test_a_sum_of_branches_pays_for_its_rounding():
    one, other = point(torch.tensor([[1e6, -2.0]])), point(torch.tensor([[-1e6, 3.0]]))
    held = Sum().interval([one, other], rounding=True)
    assert held.centre.tolist() == [[0.0, 1.0]]
    assert (held.radius >= UNIT * (one.centre.abs() + other.centre.abs())).all()


@pytest.mark.parametrize(
    ("slope", "low", "high", "above", "below"),
    [
        # From (−1, −½) to (3, 3): 7/8 x + 3/8 above; x below, since 3 is farther than 1.
        (0.5, -1.0, 3.0, (0.875, 0.375), 1.0),
        # From (−3, −3/2) to (1, 1): 5/8 x + 3/8 above; x/2 below.
        (0.5, -3.0, 1.0, (0.625, 0.375), 0.5),
        (0.0, -1.0, 3.0, (0.75, 0.75), 1.0),
        (0.0, -3.0, 1.0, (0.25, 0.75), 0.0),
        (0.5, 1.0, 3.0, (1.0, 0.0), 1.0),
        (0.5, -3.0, -1.0, (0.5, 0.0), 0.5),
        (0.0, -3.0, -1.0, (0.0, 0.0), 0.0),
    ],
)
def test_lines_beside_a_kink_by_hand(slope, low, high, above, below):
    """Both lines, and that no point of the activation is beyond them; −LeakyReLU(½) on [−1, 3] goes down to −3."""
    layer = nn.LeakyReLU(slope) if slope else nn.ReLU()
    box = Box(torch.tensor([[(low + high) / 2]]), torch.tensor([[(high - low) / 2]]))
    (step,) = trace(nn.Sequential(layer)).steps
    (up,), constant = step.operation.backward(torch.tensor([[[-1.0]]]), [box])
    assert (-up.item(), -float(constant)) == pytest.approx(above)
    (down,), constant = step.operation.backward(torch.tensor([[[1.0]]]), [box])
    assert (down.item(), float(constant)) == pytest.approx((below, 0.0))
    x = torch.linspace(low, high, 101)
    assert (layer(x) <= above[0] * x + above[1] + 1e-6).all()
    assert (layer(x) >= below * x - 1e-6).all()
    reached = linear_bounds(trace(nn.Sequential(layer)), box, torch.tensor([[-1.0]]))
    assert reached.item() == pytest.approx(-layer(torch.tensor(high)).item())


def test_boxes_of_activations_by_hand():
    box = Box(torch.tensor([[-1.0, 0.5, 2.0]]), torch.tensor([[2.0, 1.0, 1.0]]))
    for layer, lower, upper in (
        (nn.ReLU(), [0.0, 0.0, 1.0], [1.0, 1.5, 3.0]),
        (nn.LeakyReLU(0.5), [-1.5, -0.25, 1.0], [1.0, 1.5, 3.0]),
    ):
        found = interval_bounds(trace(nn.Sequential(layer)), box)
        assert (found.lower.tolist(), found.upper.tolist()) == ([lower], [upper])


def test_a_relu_that_charges_ahead_by_hand():
    """Made in place: the box of the activation, and share·(upper end) more for the layer behind it."""
    from holdfast.bounds.activations import Relu

    box = Box(torch.tensor([[-1.0, 2.0, -3.0]]), torch.tensor([[2.0, 1.0, 1.0]]))
    found = Relu().interval_over([box], True, 0.125)
    assert found.centre.tolist() == [[0.5, 2.0, 0.0]]
    assert found.radius.tolist() == [pytest.approx([0.5 + 0.125, 1.0 + 3 * 0.125, 0.0], abs=1e-30)]


def test_max_pooling_by_hand():
    """x ∈ [0, 3], y ∈ [1, 2]: their maximum lies in [1, 3], and no line says more."""
    box = Box(torch.tensor([[[[1.5, 1.5]]]]), torch.tensor([[[[1.5, 0.5]]]]))
    pool = nn.Sequential(nn.MaxPool2d((1, 2)), nn.Flatten())
    found = interval_bounds(trace(pool), box)
    assert (found.lower.item(), found.upper.item()) == (1.0, 3.0)
    assert linear_bounds(trace(pool), box, torch.tensor([[1.0], [-1.0], [-2.0]])).tolist() == [
        [1.0, -3.0, -6.0]
    ]


def test_a_padded_convolution_by_hand():
    """x₀ ∈ [0, 1], x₁ ∈ [0, ½], x₂ ∈ [⅝, ⅞], weights (1, −2, 3), zeros beside: the ends of all outputs, both ways."""
    layer = nn.Conv2d(1, 1, (1, 3), padding=(0, 1))
    layer.weight.data = torch.tensor([[[[1.0, -2.0, 3.0]]]])
    layer.bias.data.fill_(0.5)
    box = Box(torch.tensor([[[[0.5, 0.25, 0.75]]]]), torch.tensor([[[[0.5, 0.25, 0.125]]]]))
    found = interval_bounds(trace(nn.Sequential(layer)), box)
    lower, upper = [-1.5, 1.375, -1.25], [2.0, 4.125, -0.25]
    assert (found.lower.flatten().tolist(), found.upper.flatten().tolist()) == (lower, upper)
    net = nn.Sequential(layer, nn.Flatten())
    found = linear_bounds(trace(net), box, torch.cat([torch.eye(3), -torch.eye(3)]))
    assert found.tolist() == [[*lower, *(-end for end in upper)]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_images_are_clipped_on_both_sides(dtype):
    """Pixels at 0, ¼, ½, ¾ and 1, by ⅜ either way: no end outside of [0, 1], and none short of it."""
    images = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0], dtype=dtype).view(1, 1, 1, 5)
    box = image_box(images, 0.375)
    assert box.lower.flatten().tolist() == [0.0, 0.0, 0.125, 0.375, 0.625]
    assert box.upper.flatten().tolist() == [0.375, 0.625, 0.875, 1.0, 1.0]
    whole = image_box(images, 0.375, clip=False)
    assert whole.lower.flatten().tolist() == [-0.375, -0.125, 0.125, 0.375, 0.625]
    assert whole.upper.flatten().tolist() == [0.375, 0.625, 0.875, 1.125, 1.375]


@pytest.mark.parametrize("clip", [True, False])
def test_boxes_hold_what_float32_makes_of_a_pixel_and_eps(clip):
    """x ± eps is rounded where an attack computes it; the box of the exact sum has room for that, and no more."""
    images = (torch.arange(256) / 255).view(1, 1, 16, 16)
    for eps in (0.3 / 255, 2 / 255, 8 / 255, 0.1):
        box = image_box(images.double(), eps, clip=clip, rounding=True)
        bare = image_box(images.double(), eps, clip=clip)
        assert torch.allclose(box.radius, bare.radius + PIXEL_ROUNDING, rtol=0, atol=1e-12)
        step = torch.tensor(eps, dtype=torch.float32)
        for altered in (images + step, images - step):
            altered = altered.clamp(0, 1) if clip else altered
            assert ((altered.double() - box.centre).abs() <= box.radius).all()
    assert ((altered.double() - bare.centre).abs() > bare.radius).any(), "or no room would be needed"


def test_boxes_of_unit_vectors_by_hand():
    """(3 ± 1, 4 ± 1): the least norm is ‖(2, 3)‖, the largest ‖(4, 5)‖; an end of either sign takes its own."""
    found = normalised(Box(torch.tensor([[3.0, 4.0]]).double(), torch.tensor([[1.0, 1.0]]).double()))
    least, most = 13**0.5, 41**0.5
    assert found.upper.tolist() == [pytest.approx([1.0, 1.0], abs=1e-5)]
    assert found.lower.tolist() == [pytest.approx([2 / most, 3 / most], abs=1e-5)]
    found = normalised(Box(torch.tensor([[-1.0, 4.0]]).double(), torch.tensor([[0.5, 1.0]]).double()))
    least, most = (0.25 + 9) ** 0.5, (2.25 + 25) ** 0.5
    assert found.lower.tolist() == [pytest.approx([-1.5 / least, 3 / most], abs=1e-5)]
    assert found.upper.tolist() == [pytest.approx([-0.5 / most, 1.0], abs=1e-5)]
    point = normalised(Box(torch.tensor([[3.0, 4.0]]).double(), torch.zeros(1, 2).double()))
    assert (point.radius >= 4 * UNIT).all(), "a sum of two squares, its root and a quotient are rounded"
    assert torch.isinf(normalised(Box(torch.zeros(1, 2), torch.ones(1, 2))).radius).all()


def test_distances_of_boxes_by_hand():
    """From (0 ± 1, 3 ± 1) to (0, 0): no nearer than 2, no farther than ‖(1, 4)‖; to another box ± ½ likewise."""
    from holdfast.bounds import distance_bounds

    box = Box(torch.tensor([[0.0, 3.0]]), torch.ones(1, 2))
    upper, lower = distance_bounds(box, torch.zeros(1, 2))
    assert (upper.item(), lower.item()) == pytest.approx((17**0.5, 2.0))
    upper, lower = box_distance_bounds(box, Box(torch.zeros(1, 2), torch.full((1, 2), 0.5)))
    assert (upper.item(), lower.item()) == pytest.approx(((1.5**2 + 4.5**2) ** 0.5, 1.5))


def test_linear_bounds_pay_for_rounding_step_by_step():
    """The bound of an output at one point is below the exact one by at least what its layers may err."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), large(nn.Linear(4000, 2)))
    x = torch.rand(3, 1, 50, 80)
    spec = torch.tensor([[1.0, -1.0]])
    with torch.no_grad():
        bound = linear_bounds(trace(net), point(x), spec, rounding=True)
        exact = nn.functional.linear(x.flatten(1).double(), net[1].weight.double(), net[1].bias.double())
        size = x.flatten(1).double() @ net[1].weight.double().abs().T + net[1].bias.double().abs()
    owed = gamma(4000) * size.sum(1, keepdim=True)
    assert (bound <= exact @ spec.double().T - owed).all()
    assert (bound >= exact @ spec.double().T - 4 * owed).all()
    assert np.isfinite(bound.numpy()).all()


@pytest.mark.parametrize(
    "ends", [nn.Hardtanh(), nn.ReLU6(), nn.Tanh(), nn.Sigmoid(), nn.Softsign(), nn.Hardsigmoid()]
)
@pytest.mark.parametrize("intermediate", ["interval", "crown"])
def test_a_function_with_ends_does_not_hide_an_overflow(ends, intermediate):
    """Float32 inference meets infinity before the function: whatever its ends are, nothing is known."""
    first, second = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    for layer in (first, second):
        nn.init.constant_(layer.weight, 1e30)
    graph = trace(nn.Sequential(nn.Flatten(), first, second, ends))
    box = image_box(torch.full((1, 1, 1, 1), 0.5, dtype=torch.float64), 0.1, rounding=True)
    assert not interval_bounds(graph, box, rounding=True).radius.isfinite().any()
    spec = torch.ones(1, 1, dtype=torch.float64)
    assert (linear_bounds(graph, box, spec, intermediate=intermediate, rounding=True) == -torch.inf).all()


def test_limits_that_float32_cannot_hold_are_paid_for():
    """float32 clamps to 0.800000012, which is more than 0.8."""
    graph = trace(nn.Sequential(nn.Flatten(), nn.Hardtanh(-0.3, 0.8)))
    box = image_box(torch.ones((1, 1, 1, 1), dtype=torch.float64), 0.0, rounding=True)
    given = float(nn.Hardtanh(-0.3, 0.8)(torch.ones(1)))
    assert given > 0.8
    reached = -linear_bounds(graph, box, -torch.ones(1, 1, dtype=torch.float64), rounding=True)
    assert float(reached) >= given
    exact = trace(nn.Sequential(nn.Flatten(), nn.Hardtanh(-0.5, 0.75)))
    assert exact.steps[-1].operation.exact
