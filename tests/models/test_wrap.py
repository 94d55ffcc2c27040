from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from holdfast.errors import ConfigError, ModelError
from holdfast.models import build, wrap
from holdfast.spec import ImageSpec


class Calls(nn.Module):
    """A module that does what it is told."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, images: Tensor) -> Any:
        return self.function(images)


@settings(max_examples=25, deadline=None)
@given(
    channels=st.sampled_from([1, 3]),
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    dim=st.integers(1, 6),
    ones=st.integers(0, 2),
)
def test_any_shape_is_wrapped(channels: int, height: int, width: int, dim: int, ones: int) -> None:
    linear = nn.Linear(channels * height * width, dim)
    module = nn.Sequential(nn.Flatten(1), linear, nn.Unflatten(1, (dim, *([1] * ones))))
    embedder = wrap(module, (channels, height, width))
    images = torch.rand(3, channels, height, width)
    assert embedder.dim == dim
    assert embedder.spec == ImageSpec(channels, height, width)
    torch.testing.assert_close(embedder.embed(images), linear(images.flatten(1)).detach())


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (lambda x: (x.flatten(1), x), "found a tuple"),
        (lambda x: {"out": x}, "found a dict"),
        (lambda x: None, "found a NoneType"),
        (lambda x: x, "found 2x3x4x4; add pooling"),
        (lambda x: x.flatten(1).t(), "found 48x2"),
        (lambda x: x.flatten(1).t()[None], "found 1x48x2"),
        (lambda x: x.sum(), "found a single number"),
        (lambda x: x.sum((1, 2, 3)), "found 2;"),
        (lambda x: x.flatten(1)[:, :0], "found 2x0"),
        (lambda x: x.flatten(1) > 0, "of floats, found bool"),
        (lambda x: x.flatten(1) / 0, "NaN or infinity"),
        (lambda x: nn.Linear(5, 2)(x.flatten(1)), "Calls cannot embed images of 3x4x4: mat1 and mat2"),
        (lambda x: 1 / 0, "cannot embed images of 3x4x4: division by zero"),
    ],
)
def test_what_does_not_embed_is_refused(function: Callable[[Tensor], Any], found: str) -> None:
    with pytest.raises(ModelError) as error:
        wrap(Calls(function), (3, 4, 4))
    assert found in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_no_module_is_refused() -> None:
    for thing in (7, nn.Flatten, "net"):
        with pytest.raises(ModelError, match=r"torch\.nn\.Module or a callable .* can be wrapped, not"):
            wrap(thing, (3, 4, 4))  # type: ignore[call-overload]
    with pytest.raises(ModelError, match="embedder already"):
        wrap(build("small", spec=(1, 8, 8)), (1, 8, 8))


@pytest.mark.parametrize(
    ("mean", "std", "found"),
    [
        ((0.1, 0.2), None, "pixel mean has 2 values for images with 3 channels"),
        (None, (1.0, 0.0, 1.0), "std above 0"),
        (float("nan"), None, "mean is finite"),
    ],
)
def test_impossible_pixel_normalisation_is_refused(mean: Any, std: Any, found: str) -> None:
    with pytest.raises(ModelError, match=found):
        wrap(nn.Flatten(1), (3, 4, 4), mean=mean, std=std)


def test_impossible_specs_are_refused() -> None:
    with pytest.raises(ConfigError, match="not 2"):
        wrap(nn.Flatten(1), (2, 4, 4))
    with pytest.raises(ModelError, match=r"not \(4, 4\)"):
        wrap(nn.Flatten(1), (4, 4))  # type: ignore[arg-type]


def test_wrapping_leaves_the_module_and_the_random_state_alone() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.Flatten(1))
    module[1].eval()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    modes = [layer.training for layer in module.modules()]
    state = torch.get_rng_state()
    embedder = wrap(module, (3, 8, 8))
    assert torch.equal(torch.get_rng_state(), state)
    assert [layer.training for layer in module.modules()] == modes
    assert embedder.network is module
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_lazy_and_double_modules_are_wrapped() -> None:
    lazy = wrap(nn.Sequential(nn.Flatten(1), nn.LazyLinear(3)), (1, 4, 4))
    assert lazy.embed(torch.rand(2, 1, 4, 4)).shape == (2, 3)
    double = wrap(nn.Sequential(nn.Flatten(1), nn.Linear(16, 3)).double(), (1, 4, 4), mean=0.5)
    assert double.embed(torch.zeros(2, 1, 4, 4, dtype=torch.uint8)).dtype == torch.float64


def test_other_layers_give_another_fingerprint() -> None:
    prints = {
        wrap(nn.Sequential(nn.Flatten(1), act), (1, 4, 4)).fingerprint() for act in (nn.ReLU(), nn.Tanh())
    }
    assert len(prints) == 2
