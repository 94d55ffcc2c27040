"""A fingerprint follows the function: every setting, constant and weight that changes vectors changes it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast.errors import GalleryError
from holdfast.gallery import Gallery
from holdfast.gallery.indexing import embedder_info
from holdfast.models import Embedder, wrap
from holdfast.models.fingerprint import is_current
from holdfast.spec import ImageSpec

SPEC = ImageSpec(3, 12, 12, resample="bicubic")


def layers(**changed: nn.Module) -> Embedder:
    """A network of known layers; those named are put in the place of the usual ones, with the usual weights."""
    torch.manual_seed(0)
    usual = {
        "conv": nn.Conv2d(3, 4, 3, padding=1),
        "activation": nn.LeakyReLU(0.01),
        "pool": nn.AvgPool2d(4, 4),
        "flatten": nn.Flatten(),
        "head": nn.LazyLinear(5),
    }
    network = nn.Sequential()
    for name, layer in usual.items():
        new = changed.get(name, layer)
        if isinstance(layer, nn.Conv2d):
            new.load_state_dict(layer.state_dict())
        network.add_module(name, new)
    torch.manual_seed(1)
    network(torch.zeros(1, *SPEC.shape))
    return wrap(network, SPEC).eval()


class Constant(nn.Module):
    """Computes with numbers that are neither weights nor settings of a layer."""

    def __init__(self, scale: float, shift: Tensor, start: int = 0, norm: float = 1e-12) -> None:
        super().__init__()
        self.scale, self.shift, self.start, self.norm = scale, shift, start, norm
        torch.manual_seed(0)
        self.head = nn.Linear(3 * 12 * (12 - start), 5)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.head((self.scale * images[..., self.start :] + self.shift).flatten(1))
        return functional.normalize(found, eps=self.norm)


class Branching(Constant):
    """What torch.fx cannot trace."""

    def forward(self, images: Tensor) -> Tensor:
        return -super().forward(images) if float(images.sum()) < 0 else super().forward(images)


def constant(
    kind: type[Constant] = Constant, *, scale: float = 2.0, shift: float = 0.5, norm: float = 1e-12
) -> Embedder:
    return wrap(kind(scale, torch.full((12,), shift), norm=norm), SPEC).eval()


@pytest.mark.parametrize(
    "changed",
    [
        {"activation": nn.LeakyReLU(0.3)},
        {"conv": nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect")},
        {"conv": nn.Conv2d(3, 4, 3, padding=2, dilation=2)},
        {"pool": nn.AvgPool2d(3, 4)},
        {"pool": nn.AvgPool2d(4, 4, divisor_override=3)},
    ],
    ids=str,
)
def test_a_setting_alone_gives_another_fingerprint(changed: dict[str, nn.Module]) -> None:
    one, other = layers(), layers(**changed)
    assert one.fingerprints()[1] == other.fingerprints()[1], "the rule of before does not see it"
    assert one.fingerprint() != other.fingerprint()
    assert is_current(one.fingerprint())
    assert not is_current(one.fingerprints()[1])


@pytest.mark.parametrize("kind", [Constant, Branching])
@pytest.mark.parametrize("changed", [{"scale": 2.5}, {"shift": 0.25}], ids=str)
def test_a_constant_gives_another_fingerprint(kind: type[Constant], changed: dict[str, float]) -> None:
    assert constant(kind).fingerprint() == constant(kind).fingerprint()
    assert constant(kind).fingerprint() != constant(kind, **changed).fingerprint()


def test_a_constant_too_small_to_see_is_traced() -> None:
    assert constant(norm=1e-12).fingerprint() != constant(norm=1e-9).fingerprint()


def test_a_setting_changed_in_place_is_noticed() -> None:
    embedder = layers()
    before = embedder.fingerprint()
    activation = next(part for part in embedder.modules() if isinstance(part, nn.LeakyReLU))
    activation.negative_slope = 0.3
    assert embedder.fingerprint() != before
    assert embedder.fingerprint() == layers(activation=nn.LeakyReLU(0.3)).fingerprint()


@pytest.mark.parametrize(
    "write",
    [
        lambda weight: weight.data.mul_(2),
        lambda weight: weight.data.view(-1).__setitem__(0, 3.0),
        lambda weight: weight.detach().numpy().__imul__(2),
    ],
)
def test_weights_written_past_torch_change_it(write: Callable[[Tensor], object]) -> None:
    embedder = layers()
    before = embedder.fingerprint()
    write(next(embedder.parameters()))
    assert embedder.fingerprint() != before


def test_training_mode_copies_and_devices_do_not_matter() -> None:
    embedder = layers()
    before = embedder.fingerprint()
    assert copy.deepcopy(embedder).train().fingerprint() == before


def test_a_gallery_of_a_network_with_another_slope_is_refused(tmp_path: Path) -> None:
    one, other = layers(), layers(activation=nn.LeakyReLU(0.3))
    vectors = one.embed(torch.rand(2, *SPEC.shape)).numpy()
    with Gallery.create(tmp_path / "g.gallery", dim=one.dim, embedder=embedder_info(one)) as gallery:
        gallery.add(["a", "b"], vectors)
        gallery.check_embedder(embedder_info(one))
        with pytest.raises(GalleryError, match="was made by embedder"):
            gallery.check_embedder(embedder_info(other))
