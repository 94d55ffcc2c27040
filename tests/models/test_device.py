"""Where a model computes: names of devices, what is not there, and memory that does not hold a batch."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from holdfast.errors import ConfigError, ModelError
from holdfast.models import CallableEmbedder, build, device_of, placed, wrap
from holdfast.training import parse, train

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")


def test_names_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_of("cpu") == torch.device("cpu")
    for name in ("gpu", "cpu:0", "cuda:x", "auto:1", "mps:0", ""):
        with pytest.raises(ModelError, match="a device is auto, cpu, cuda, cuda:N or mps"):
            device_of(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert device_of("auto") == torch.device("cpu")
    for name in ("cuda", "cuda:1"):
        with pytest.raises(ModelError, match=f"there is no {name} here: torch sees 0 CUDA devices"):
            device_of(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device_of("auto") == torch.device("cuda")
    assert device_of("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(ModelError, match="there is no cuda:2 here: torch sees 2"):
        device_of("cuda:2")
    black = CallableEmbedder(lambda images: images.flatten(1), (3, 4, 4))
    assert placed(black, "auto") is black
    with pytest.raises(ModelError, match="cannot be moved"):
        placed(black, "cuda")


class Small(nn.Module):
    """Has no memory for more than so many images."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 10**6
        self.sizes: list[int] = []

    def forward(self, images: Tensor) -> Tensor:
        self.sizes.append(len(images))
        if len(images) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return images.flatten(1)


def test_batches_are_halved_where_memory_ends(caplog: pytest.LogCaptureFixture) -> None:
    module = Small()
    embedder = wrap(module, size=2)
    module.most, module.sizes = 3, []
    images = torch.rand(21, 3, 2, 2)
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        vectors = embedder.embed(images, batch_size=12)
    assert torch.equal(vectors, images.flatten(1))
    assert module.sizes == [12, 6, *[3] * 7]
    assert [record.message for record in caplog.records] == [
        f"out of memory on the device: going on with batches of {size}" for size in (6, 3)
    ]
    module.most = 0
    with pytest.raises(ModelError, match="does not hold a single image's pass"):
        embedder.embed(images)


def config(**train_table: Any) -> Any:
    return parse(
        {
            "data": {"name": "fashion-mnist-mini", "validation": 0},
            "model": {"name": "small"},
            "train": {"steps": 2, "batch": 8, **train_table},
        }
    )


def test_training_asks_for_a_device_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ModelError, match="there is no cuda here"):
        train(config(device="cuda"), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"train\.device"):
        config(device="tpu")
    assert not (tmp_path / "run").exists()


@GPU
def test_a_gallery_is_embedded_on_a_gpu_as_on_the_processor() -> None:
    torch.manual_seed(0)
    embedder = build("small", spec=(1, 28, 28)).eval()
    images = torch.rand(40, 1, 28, 28)
    before, wanted = embedder.fingerprint(), embedder.embed(images)
    placed(embedder, "cuda")
    torch.testing.assert_close(embedder.embed(images), wanted, atol=1e-4, rtol=1e-4)
    assert embedder.fingerprint() == before


@GPU
@pytest.mark.parametrize("defence", ["triplet", "act", "ca-tride"])
def test_training_on_a_gpu_repeats_itself(tmp_path: Path, defence: str) -> None:
    runs = []
    for name in ("one", "two"):
        settings = config(device="cuda").model_dump() | {"defence": {"name": defence}}
        runs.append(train(parse(settings), tmp_path / name))
    for one, two in zip(*(run.embedder.parameters() for run in runs), strict=True):
        assert torch.equal(one, two)
