"""Samples of a smoothed embedder: the same however they are asked for, and of the right distribution."""

from __future__ import annotations

import sys
from itertools import pairwise

import pytest
import torch
from torch import nn

from holdfast import models, wrap
from holdfast.errors import MissingExtraError, ModelError
from holdfast.models import CallableEmbedder, build
from holdfast.models.smoothed import BLOCK, Smoothed

SPEC = (1, 8, 8)


def base(seed=0):
    torch.manual_seed(seed)
    return build("small", spec=SPEC, dim=6, unit_norm=True).eval()


def images(count=3):
    return torch.rand(count, *SPEC, generator=torch.Generator().manual_seed(1))


def samples(smoothed, image, *cuts):
    parts = [torch.cat(list(smoothed.sample(image, low, high))) for low, high in pairwise(cuts)]
    return torch.cat(parts)


def test_samples_do_not_depend_on_how_they_are_asked_for():
    image, network = images(1)[0], base()
    whole = samples(Smoothed(network, 0.2, 1, batch_size=256), image, 0, 5 * BLOCK)
    for size, cuts in ((1, (0, 5 * BLOCK)), (BLOCK, (0, 7, 50, 5 * BLOCK)), (100, (0, BLOCK, 5 * BLOCK))):
        again = samples(Smoothed(network, 0.2, 1, batch_size=size), image, *cuts)
        assert torch.allclose(again, whole, atol=1e-6)
    other = samples(Smoothed(network, 0.2, 1, seed=1), image, 0, 5 * BLOCK)
    assert not torch.allclose(other, whole, atol=1e-3)
    assert len({tuple(row.tolist()) for row in whole.round(decimals=5)}) == len(whole)


def test_the_noise_is_gaussian_and_not_clamped():
    pixels = CallableEmbedder(lambda x: x.flatten(1), SPEC)
    smoothed = Smoothed(pixels, 0.5, 1, bound=100.0)
    image = images(1)[0]
    seen = samples(smoothed, image, 0, 4000)
    assert torch.allclose(seen.mean(0), image.flatten(), atol=0.05)
    assert torch.allclose(seen.std(0), torch.full((64,), 0.5), atol=0.04)
    assert seen.min() < 0
    assert seen.max() > 1
    gram = torch.corrcoef((seen - image.flatten()).T) - torch.eye(64)
    assert gram.abs().max() < 0.1


def test_the_mean_is_the_mean_of_the_samples():
    pictures, smoothed = images(), Smoothed(base(), 0.3, 70)
    means = smoothed.embed(pictures)
    for image, mean in zip(pictures, means, strict=True):
        drawn = torch.cat(list(smoothed.sample(image, 0, 70, purpose="gallery")))
        assert torch.allclose(drawn.mean(0), mean, atol=1e-6)
    assert means.norm(dim=1).max() < 1
    eight_bit = (255 * pictures).to(torch.uint8)
    assert torch.allclose(smoothed.embed(eight_bit), smoothed.embed(eight_bit.float() / 255), atol=1e-6)


def test_what_cannot_be_smoothed_is_said():
    network = base()
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ModelError, match="above 0"):
            Smoothed(network, wrong, 10)
    with pytest.raises(ModelError, match="at least 1 sample"):
        Smoothed(network, 0.1, 0)
    long = wrap(nn.Sequential(nn.Flatten(), nn.Linear(64, 4)).eval(), SPEC)
    with pytest.raises(ModelError, match="not normalised"):
        Smoothed(long, 0.1, 10)
    with pytest.raises(ModelError, match=r"above the bound 0\.001"):
        Smoothed(long, 0.1, 10, bound=0.001).embed(images())


def test_two_smoothings_are_told_apart():
    network = base()
    prints = {
        Smoothed(network, 0.1, 10).fingerprint(),
        Smoothed(network, 0.2, 10).fingerprint(),
        Smoothed(network, 0.1, 20).fingerprint(),
        Smoothed(network, 0.1, 10, seed=1).fingerprint(),
        Smoothed(base(1), 0.1, 10).fingerprint(),
    }
    assert len(prints) == 5
    assert Smoothed(network, 0.1, 10).fingerprint() in prints


@pytest.mark.parametrize(("name", "shape"), [("efficientnet-lite0", (3, 64, 64)), ("small", (1, 28, 28))])
def test_onnxruntime_computes_the_same_function(name, shape):
    torch.manual_seed(0)
    base = models.build(name, spec=shape, unit_norm=True).eval()
    image = torch.rand(shape)
    by_torch, by_onnx = (Smoothed(base, 0.2, 40, backend=backend) for backend in ("torch", "onnx"))
    one, other = (torch.cat(list(s.sample(image, 0, 40))) for s in (by_torch, by_onnx))
    assert one.shape == other.shape == (40, base.dim)
    assert torch.allclose(one, other, atol=1e-4)
    assert by_torch.fingerprint() != by_onnx.fingerprint()
    with torch.no_grad():
        [*base.parameters()][-1].add_(1.0)
    again = torch.cat(list(by_onnx.sample(image, 0, 40)))
    assert torch.allclose(again, torch.cat(list(by_torch.sample(image, 0, 40))), atol=1e-4), (
        "new weights count"
    )
    assert not torch.allclose(again, other, atol=1e-3)


def test_backends_that_cannot_be(monkeypatch):
    base = models.CallableEmbedder(lambda images: images.flatten(1), (1, 2, 2), unit_norm=True)
    with pytest.raises(ModelError, match="embedders of ours"):
        Smoothed(base, 0.1, 4, backend="onnx")
    with pytest.raises(ModelError, match="torch or onnx, not 'tpu'"):
        Smoothed(base, 0.1, 4, backend="tpu")
    small = models.build("small", spec=(1, 28, 28), unit_norm=True)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r"holdfast\[onnx\]"):
        next(Smoothed(small, 0.1, 4, backend="onnx").sample(torch.rand(1, 28, 28), 0, 4))
