"""What a new user meets: models of their own, nested folders, odd numbers; each door says what is true and helps."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from command import here
from PIL import Image
from safetensors.torch import save_file
from torch import distributed, nn
from torch.nn import functional

import holdfast
from holdfast import models
from holdfast.rows import read_rows
from holdfast.training.processes import joined

MODEL = """
import torch
from torch import nn
import holdfast

torch.manual_seed(0)


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.pool = nn.Conv2d(3, 4, 3, stride=2), nn.AdaptiveAvgPool2d(1)
        self.last = nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(4 * 3 * 3, 4))

    def forward(self, x):
        y = self.conv(x)
        return self.last(y + self.pool(y))


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4, 3, 8, 8))

    def forward(self, x):
        return torch.flatten(nn.functional.conv2d(x, self.weight), 1)


def plain():
    return nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 3 * 3, 4))


module = plain()
embedder = holdfast.wrap(module, (3, 8, 8))
gated = holdfast.wrap(Gated(), (3, 8, 8))
double = holdfast.wrap(plain().double(), (3, 8, 8))
brain = holdfast.wrap(plain().bfloat16(), (3, 8, 8))
functional = holdfast.wrap(Functional(), (3, 8, 8))


def function(images):
    return module(images)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A model file, and pictures in two nested classes and one that is not."""
    folder = tmp_path_factory.mktemp("new")
    (folder / "my.py").write_text(MODEL)
    for number, name in enumerate(["Fruit/Apple/Gala", "Fruit/Pear", "Milk"] * 6):
        path = folder / "photos" / name / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (12, 12, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    return folder


@pytest.fixture(scope="module")
def gallery(place) -> Path:
    done = here("index", f"{place / 'my.py'}:embedder", place / "photos", "--out", place / "shop.gallery")
    assert done.code == 0, done.err
    return place / "shop.gallery"


def certify(place: Path, name: str, *more: object):
    return here(
        *("certify", f"{place / 'my.py'}:{name}", "--images", place / "photos", "--queries", 4),
        *("--candidates", 10, "--k", "1,2", *more),
    )


@pytest.mark.parametrize("name", ["embedder", "gated", "double"])
@pytest.mark.parametrize("method", ["interval", "crown"])
def test_a_python_file_is_certified_against_a_threat(place, tmp_path, name, method):
    """Also where a branch is repeated to the other's shape, and where the module computes in float64."""
    done = certify(
        place, name, "--threat", "linf:1/255", "--method", method, "--out", tmp_path / "out", "--json"
    )
    assert done.code == 0, done.err
    assert [line["k"] for line in json.loads(done.out)["table"]] == [1, 2]


def test_what_has_no_layers_is_run_before_that_is_said(place, tmp_path):
    refused = certify(place, "function", "--threat", "linf:1/255", "--image-size", 8)
    assert refused.code == 2
    assert "has no layers that bounds could pass; certify it by smoothing (--smooth)" in refused.err
    assert "has no name 'nothing'" in certify(place, "nothing", "--threat", "linf:1/255").err


@pytest.mark.parametrize("name", ["gated", "double"])
def test_search_certifies_the_same_models(place, tmp_path, name):
    out, model = tmp_path / "g.gallery", f"{place / 'my.py'}:{name}"
    assert here("index", model, place / "photos", "--out", out, "--boxes", "linf:1/255").code == 0
    photo = place / "photos" / "Milk" / "2.png"
    for threat, method in (("linf:1/255", "crown"), ("candidates:linf:1/255", "interval")):
        words = ("search", out, photo, "--model", model, "-k", 2, "--certify", threat, "--method", method)
        done = here(*words, "--json")
        assert done.code == 0, done.err
        assert json.loads(done.out)[0]["hits"][0]["id"] == "Milk/2.png"


def test_bfloat16_is_indexed_and_its_proofs_are_refused(place, tmp_path):
    out, model = tmp_path / "g.gallery", f"{place / 'my.py'}:brain"
    assert here("index", model, place / "photos", "--out", out).code == 0
    photo = place / "photos" / "Milk" / "2.png"
    assert here("search", out, photo, "--model", model, "-k", 2).code == 0
    refused = here("search", out, photo, "--model", model, "-k", 2, "--certify", "linf:1/255")
    assert refused.code == 2
    assert "computes in torch.bfloat16" in refused.err


def test_a_functional_convolution_is_told_its_module(place, tmp_path):
    refused = certify(place, "functional", "--threat", "linf:1/255", "--out", tmp_path / "out")
    assert refused.code == 2
    assert "bounds do not know the operation conv2d" in refused.err
    assert "they know the layer torch.nn.Conv2d" in refused.err


def test_a_bare_module_is_indexed_and_searched(place, tmp_path):
    """The advice names an option that the command has; the gallery keeps the size for later."""
    words = ("index", f"{place / 'my.py'}:module", place / "photos", "--out", tmp_path / "g.gallery")
    refused = here(*words)
    assert refused.code == 2
    assert "?size=224" in refused.err
    assert here(*words, "--image-size", 8).code == 0
    photo = place / "photos" / "Milk" / "2.png"
    found = here("search", tmp_path / "g.gallery", photo, "--model", words[1], "-k", 1, "--json")
    assert json.loads(found.out)[0]["hits"][0]["id"] == "Milk/2.png"


def test_a_normalised_onnx_file_is_certified_with_bound_1(place, tmp_path):
    """Its vectors are longer than 1 by rounding; what proofs count with is longer still."""
    pytest.importorskip("onnx")
    torch.manual_seed(2)

    class Unit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 32))

        def forward(self, images):
            return functional.normalize(self.layers(images), dim=1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Unit(),
            (torch.zeros(1, 3, 8, 8),),
            tmp_path / "unit.onnx",
            dynamo=False,
            input_names=["images"],
            dynamic_axes={"images": {0: "n"}},
        )
    drawn = models.find(tmp_path / "unit.onnx").embed(torch.rand(200, 3, 8, 8))
    assert float(drawn.double().norm(dim=1).max()) > 1, "the case that this is about"
    done = here(
        *("certify", tmp_path / "unit.onnx", "--images", place / "photos", "--queries", 3, "--candidates", 9),
        *("--k", 1, "--smooth", "sigma=0.2,n=60,first=20,gallery=8,bound=1", "--out", tmp_path / "out"),
    )
    assert done.code == 0, done.err
    config = read_rows(tmp_path / "out" / "rows.csv.gz").header["config"]
    assert config["noise"]["bound"] == pytest.approx(1 + 1e-5, abs=1e-12)
    refused = here("certify", tmp_path / "unit.onnx", "--images", place / "photos", "--threat", "linf:0.1")
    assert (refused.code, "certify it by smoothing (--smooth)" in refused.err) == (2, True)


@pytest.mark.parametrize("bound", ["nan", "inf", "0", "-1", "1_0"])
def test_a_bound_is_a_length(place, bound):
    refused = certify(place, "embedder", "--smooth", f"sigma=0.1,n=100,bound={bound}")
    assert refused.code == 2
    assert "bound is a" in refused.err


@pytest.mark.parametrize(
    ("options", "classes"),
    [((), ["Fruit/Apple/Gala", "Fruit/Pear", "Milk"]), (("--labels", "top"), ["Fruit", "Milk"])],
)
def test_nested_folders_are_classes_by_their_deepest_folder(place, tmp_path, options, classes):
    said = f"{len(classes)} classes: {', '.join(classes)}"
    photos = place / "photos"
    assert said in here("data", "info", photos, *options).out
    assert json.loads(here("data", "info", photos, *options, "--json").out)["class_names"] == classes
    out = tmp_path / "g.gallery"
    indexed = here("index", f"{place / 'my.py'}:embedder", photos, "--out", out, *options)
    assert said in indexed.err
    with holdfast.Gallery.open(out, readonly=True) as opened:
        assert sorted({item.label for item in opened.catalogue().values()}) == classes
    words = (
        "train",
        "--data",
        photos,
        "--image-size",
        16,
        "--steps",
        1,
        "--batch",
        4,
        "--out",
        tmp_path / "run",
    )
    trained = here(*words, *options)
    assert trained.code == 0, trained.err
    assert said in trained.err
    assert models.load(tmp_path / "run").card["config"]["data"]["labels"] == (options or ("", "deepest"))[1]


def test_a_run_of_before_keeps_its_classes(place, tmp_path):
    """Its config does not say which folders are classes; they were those at the top."""
    words = ("train", "--data", place / "photos", "--image-size", 16, "--steps", 1, "--batch", 4)
    assert here(*words, "--labels", "top", "--out", tmp_path / "run").code == 0
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace('labels = "top"\n', ""))
    assert holdfast.training.read_config(tmp_path / "run").data.labels == "top"
    assert len(holdfast.training.held_out(tmp_path / "run").classes) == 2


def test_the_validation_hit_rate_says_what_it_is(place, tmp_path):
    trained = here(
        *("train", "--data", place / "photos", "--image-size", 16, "--steps", 1, "--batch", 4),
        *("--out", tmp_path / "run"),
    )
    line = next(line for line in trained.out.splitlines() if line.startswith("validation hit rate"))
    assert "held-out training images (3 classes, 2 images each)" in line
    assert "whose nearest among the others is of their class; by chance 0.200" in line


CERTIFIED = ("train", "--steps", 1, "--defence", "certified-rank", "--set", "data.validation=0")


def test_a_small_batch_is_enough_for_certified_rank(place, tmp_path):
    words = (*CERTIFIED, "--data", "fashion-mnist-mini")
    assert here(*words, "--batch", 32, "--out", tmp_path / "run").code == 0
    refused = here(*words, "--batch", 32, "--set", "defence.boxes=80", "--out", tmp_path / "other")
    assert refused.code == 2
    assert "a batch of 32 leaves 0 images beside defence.boxes = 80" in refused.err
    assert "train.batch to 84 or more" in refused.err
    assert not (tmp_path / "other").exists()


def test_batch_norm_learns_while_bounds_pass_it(place, tmp_path):
    trained = here(
        *(*CERTIFIED, "--data", place / "photos", "--image-size", 32, "--batch", 16, "--model", "vgg11-bn"),
        *("--out", tmp_path / "run"),
    )
    assert trained.code == 0, trained.err
    running = models.load(tmp_path / "run").network.state_dict()["features.1.running_mean"]
    assert (running != 0).all()


def test_pretrained_weights_are_not_thrown_away(place, tmp_path):
    torch.manual_seed(1)
    given = models.build("vgg11", spec=(3, 32, 32), unit_norm=False).network.state_dict()
    save_file({name: tensor.contiguous() for name, tensor in given.items()}, tmp_path / "vgg11.safetensors")
    words = (
        *(*CERTIFIED, "--data", place / "photos", "--image-size", 32, "--batch", 16, "--model", "vgg11"),
        *("--lr", 1e-12, "--set", "train.freeze_batch_norm=true", "--set", "defence.ibp_init=true"),
    )
    trained = here(
        *words, "--set", f"model.weights={tmp_path / 'vgg11.safetensors'}", "--out", tmp_path / "run"
    )
    assert trained.code == 0, trained.err
    assert "the pretrained weights stay as they are" in trained.err
    after = models.load(tmp_path / "run").network.state_dict()
    name = next(name for name, tensor in given.items() if tensor.ndim == 4)
    assert torch.allclose(after[name], given[name], atol=1e-6)


def test_processes_on_a_machine_with_a_gpu_meet_by_gloo(monkeypatch):
    """Training stays on the CPU, and nccl carries tensors of GPUs alone."""
    asked: list[str] = []
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(distributed, "init_process_group", asked.append)
    monkeypatch.setattr(distributed, "destroy_process_group", lambda: None)
    with joined():
        pass
    assert asked == ["gloo"]


def test_less_than_a_level_is_said_to_be_nothing(place, gallery, tmp_path):
    model, photo = f"{place / 'my.py'}:embedder", place / "photos" / "Milk" / "2.png"
    says = "8-bit files differ by whole levels of 1/255 = 0.0039: within linf:0.001 such a file cannot be altered"
    for size, said in (("0.001", True), ("1/255", False)):
        threat = f"linf:{size}"
        searched = here("search", gallery, photo, "--model", model, "-k", 2, "--certify", threat)
        certified = certify(place, "embedder", "--threat", threat, "--out", tmp_path / f"out{said}")
        attacked = here(
            *(
                "attack",
                gallery,
                photo,
                "--model",
                model,
                "--goal",
                "misrank",
                "--threat",
                threat,
                "--steps",
                1,
            ),
            *("--out", tmp_path / "altered.png"),
        )
        for done in (searched, certified, attacked):
            assert done.code == 0, done.err
            assert (says in done.err) is said


@pytest.mark.parametrize("threat", ["query:l2:inf", "l2:1e400", "linf:1_0/255", "linf:٣/255", "linf:1e-400"])
def test_what_is_no_size_is_refused_by_the_commands(place, gallery, threat):
    photo = place / "photos" / "Milk" / "2.png"
    refused = here("search", gallery, photo, "--model", f"{place / 'my.py'}:embedder", "--certify", threat)
    assert refused.code == 2
    assert refused.err.startswith("error: eps is ")
    assert refused.err.count("\n") == 1
