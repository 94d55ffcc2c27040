"""No image of a box takes a linear function of the output below its bound; small cases are exact."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import KINDS, attempts, make
from torch import nn

from holdfast.bounds import Box, image_box, interval_bounds, linear, linear_bounds, linear_box, trace
from holdfast.errors import ConfigError, ModelError
from holdfast.models import build

MODES = st.sampled_from(["interval", "crown"])


@settings(max_examples=80, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 10_000),
    eps=st.sampled_from([0.0, 1e-4, 0.03, 0.3]),
    clip=st.booleans(),
    rounding=st.booleans(),
    intermediate=MODES,
)
def test_no_image_goes_below_the_bound(kind, seed, eps, clip, rounding, intermediate):
    net, shape = make(kind, seed)
    images = torch.rand(2, *shape).round(decimals=1)
    with torch.no_grad():
        box = image_box(images, eps, clip=clip, rounding=rounding)
        spec = torch.randn(3, net(images).shape[1])
        bound = linear_bounds(trace(net), box, spec, intermediate=intermediate, rounding=rounding)
        held = linear_box(trace(net), box, intermediate=intermediate, rounding=rounding)
    assert bound.shape == (2, 3)
    assert bound.isfinite().all()
    for towards in spec:
        for x in attempts(net, images, eps, clip, seed, towards):
            with torch.no_grad():
                out = net(x).double()
            allowed = 0.0 if rounding else 1e-5 * (1 + out.abs().max().item())
            assert (out @ spec.double().T >= bound - allowed).all()
            assert ((out - held.centre).abs() <= held.radius + allowed).all()


@pytest.mark.parametrize(("name", "shape"), [("cnn7-narrow", (1, 12, 12)), ("vgg11-bn", (3, 32, 32))])
def test_registered_networks_with_batch_norm_are_bounded(name, shape):
    """After some training steps' statistics, against random images, corners and gradients."""
    torch.manual_seed(0)
    net = build(name, spec=shape, dim=3)
    for _ in range(5):
        net(torch.rand(16, *shape))
    net.eval()
    images, spec = torch.rand(1, *shape), torch.eye(3)
    eps = 0.003
    box = image_box(images, eps, rounding=True)
    with torch.no_grad():
        graph = trace(net)
        bound = linear_bounds(graph, box, spec, rounding=True)
        by_intervals, held = interval_bounds(graph, box, rounding=True), linear_box(graph, box, rounding=True)
    assert (held.radius <= by_intervals.radius * (1 + 1e-6)).all()
    assert held.radius.isfinite().all()
    for towards in spec:
        for x in attempts(net, images, eps, True, 0, towards):
            with torch.no_grad():
                out = net(x).double()
            assert (out @ spec.double().T >= bound).all()
            assert ((out - held.centre).abs() <= held.radius).all()


@pytest.mark.parametrize("kind", KINDS)
def test_rounding_covers_float32_and_stays_small(kind):
    """At eps = 0 the bound lies below float32's output and below the exact one, and hardly lower."""
    net, shape = make(kind, 3)
    images = torch.rand(8, *shape)
    with torch.no_grad():
        exact = copy.deepcopy(net).double()(images.double())
        spec = torch.randn(20, exact.shape[1], dtype=torch.float64)
        bound = linear_bounds(trace(net), image_box(images, 0.0, rounding=True), spec, rounding=True)
        for out in (exact, net(images).double()):
            assert (out @ spec.T >= bound).all()
        assert ((exact @ spec.T - bound) < 5e-3 * (1 + (exact.abs() @ spec.abs().T))).all()


def test_the_allowance_for_rounding_is_needed():
    """Weights that cancel: without the allowance float32 falls below the bound."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(400, 3), nn.ReLU(), nn.Linear(3, 1)).eval()
    with torch.no_grad():
        net[1].weight.mul_(1e4)
        images = torch.rand(50, 1, 20, 20)
        box, spec = image_box(images, 0.0), torch.ones(1, 1)
        double = Box(box.centre.double(), box.radius.double())
        bare = linear_bounds(trace(net), double, spec)
        safe = linear_bounds(trace(net), image_box(images, 0.0, rounding=True), spec, rounding=True)
        out = net(images).double()
        assert (out < bare).any()
        assert (out >= safe).all()


def test_a_linear_network_is_bounded_exactly_and_better_than_by_intervals():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(9, 7), nn.Linear(7, 2)).double()
    images, spec = torch.full((1, 1, 3, 3), 0.5, dtype=torch.float64), torch.tensor([[1.0, -1.0]]).double()
    bound = linear_bounds(trace(net), image_box(images, 0.25), spec)
    slope = spec @ net[2].weight @ net[1].weight
    worst = images - 0.25 * slope.sign().view(1, 1, 3, 3)
    torch.testing.assert_close(bound, net(worst) @ spec.T)
    box = interval_bounds(trace(net), image_box(images, 0.25))
    assert (bound > box.lower[:, :1] - box.upper[:, 1:]).all()


def test_activations_by_hand():
    """On [−1, 3]: above relu the chord 3/4(x + 1), below it x; on [−3, 1] below it 0."""
    low, high = (
        Box(torch.tensor([[1.0]]), torch.tensor([[2.0]])),
        Box(torch.tensor([[-1.0]]), torch.tensor([[2.0]])),
    )

    class Skip(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(x) + x * self.weight

    def bound(box, weight, spec, inner):
        module = Skip(inner)
        module.weight = weight
        return linear_bounds(trace(module), box, torch.tensor([[spec]])).item()

    # spec·(relu(x) + w·x) ≥ …
    assert bound(low, 0.0, 1.0, nn.ReLU()) == pytest.approx(-1), "x at −1"
    assert bound(low, -1.0, 1.0, nn.ReLU()) == pytest.approx(0), "x − x"
    assert bound(low, -0.75, -1.0, nn.ReLU()) == pytest.approx(-0.75), "−3/4(x + 1) + 3/4 x"
    assert bound(high, 0.0, 1.0, nn.ReLU()) == pytest.approx(0)
    assert bound(high, 1.0, 1.0, nn.ReLU()) == pytest.approx(-3)
    # Leaky with 1/2: above, from (−1, −½) to (3, 3), slope 7/8; below, x or x/2.
    assert bound(low, -0.875, -1.0, nn.LeakyReLU(0.5)) == pytest.approx(0.5 - 0.875)
    assert bound(low, -1.0, 1.0, nn.LeakyReLU(0.5)) == pytest.approx(0)
    assert bound(high, -0.5, 1.0, nn.LeakyReLU(0.5)) == pytest.approx(0)


def test_max_pooling_is_at_least_the_candidate_with_the_largest_lower_bound():
    """x ∈ [0, 3] and y ∈ [1, 2]: max − y ≥ 0, where intervals say −1; and −max ≥ −3."""

    class Less(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("second", torch.tensor([[[0.0, -1.0]]]))
            self.total = nn.AvgPool2d((1, 2), divisor_override=1)

        def forward(self, x):
            highest = nn.functional.max_pool2d(x, (1, 2))
            return torch.flatten(highest + self.total(x * self.second), 1)

    box = Box(torch.tensor([[[[1.5, 1.5]]]]), torch.tensor([[[[1.5, 0.5]]]]))
    pool, net = nn.Sequential(nn.MaxPool2d((1, 2)), nn.Flatten()), Less()
    assert linear_bounds(trace(pool), box, torch.tensor([[1.0], [-1.0]])).tolist() == [[1.0, -3.0]]
    assert linear_bounds(trace(net), box, torch.tensor([[1.0]])).item() == pytest.approx(0)
    assert interval_bounds(trace(net), box).lower.item() == pytest.approx(-1)


@settings(max_examples=30, deadline=None)
@given(kind=st.sampled_from(KINDS), seed=st.integers(0, 999), intermediate=MODES)
def test_the_box_is_never_wider_than_by_intervals(kind, seed, intermediate):
    net, shape = make(kind, seed)
    images = torch.rand(2, *shape)
    with torch.no_grad():
        box = image_box(images.double(), 0.05)
        ours, theirs = (
            linear_box(trace(net), box, intermediate=intermediate),
            interval_bounds(trace(net), box),
        )
    assert (ours.radius <= theirs.radius + 1e-9).all()
    assert ((ours.centre - theirs.centre).abs() <= theirs.radius + 1e-9).all()


def test_better_boxes_before_activations_pay():
    net, shape = make("conv", 5)
    box = image_box(torch.rand(4, *shape).double(), 0.05)
    with torch.no_grad():
        widths = {
            mode: linear_box(trace(net), box, intermediate=mode).radius.sum()
            for mode in ("interval", "crown")
        }
        widths["none"] = interval_bounds(trace(net), box).radius.sum()
    assert widths["crown"] < 0.99 * widths["interval"] < 0.99 * 0.7 * widths["none"]


@settings(max_examples=12, deadline=None)
@given(kind=st.sampled_from(KINDS), seed=st.integers(0, 999), floats=st.sampled_from([300, 3000]))
def test_layout_and_chunks_change_nothing(kind, seed, floats):
    net, shape = make(kind, seed)
    with torch.no_grad():
        images = torch.rand(3, *shape).double()
        box, graph = image_box(images, 0.05), trace(net)
        spec = torch.randn(3, 5, net(images.float()).shape[1], dtype=torch.float64)
        whole = linear_bounds(graph, box, spec)
        # Images of one block are tightened where any of them is open: one image at a time does not depend on blocks.
        one = box.take(slice(0, 1))
        held = linear_box(graph, one, intermediate="crown")
        for i in range(3):
            torch.testing.assert_close(linear_bounds(graph, box.take(slice(i, i + 1)), spec[i])[0], whole[i])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(linear, "FLOATS", floats)
            torch.testing.assert_close(linear_bounds(graph, box, spec), whole)
            torch.testing.assert_close(linear_box(graph, one, intermediate="crown").radius, held.radius)


@pytest.mark.parametrize("kind", ["conv", "norm", "residual", "pool"])
def test_gradients_are_those_of_the_bound(kind):
    net, shape = make(kind, 1)
    net.double()
    images = torch.rand(1, *shape).double()
    spec = torch.randn(2, net(images).shape[1]).double()
    graph = trace(net)
    weights = [p for p in net.parameters() if p.ndim > 1]
    radius = torch.full_like(images, 0.02).requires_grad_(True)
    centre = images.requires_grad_(True)

    def value() -> torch.Tensor:
        return linear_bounds(graph, Box(centre, radius), spec).sum()

    inputs = [centre, radius, *weights]
    gradients = torch.autograd.grad(value(), inputs)
    g = torch.Generator().manual_seed(0)
    for tensor, gradient in zip(inputs, gradients, strict=True):
        direction = torch.randn(tensor.shape, generator=g, dtype=torch.float64)
        with torch.no_grad():
            tensor.add_(direction, alpha=1e-6)
            high = value()
            tensor.sub_(direction, alpha=2e-6)
            low = value()
            tensor.add_(direction, alpha=1e-6)
        want = (gradient * direction).sum()
        assert abs((high - low) / 2e-6 - want) < 1e-4 * (1 + want.abs())


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("kind", ["deep", "pool", "residual"])
def test_what_is_not_finite_is_no_bound(kind, bad):
    net, shape = make(kind, 0)
    images = image_box(torch.rand(2, *shape), 0.1)
    images.radius[1, 0, 0, 0] = bad
    with torch.no_grad():
        spec = torch.ones(2, net(images.centre).shape[1])
        bound = linear_bounds(trace(net), images, spec)
        assert bound[0].isfinite().all()
        assert (bound[1] == -torch.inf).all()
        next(net.parameters()).view(-1)[0] = bad
        for intermediate in ("interval", "crown"):
            bound = linear_bounds(trace(net), images, spec, rounding=True, intermediate=intermediate)
            assert (bound == -torch.inf).all()


def test_bad_input():
    net, shape = make("linear", 0)
    with pytest.raises(ConfigError, match="'interval' or 'crown'"):
        linear_bounds(trace(net), image_box(torch.rand(1, *shape), 0.1), torch.ones(1, 6), intermediate="ibp")


def test_a_sum_that_would_mix_the_images_is_refused():
    """With as many axes missing, torch would add the vectors of other images."""

    class Mixing(nn.Module):
        def forward(self, x):
            return torch.flatten(x + torch.flatten(nn.functional.adaptive_avg_pool2d(x, 1), 1), 1)

    with pytest.raises(ModelError, match="branches with as many axes, not 3 and 1"):
        linear_box(trace(Mixing()), image_box(torch.rand(2, 2, 2, 2), 0.1))


def test_what_torch_refuses_is_one_line_that_names_the_layer():
    net = nn.Sequential(nn.Flatten(), nn.Linear(9, 4))
    with pytest.raises(ModelError, match=r"^bounds cannot pass '_?1': ") as error:
        interval_bounds(trace(net), image_box(torch.rand(2, 2, 2, 2), 0.1))
    assert "\n" not in str(error.value)


def test_little_work_tightens_the_widest_and_stays_sound(monkeypatch):
    """Whatever is tightened, the bound lies between that of intervals and that of linear bounds everywhere."""
    from holdfast.bounds import linear

    torch.manual_seed(1)
    layers = [nn.Flatten(), nn.Linear(16, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 5)]
    net = nn.Sequential(*layers).eval()
    images = torch.rand(2, 1, 4, 4)
    box, spec = image_box(images.double(), 0.05, rounding=True), torch.randn(7, 5).double()
    graph, size = trace(net), 16 + 16 + 40 + 40 + 40
    found = {}
    with torch.no_grad():
        for name, work in (("none", 0), ("some", 2 * size * 12), ("all", linear.WORK)):
            monkeypatch.setattr(linear, "WORK", work)
            found[name] = linear_bounds(graph, box, spec, intermediate="crown", rounding=True)
        intervals = linear_bounds(graph, box, spec, rounding=True)
        least = torch.full((2, 7), torch.inf).double()
        for _ in range(300):
            moved = (images + 0.05 * (2 * torch.rand(2, 1, 4, 4) - 1).sign()).clamp(0, 1)
            least = torch.minimum(least, net(moved).double() @ spec.T)
    assert torch.equal(found["none"], intervals)
    assert found["none"].mean() < found["some"].mean() < found["all"].mean()
    assert (found["all"] <= least).all()
    assert (found["some"] <= least).all()
