"""A fingerprint follows the function: every setting, constant and weight that changes vectors changes it."""

from __future__ import annotations

import copy
import threading
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


class Rolled(nn.Module):
    """A parametrisation with a setting of its own."""

    def __init__(self, places: int) -> None:
        super().__init__()
        self.places = places

    def forward(self, weight: Tensor) -> Tensor:
        return weight.roll(self.places, 1)


def rolled(places: int) -> Embedder:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(432, 5))
    torch.nn.utils.parametrize.register_parametrization(network[1], "weight", Rolled(places))
    return wrap(network, SPEC).eval()


def own_forward(scale: float) -> Embedder:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(432, 5))
    layer = network[1]
    layer.forward = lambda images: scale * functional.linear(images, layer.weight) ** 2  # type: ignore[method-assign]
    return wrap(network, SPEC).eval()


def attention(heads: int) -> Embedder:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Flatten(2), nn.TransformerEncoderLayer(144, heads, 8, batch_first=True), nn.Flatten()
    )
    return wrap(network, SPEC).eval()


def scripted(slope: float) -> Embedder:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.LeakyReLU(slope), nn.Linear(432, 5))
    return wrap(torch.jit.trace(network.eval(), torch.zeros(1, 3, 12, 12)), SPEC).eval()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "one", "other"),
    [(rolled, 0, 7), (own_forward, 1, -3), (attention, 2, 4), (scripted, 0.1, 0.4)],
)
def test_what_no_trace_shows_gives_another_fingerprint(
    make: Callable[[float], Embedder], one: float, other: float
) -> None:
    assert make(one).fingerprint() == make(one).fingerprint()
    assert make(one).fingerprint() != make(other).fingerprint()


def test_attributes_changed_after_the_first_fingerprint_are_noticed() -> None:
    for kind in (Constant, Branching):
        embedder = constant(kind)
        before = embedder.fingerprint()
        embedder.network.scale = 5.0  # type: ignore[assignment]
        assert embedder.fingerprint() != before
    before = embedder.fingerprint()
    embedder.unit_norm = True
    assert embedder.fingerprint() != before


def test_another_layout_of_memory_is_the_same_function() -> None:
    """Sums in another order differ in their last places, which must not count where a network is only seen."""
    same = 0
    for seed in range(6):
        torch.manual_seed(seed)

        class Seen(nn.Sequential):
            def forward(self, images: Tensor) -> Tensor:
                return super().forward(images) if float(images.sum()) >= 0 else images.flatten(1)

        network = Seen(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1600, 512))
        before = wrap(network, SPEC).fingerprint()
        turned = wrap(network.to(memory_format=torch.channels_last), SPEC)
        same += turned.fingerprint() == before
    assert same == 6


def test_threads_that_compute_and_threads_that_trace_do_not_meet() -> None:
    embedder, other = constant(), layers()
    images = torch.rand(4, 3, 12, 12)
    expected, print_ = embedder.embed(images), embedder.fingerprint()
    wrong: list[object] = []

    def compute() -> None:
        for _ in range(60):
            if not torch.equal(embedder.embed(images), expected):
                wrong.append("vectors")

    def trace_again(one: Embedder) -> None:
        for _ in range(20):
            copied = copy.deepcopy(one)
            found = copied.fingerprint()
            if one is embedder and found != print_:
                wrong.append(found)

    def noted(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except Exception as error:
                wrong.append(error)

        return run

    works = [compute, compute, lambda: trace_again(embedder), lambda: trace_again(other)]
    threads = [threading.Thread(target=noted(work)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert wrong == []
