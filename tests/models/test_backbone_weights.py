from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

from holdfast.errors import CheckpointError
from holdfast.models import build


def as_published(name: str) -> dict[str, Tensor]:
    """A backbone's tensors as torchvision publishes them: with a classifier, without counts of batches."""
    torch.manual_seed(99)
    state = build(name, spec=(3, 32, 32), head="none").network.state_dict()
    tensors = {key: torch.rand_like(value) for key, value in state.items() if value.is_floating_point()}
    if name == "vgg11":
        return tensors | {"classifier.0.weight": torch.rand(3, 4), "classifier.6.bias": torch.rand(9)}
    return tensors | {"fc.weight": torch.rand(1000, 512), "fc.bias": torch.rand(1000)}


@pytest.mark.parametrize("name", ["resnet18", "vgg11"])
def test_published_weights_load_and_the_head_stays_ours(name: str, tmp_path: Path) -> None:
    published = as_published(name)
    safetensors.torch.save_file(published, tmp_path / "w.safetensors")
    torch.manual_seed(5)
    plain = build(name, spec=(3, 32, 32), dim=6)
    after = torch.get_rng_state()
    torch.manual_seed(5)
    loaded = build(name, spec=(3, 32, 32), dim=6, weights=tmp_path / "w.safetensors")
    assert torch.equal(torch.get_rng_state(), after)
    head = "classifier." if name == "vgg11" else "fc."
    state, first = loaded.network.state_dict(), plain.network.state_dict()
    for key, tensor in state.items():
        if key.startswith(head):
            assert torch.equal(tensor, first[key])
        elif not key.endswith("num_batches_tracked"):
            assert torch.equal(tensor, published[key])


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    def attempt(tensors: dict[str, Tensor]) -> str:
        safetensors.torch.save_file(tensors, tmp_path / "w.safetensors")
        with pytest.raises(CheckpointError) as error:
            build("resnet18", spec=(3, 32, 32), weights=tmp_path / "w.safetensors")
        return str(error.value)

    good = as_published("resnet18")
    lacking = {key: value for key, value in good.items() if not key.startswith("layer4")}
    assert "it lacks layer4.0.conv1.weight, layer4.0.bn1.weight, layer4.0.bn1.bias and" in attempt(lacking)
    assert "it has unknown extra.weight" in attempt(good | {"extra.weight": torch.rand(2)})
    grey = good | {"conv1.weight": torch.rand(64, 1, 7, 7)}
    assert "conv1.weight is 64x1x7x7, not 64x3x7x7" in attempt(grey)


@pytest.mark.parametrize("modern", [True, False])
@pytest.mark.parametrize("name", ["w.pth", "w.safetensors"])
def test_pickles_are_refused_and_the_advice_works(
    name: str, modern: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save(as_published("resnet18"), tmp_path / name, _use_new_zipfile_serialization=modern)
    with pytest.raises(CheckpointError) as error:
        build("resnet18", spec=(3, 32, 32), weights=tmp_path / name)
    assert "is a pickle, which can run code" in str(error.value)
    if name == "w.pth":
        monkeypatch.chdir(tmp_path)
        advice = str(error.value).split("convert it once: ")[1]
        exec(advice, {})
        build("resnet18", spec=(3, 32, 32), weights="w.safetensors")


@pytest.mark.parametrize(
    ("content", "found"),
    [(b"", "no whole safetensors file"), (b"\x00" * 64, "no whole safetensors file"), (None, "is missing")],
)
def test_other_files_are_refused(content: bytes | None, found: str, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CheckpointError, match=found):
        build("small", spec=(1, 28, 28), weights=path)


def test_a_folder_is_no_file_of_weights(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="could not read"):
        build("small", spec=(1, 28, 28), weights=tmp_path)
