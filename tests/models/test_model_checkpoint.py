from __future__ import annotations

import json
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from holdfast.errors import CheckpointError, StorageError
from holdfast.models import MODELS, Embedder, build, checkpoint, load, wrap

Save = Callable[..., Path]


def refused(path: Path, found: str, **arguments: Any) -> None:
    with pytest.raises(CheckpointError) as error:
        load(path, **arguments)
    assert re.search(found, str(error.value)), str(error.value)
    assert "\n" not in str(error.value)


@pytest.fixture
def small() -> Embedder:
    return build("small", spec=(1, 8, 8), dim=5, mean=0.3, std=0.5)


@pytest.mark.parametrize("name", MODELS)
def test_a_round_trip_is_bit_identical(name: str, saved: Save) -> None:
    options = {"pretrained": False} if MODELS[name].shipped else {}
    embedder = build(name, spec=(3, 33, 34), dim=5, **options)
    images = torch.rand(3, 3, 33, 34)
    embedder(images)  # moves batch-norm statistics off their start
    folder = saved(embedder)
    state = torch.get_rng_state()
    again = load(folder)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(again.embed(images), embedder.embed(images))
    assert again.fingerprint() == embedder.fingerprint()
    assert again.describe() == embedder.describe()
    assert not again.training
    again.train()(images).sum().backward()
    assert all(parameter.grad is not None for parameter in again.parameters())


def test_the_card_tells_everything(small: Embedder, saved: Save) -> None:
    folder = saved(small, metrics={"recall@1": 0.8, "loss": float("nan")})
    assert sorted(path.name for path in folder.iterdir()) == ["card.json", "model.safetensors"]
    card = json.loads((folder / "card.json").read_text())
    assert card["format"] == "holdfast-checkpoint"
    assert card["architecture"] == {"name": "small"}
    assert card["spec"] == {"channels": 1, "height": 8, "width": 8, "fit": "crop", "resample": "bilinear"}
    assert card["pixels"] == {"mean": [0.3], "std": [0.5]}
    assert (card["dim"], card["unit_norm"], card["seed"], card["data"]) == (5, False, 7, "fashion-mnist")
    assert card["config"] == {"lr": 1e-3, "steps": [1, 2]}
    assert card["metrics"] == {"recall@1": 0.8, "loss": None}
    assert card["versions"]["torch"] == torch.__version__
    assert set(card["versions"]) == {"python", "torch", "numpy", "holdfast", "faiss-cpu"}
    assert card["created"].endswith("+00:00")
    assert card["fingerprint"] == small.fingerprint()
    assert load(folder).card == card


@pytest.mark.parametrize("name", ["", "card.json", "model.safetensors"])
def test_the_folder_and_either_file_load(name: str, small: Embedder, saved: Save) -> None:
    assert load(saved(small) / name).fingerprint() == small.fingerprint()


def test_the_weights_have_the_networks_own_names(small: Embedder, saved: Save) -> None:
    tensors = safetensors.torch.load_file(saved(small) / "model.safetensors")
    assert set(tensors) == set(small.network.state_dict())


def test_weights_cut_at_any_byte_are_refused(small: Embedder, saved: Save) -> None:
    weights = saved(small) / "model.safetensors"
    content = weights.read_bytes()
    offsets = {0, 1, 7, 8, 9, len(content) - 1, *np.linspace(0, len(content) - 1, 40, dtype=int).tolist()}
    for offset in offsets:
        weights.write_bytes(content[:offset])
        refused(weights.parent, f"cut short: {offset} of {len(content)} bytes")


def test_a_flipped_bit_anywhere_is_refused(small: Embedder, saved: Save) -> None:
    weights = saved(small) / "model.safetensors"
    content = weights.read_bytes()
    for offset in {0, 8, 9, len(content) - 1, *np.linspace(0, len(content) - 1, 40, dtype=int).tolist()}:
        weights.write_bytes(content[:offset] + bytes([content[offset] ^ 1]) + content[offset + 1 :])
        refused(weights.parent, "was altered|is a pickle")
    weights.write_bytes(content + b"\x00")
    refused(weights.parent, "was altered")


def test_a_card_cut_at_any_byte_is_refused(small: Embedder, saved: Save) -> None:
    card = saved(small) / "card.json"
    content = card.read_bytes()
    for offset in np.linspace(0, len(content) - 3, 40, dtype=int).tolist():
        card.write_bytes(content[:offset])
        refused(card.parent, "is not JSON")


def test_weights_of_another_checkpoint_are_refused(small: Embedder, saved: Save, tmp_path: Path) -> None:
    folder = saved(small)
    other = saved(build("small", spec=(1, 8, 8), dim=5), tmp_path / "other")
    shutil.copy(other / "model.safetensors", folder / "model.safetensors")
    refused(folder, "was altered")


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"format": "other"}, "not the card of a checkpoint"),
    ({"version": 3}, "format version 3, and this Holdfast reads 1 to 2"),
    ({"version": None}, "format version None"),
    ({"dim": "many"}, "not a whole card: dim"),
    ({"dim": 0}, "not a whole card: dim"),
    ({"surprise": 1}, "not a whole card: surprise"),
    ({"weights": {"bytes": 1}}, r"not a whole card: weights\.sha256"),
    ({"spec": {"channels": 2, "height": 8, "width": 8}}, "not a whole card: images have 1"),
    ({"pixels": {"mean": [0.3], "std": [0.0]}}, "not a whole card: pixel mean"),
    ({"architecture": {"name": "huge"}}, "cannot be rebuilt: unknown model 'huge'"),
    ({"architecture": {}}, "cannot be rebuilt: unknown model ''"),
    ({"architecture": {"name": "small", "wide": 1}}, "cannot be rebuilt: unknown option of small 'wide'"),
    ({"architecture": {"name": "c2f2"}}, "does not fit the network: it lacks 3.weight"),
    ({"dim": 10**9}, r"embedding\.weight is 5x288, not 1000000000x288"),
    ({"spec": {"channels": 1, "height": 9, "width": 12}}, r"embedding\.weight is 5x288, not"),
    ({"spec": {"channels": 1, "height": 8, "width": 8, "fit": "squash"}}, "card's fingerprint"),
    ({"unit_norm": True}, "card's fingerprint"),
    ({"pixels": None}, "card's fingerprint"),
    ({"fingerprint": "0" * 64}, "card's fingerprint"),
]


@pytest.mark.parametrize(("changes", "found"), CHANGES)
def test_an_altered_card_is_refused(
    changes: dict[str, Any], found: str, small: Embedder, saved: Save
) -> None:
    card = saved(small) / "card.json"
    card.write_text(json.dumps(json.loads(card.read_text()) | changes))
    refused(card.parent, found)


@pytest.mark.parametrize("content", [b"[]", b"null", b"{}", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_card_is_refused(content: bytes, small: Embedder, saved: Save) -> None:
    card = saved(small) / "card.json"
    card.write_bytes(content)
    refused(card.parent, "is not JSON|not the card of a checkpoint")


def test_what_is_no_checkpoint_is_refused(small: Embedder, saved: Save, tmp_path: Path) -> None:
    refused(tmp_path / "absent", "no checkpoint at .*absent; give the folder")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "empty is not a checkpoint: it has no card.json")
    (tmp_path / "notes.txt").write_text("hello")
    refused(tmp_path / "notes.txt", "notes.txt is not a checkpoint")
    folder = saved(small)
    (folder / "model.safetensors").unlink()
    refused(folder, "model.safetensors is missing")


class Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("a pickle was loaded",))


@pytest.mark.parametrize("name", ["model.pth", "model.pt", "model", "model.safetensors"])
@pytest.mark.parametrize("protocol", [2, 4, 5, "zip"])
def test_pickles_are_refused_and_never_run(
    name: str, protocol: int | str, small: Embedder, saved: Save
) -> None:
    folder = saved(small)
    if protocol == "zip":
        torch.save({"x": Trap()}, folder / name)
    else:
        (folder / name).write_bytes(pickle.dumps(Trap(), protocol=int(protocol)))
    refused(folder / name, "is a pickle, which can run code")


def test_a_save_cut_off_leaves_the_old_checkpoint_or_the_new(
    small: Embedder, saved: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    folder = saved(small)
    torch.manual_seed(8)
    newer = build("small", spec=(1, 8, 8), dim=5)
    whole = checkpoint.atomic_write
    calls: list[Path] = []

    def dies_at(step: int) -> Callable[[Path, str | bytes], None]:
        def write(path: Path, content: str | bytes) -> None:
            calls.append(path)
            if len(calls) == step:
                raise Killed
            whole(path, content)

        return write

    for step in (1, 2):
        calls.clear()
        monkeypatch.setattr(checkpoint, "atomic_write", dies_at(step))
        with pytest.raises(Killed):
            saved(newer)
        assert load(folder).fingerprint() == small.fingerprint()
    monkeypatch.setattr(checkpoint, "atomic_write", whole)

    rename = Path.replace

    def die(path: Path, target: Path) -> Path:
        if target.name == "model.safetensors":
            raise Killed
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", die)
        with pytest.raises(Killed):
            saved(newer)
    assert load(folder).fingerprint() == newer.fingerprint()
    saved(small)
    assert load(folder).fingerprint() == small.fingerprint()
    assert sorted(path.name for path in folder.iterdir()) == ["card.json", "model.safetensors"]


def test_a_full_disk_leaves_the_old_checkpoint(
    small: Embedder, saved: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(small)
    newer = build("small", spec=(1, 8, 8), dim=5)
    whole = checkpoint.atomic_write

    def full(path: Path, content: str | bytes) -> None:
        if path.name == "card.json":
            raise StorageError("the disk is full")
        whole(path, content)

    monkeypatch.setattr(checkpoint, "atomic_write", full)
    with pytest.raises(StorageError):
        saved(newer)
    assert load(folder).fingerprint() == small.fingerprint()
    assert sorted(path.name for path in folder.iterdir()) == ["card.json", "model.safetensors"]


def test_a_config_that_is_not_json_leaves_nothing(small: Embedder, saved: Save, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be written as JSON"):
        saved(small, config={"path": tmp_path})
    with pytest.raises(CheckpointError, match="cannot be written as JSON"):
        saved(small, config={"lr": float("nan")})
    assert not (tmp_path / "run").exists()


class Net(nn.Module):
    def __init__(self, hidden: int = 4, deep: bool = False) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(1), nn.Linear(64, hidden), nn.Tanh() if deep else nn.ReLU())
        self.tied = self.body[1]

    def forward(self, images: Tensor) -> Tensor:
        return self.body(images)[:, :, None, None]


class Other(Net):
    pass


def test_a_wrapped_module_is_saved_and_given_back_to_load(saved: Save) -> None:
    embedder = wrap(Net(), (1, 8, 8), mean=0.2, std=0.7, unit_norm=True)
    folder = saved(embedder)
    images = torch.rand(5, 1, 8, 8)
    again = load(folder, module=Net())
    assert torch.equal(again.embed(images), embedder.embed(images))
    assert again.fingerprint() == embedder.fingerprint()
    card = json.loads((folder / "card.json").read_text())
    assert card["architecture"]["class"] == "Net"
    refused(folder, r"holds a wrapped .*\.Net; load it with load\(path, module=Net\(\.\.\.\)\)")
    refused(folder, "wrapped Net, not Other", module=Other())
    refused(folder, "with other layers", module=Net(deep=True))
    refused(folder, r"body\.1\.weight is 4x64, not 6x64", module=Net(hidden=6))


def test_a_module_that_does_not_fit_stays_as_it_was(saved: Save) -> None:
    folder = saved(wrap(Net(), (1, 8, 8)))
    module = Net(hidden=6)
    before = module.body[1].weight.clone()
    refused(folder, "does not fit", module=module)
    assert torch.equal(module.body[1].weight, before)


def test_a_registered_network_needs_no_module(small: Embedder, saved: Save) -> None:
    refused(saved(small), "holds a 'small'; load it without a module", module=Net())


def test_a_state_that_is_no_tensor_cannot_be_saved(saved: Save, tmp_path: Path) -> None:
    class Extra(nn.Flatten):
        def get_extra_state(self) -> dict[str, int]:
            return {"step": 1}

    with pytest.raises(CheckpointError, match="_extra_state of the network is a dict"):
        saved(wrap(Extra(1), (1, 8, 8)))
    assert not (tmp_path / "run").exists()
