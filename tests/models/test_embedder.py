from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from holdfast.errors import ModelError
from holdfast.models import Embedder, build, evaluating, set_batch_norm_eval, wrap
from holdfast.spec import ImageSpec

GREY = ImageSpec(1, 8, 8)


class Source:
    """An image set: uint8 images read in batches."""

    def __init__(self, images: Tensor) -> None:
        self.images = images
        self.asked: list[int] = []

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, indices: Sequence[int]) -> Tensor:
        self.asked.extend(indices)
        return self.images[list(indices)]


@pytest.fixture
def small() -> Embedder:
    return build("small", spec=GREY, dim=5)


@settings(max_examples=25, deadline=None)
@given(count=st.integers(0, 20), batch_size=st.integers(1, 25), unit_norm=st.booleans())
def test_the_batch_size_does_not_change_the_vectors(count: int, batch_size: int, unit_norm: bool) -> None:
    torch.manual_seed(3)
    embedder = build("small", spec=GREY, dim=5, unit_norm=unit_norm)
    images = torch.rand(count, 1, 8, 8)
    vectors = embedder.embed(images, batch_size=batch_size)
    assert vectors.shape == (count, 5)
    assert not vectors.requires_grad
    torch.testing.assert_close(vectors, embedder.embed(images), atol=1e-6, rtol=1e-5)
    if unit_norm:
        torch.testing.assert_close(vectors.norm(dim=1), torch.ones(count))


def test_every_kind_of_input_gives_the_same_vectors(small: Embedder) -> None:
    pixels = torch.randint(0, 256, (7, 1, 8, 8), dtype=torch.uint8)
    source = Source(pixels)
    wanted = small.embed(pixels, batch_size=3)
    frozen = pixels.numpy().copy()
    frozen.flags.writeable = False
    for images in (pixels.float() / 255, pixels.numpy(), frozen, source, np.flip(pixels.numpy()[::-1], 0)):
        torch.testing.assert_close(small.embed(images, batch_size=3), wanted, atol=0, rtol=0)
    torch.testing.assert_close(small.embed(pixels.double().numpy() / 255), wanted)
    assert source.asked == list(range(7))
    assert wanted.std() > 0


def test_features_are_what_is_normalised() -> None:
    embedder = build("c2f2", spec=GREY, dim=6)
    images = torch.rand(3, 1, 8, 8)
    features = embedder.features(images)
    assert (features.norm(dim=1) - 1).abs().max() > 0.1
    torch.testing.assert_close(embedder(images), features / features.norm(dim=1, keepdim=True))


def test_pixel_normalisation_is_inside() -> None:
    network = nn.Flatten(1)
    embedder = wrap(network, (3, 2, 2), mean=(0.1, 0.2, 0.3), std=(0.5, 1.0, 2.0))
    images = torch.rand(4, 3, 2, 2)
    mean, std = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.5, 1.0, 2.0])
    wanted = (images - mean[:, None, None]) / std[:, None, None]
    torch.testing.assert_close(embedder.embed(images), wanted.flatten(1))


@pytest.mark.parametrize(
    ("images", "found"),
    [
        (torch.rand(2, 3, 8, 8), "takes images of 1x8x8, found 3x8x8 (colour images for an embedder of grey"),
        (torch.rand(2, 1, 9, 8), "found 1x9x8"),
        (torch.rand(2, 8, 8, 1), "channels come first"),
        (torch.rand(1, 8, 8), "without a batch axis"),
        (torch.rand(8, 8), "found an array of 8x8"),
        (torch.rand(2, 1, 8, 8) * 255, "not in [0, 1]"),
        (-torch.rand(2, 1, 8, 8), "not in [0, 1]"),
        (torch.tensor([0.5, 0.5, float("nan")])[:, None, None, None].expand(3, 1, 8, 8), "image 2 holds NaN"),
        (torch.full((2, 1, 8, 8), float("inf")), "image 0 has pixel values from inf to inf"),
        (torch.ones(2, 1, 8, 8, dtype=torch.int64), "not int64"),
        (np.ones((2, 1, 8, 8), dtype=np.uint16), "not uint16"),
        (np.ones((2, 1, 8, 8), dtype=object), "not object"),
        (Source(torch.zeros(2, 3, 8, 8, dtype=torch.uint8)), "found 3x8x8"),
        (Source(torch.full((2, 1, 8, 8), 2.0)), "not in [0, 1]"),
        ([[1.0]], "not list"),
        ("photo.jpg", "not str"),
    ],
)
def test_what_is_not_images_is_refused_in_one_line(small: Embedder, images: object, found: str) -> None:
    with pytest.raises(ModelError) as error:
        small.embed(images, batch_size=2)  # type: ignore[arg-type]
    assert found in str(error.value)
    assert "\n" not in str(error.value)


def test_errors_number_images_over_all_batches(small: Embedder) -> None:
    images = torch.rand(10, 1, 8, 8)
    images[7, 0, 3, 3] = 1.5
    with pytest.raises(ModelError, match="image 7 has pixel values"):
        small.embed(images, batch_size=3)


def test_a_batch_has_an_image(small: Embedder) -> None:
    with pytest.raises(ModelError, match="at least 1 image, not 0"):
        small.embed(torch.rand(2, 1, 8, 8), batch_size=0)


def test_vectors_that_are_not_finite_are_an_error(small: Embedder) -> None:
    with torch.no_grad():
        next(small.network.parameters()).fill_(float("nan"))
    with pytest.raises(ModelError, match="vector of image 0 is not finite"):
        small.embed(torch.rand(2, 1, 8, 8))


def _with_batch_norm() -> Embedder:
    return wrap(nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Dropout(), nn.Flatten(1)), GREY)


@pytest.mark.parametrize("fails", [False, True])
def test_embed_puts_every_layers_mode_back(fails: bool) -> None:
    embedder = _with_batch_norm().train()
    set_batch_norm_eval(embedder)
    before = [layer.training for layer in embedder.modules()]
    assert True in before
    assert False in before
    statistics = copy.deepcopy(embedder.network.state_dict())
    images = torch.rand(4, 1, 8, 8) * (2 if fails else 1)
    if fails:
        with pytest.raises(ModelError):
            embedder.embed(images)
    else:
        assert torch.equal(embedder.embed(images), embedder.embed(images))
    assert [layer.training for layer in embedder.modules()] == before
    for name, tensor in embedder.network.state_dict().items():
        assert torch.equal(tensor, statistics[name])


def test_evaluating_is_eval_inside() -> None:
    embedder = _with_batch_norm().train()
    with evaluating(embedder):
        assert not any(layer.training for layer in embedder.modules())
    assert all(layer.training for layer in embedder.modules())


def test_frozen_batch_norm_keeps_statistics_and_learns_scale() -> None:
    embedder = _with_batch_norm()
    norm = embedder.network[1]  # type: ignore[index]
    embedder.freeze_batch_norm = True
    embedder.train()
    assert embedder.training
    before = norm.running_mean.clone()
    embedder(torch.rand(4, 1, 8, 8)).sum().backward()
    assert torch.equal(norm.running_mean, before)
    assert norm.weight.grad.abs().sum() > 0
    embedder.freeze_batch_norm = False
    embedder.train()
    embedder(torch.rand(4, 1, 8, 8))
    assert not torch.equal(norm.running_mean, before)


def test_gradients_reach_the_images(small: Embedder) -> None:
    images = torch.rand(2, 1, 8, 8, requires_grad=True)
    small(images).sum().backward()
    assert images.grad is not None
    assert images.grad.abs().sum() > 0


def test_the_fingerprint_tells_embedders_apart() -> None:
    def make(**changes: object) -> Embedder:
        torch.manual_seed(1)
        arguments: dict[str, object] = {"spec": GREY, "dim": 5} | changes
        return build("small", **arguments)  # type: ignore[arg-type]

    base = make()
    assert make().fingerprint() == base.fingerprint()
    assert base.eval().double().float().fingerprint() == base.fingerprint()
    flipped = make()
    with torch.no_grad():
        next(flipped.network.parameters()).view(-1)[0] += 1e-6
    others = [
        flipped,
        make().double(),
        make(dim=6),
        make(unit_norm=True),
        make(mean=0.5),
        make(mean=0.5, std=0.5),
        make(spec=ImageSpec(1, 8, 8, "squash")),
    ]
    assert len({embedder.fingerprint() for embedder in [base, *others]}) == len(others) + 1


def test_the_fingerprint_counts_buffers_outside_the_state_dict() -> None:
    def make(scale: Tensor) -> str:
        network = nn.Flatten(1)
        network.register_buffer("scale", scale, persistent=False)
        return wrap(network, GREY).fingerprint()

    assert make(torch.tensor(1.0)) == make(torch.tensor(1.0))
    # The same bytes in other shapes and types are other tensors.
    zeros = [torch.zeros(6), torch.zeros(2, 3), torch.zeros(3, 2), torch.zeros(6, dtype=torch.int32)]
    assert len({make(tensor) for tensor in [torch.tensor(1.0), torch.tensor(2.0), *zeros]}) == 6


def test_the_fingerprint_follows_an_optimiser_that_leaves_no_trace() -> None:
    embedder = build("small", spec=(1, 28, 28), dim=4).eval()
    seen = [embedder.fingerprint()]
    optimiser = torch.optim.Adam(embedder.parameters(), fused=True)
    for _ in range(2):
        embedder.train()
        embedder(torch.rand(2, 1, 28, 28)).sum().backward()
        optimiser.step()
        seen += [embedder.fingerprint(), embedder.eval().fingerprint()]
    assert seen[1] == seen[2]
    assert seen[3] == seen[4]
    assert len(set(seen)) == 3
