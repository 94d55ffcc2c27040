"""A user's own model and photographs: named networks, files, Hugging Face, and training them, by the command."""

from __future__ import annotations

import json
import tarfile
import warnings
from pathlib import Path

import pytest
import torch
from command import here

from holdfast import models
from holdfast.gallery import open_gallery
from holdfast.rows import read_rows

CLASSES, EACH = 4, 8
CODE = """
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(
    nn.Conv2d(3, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten()
)
blocks = nn.Sequential(*(nn.Sequential(nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3)) for _ in range(4)), nn.Flatten())
def black(images):
    return net(images).detach().numpy()
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory, shared_data):
    """A folder with photographs by class, a Python file, and a small ViT."""
    archive = shared_data / "clothing_small_s128.tar"
    if not archive.exists():
        pytest.skip(f"{archive.name} is not among the data sets")
    folder = tmp_path_factory.mktemp("own")
    kept: dict[str, int] = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            path = Path(member.name)
            kind = path.parent.name
            if path.suffix != ".jpg" or kept.get(kind, 0) == EACH or "train" not in path.parts:
                continue
            if kind not in kept and len(kept) == CLASSES:
                continue
            kept[kind] = kept.get(kind, 0) + 1
            content = tar.extractfile(member)
            assert content is not None
            (folder / "photos" / kind).mkdir(parents=True, exist_ok=True)
            (folder / "photos" / kind / path.name).write_bytes(content.read())
    assert len(kept) == CLASSES
    (folder / "my.py").write_text(CODE)
    return folder


@pytest.fixture(scope="module")
def vit(place):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=32,
        patch_size=8,
    )
    transformers.utils.logging.disable_progress_bar()
    transformers.ViTModel(config).save_pretrained(place / "vit")
    transformers.utils.logging.enable_progress_bar()
    (place / "vit" / "preprocessor_config.json").write_text(
        json.dumps(
            {
                "image_processor_type": "CLIPImageProcessor",
                "size": {"shortest_edge": 36},
                "crop_size": {"height": 32, "width": 32},
            }
        )
    )
    return "hf:./vit"


def done(*words, cwd):
    found = here(*words, cwd=cwd)
    assert found.code == 0, found.err
    return found


def refused(*words, says, cwd):
    found = here(*words, cwd=cwd)
    assert found.code == 2, (found.out, found.err)
    (line,) = [line for line in found.err.splitlines() if line.startswith("error: ")]
    assert says in line
    assert "Traceback" not in found.err


def some(place):
    return next((place / "photos").rglob("*.jpg"))


def test_models_are_listed(place):
    found = done("models", "--no-speed", cwd=place)
    for name in ("efficientnet-lite2", "mobilenet-v2", "Apache-2.0", "hf:FOLDER", "FILE.onnx"):
        assert name in found.out
    listed = json.loads(done("models", "--no-speed", "--json", cwd=place).out)
    assert {entry["name"] for entry in listed["pretrained"]} >= {"efficientnet-lite0", "mobilenet-v2"}


def test_a_named_network_needs_no_training(place):
    for name in ("efficientnet-lite0@96", "mobilenet-v2@64"):
        if models.MODELS[name.partition("@")[0]].shipped.path is None:
            pytest.skip("its weights are not installed")
        gallery = f"{name}.gallery"
        said = done("index", name, "photos", "--out", gallery, cwd=place)
        # Classes are said before the work, and what was done after it.
        assert "4 classes, for example" in said.err
        assert "32 images (32 added" in said.out
        hits = json.loads(done("search", gallery, some(place), "-k", 3, "--json", cwd=place).out)
        assert hits[0]["hits"][0]["id"].endswith(some(place).name)
    measured = done("evaluate", "efficientnet-lite0@96", "--images", "photos", "--json", cwd=place)
    assert json.loads(measured.out)["rows"].startswith("runs/efficientnet-lite0-96/")
    # Photographs of one kind are nearer: better than by chance.
    found = json.loads(measured.out)
    assert found["hit_rate"]["1"] > found["chance"]["1"] + 0.1
    certified = done(
        "search", "mobilenet-v2@64.gallery", some(place), "-k", 1, "--certify", "linf:1/2550", cwd=place
    )
    assert "Sizes are of the file's own pixels" in certified.out


def test_a_hugging_face_model_is_searched_attacked_and_smoothed(place, vit):
    done("index", vit, "photos", "--out", "vit.gallery", cwd=place)
    refused("search", "vit.gallery", some(place), says="name it (--model)", cwd=place)
    said = done("search", "vit.gallery", some(place), "--model", vit, cwd=place)
    assert some(place).name in said.out
    refused(
        "search",
        *("vit.gallery", some(place), "--model", vit, "--certify", "linf:1/255"),
        says="bounds cannot follow ViTModel",
        cwd=place,
    )
    words = ("--images", "photos", "--queries", 3, "--candidates", 12, "--steps", 3, "--check-black-box", 0)
    attacked = done("evaluate", vit, *words, "--attacks", "es", "--json", cwd=place)
    assert json.loads(attacked.out)["rows"].startswith("runs/hf-vit/")
    done("index", vit, "photos", "--out", "s.gallery", "--smooth", "sigma=0.2,n=100,gallery=4", cwd=place)
    smoothed = done("search", "s.gallery", some(place), "--model", vit, "-k", 1, cwd=place)
    assert "as the network sees it" in smoothed.out
    # The pooling is part of the model: another one did not make this gallery.
    refused("search", "vit.gallery", some(place), "--model", f"{vit}?pool=mean", says="another", cwd=place)


def test_a_callable_and_an_onnx_file_with_their_pixels(place):
    pixels = ("--size", 32, "--mean", "0.485,0.456,0.406", "--std", "0.229,0.224,0.225", "--normalise")
    done("index", "my.py:black", "photos", "--out", "black.gallery", *pixels, cwd=place)
    net = models.find(f"{place / 'my.py'}:net?size=32")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net.network,
            (torch.zeros(1, 3, 32, 32),),
            place / "net.onnx",
            dynamo=False,
            input_names=["images"],
            dynamic_axes={"images": {0: "n"}},
        )
    done("index", "net.onnx", "photos", "--out", "onnx.gallery", *pixels, cwd=place)
    # What was said of the pixels is kept: naming the file is enough.
    for gallery, model in (("black.gallery", "my.py:black"), ("onnx.gallery", "net.onnx")):
        done("search", gallery, some(place), "--model", model, cwd=place)
        refused("search", gallery, some(place), says=f"{model}?mean=0.485,0.456,0.406", cwd=place)
    words = ("-k", 5, "--json")
    one, other = (
        json.loads(done("search", gallery, some(place), "--model", model, *words, cwd=place).out)[0]["hits"]
        for gallery, model in (("black.gallery", "my.py:black"), ("onnx.gallery", "net.onnx"))
    )
    assert [hit["id"] for hit in one] == [hit["id"] for hit in other]
    assert [hit["distance"] for hit in one] == pytest.approx([hit["distance"] for hit in other], abs=1e-4)


def test_wrong_pixels_are_one_line(place):
    words = ("index", "my.py:net", "photos", "--out", "wrong.gallery", "--size", 32)
    refused(*words, "--mean", "123.7,116.3,103.5", "--std", "58,57,57", says="divide both by 255", cwd=place)
    refused(*words, "--mean", "0.5,0.5", says="mean has 2 values", cwd=place)
    refused(*words, "--layout", "nhwc", says="does not take layout", cwd=place)
    assert not (place / "wrong.gallery").exists()


TRAIN = (
    "--data",
    "photos",
    "--steps",
    2,
    "--batch",
    8,
    "--precision",
    "float32",
    "--set",
    "data.validation=0",
)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("my.py:net", ("--image-size", 24, "--defence", "ca-tride", "--threat", "linf:4/255", "--dim", 6)),
        ("my.py:blocks", ("--image-size", 16, "--defence", "triplet", "--train", "last-blocks")),
        ("vit", ("--defence", "act", "--threat", "linf:4/255", "--train", "last-blocks", "--dim", 8)),
        ("vit", ("--defence", "margin", "--train", "head", "--dim", 8)),
        ("efficientnet-lite0@32", ("--defence", "triplet", "--train", "head", "--dim", 8)),
    ],
)
def test_any_module_is_trained(name, words, place, request):
    if name == "vit":
        name = request.getfixturevalue("vit")
    if name.startswith("eff") and models.MODELS["efficientnet-lite0"].shipped.path is None:
        pytest.skip("its weights are not installed")
    own = ".py:" in name
    out = "runs/" + "-".join(str(word) for word in (name, *words) if str(word).isalnum())
    said = done("train", "--model", name, *TRAIN, *words, "--out", out, cwd=place)
    assert "classes, for example" in said.err
    if "--train" in words:
        assert "parameters learn" in said.err
    model = f"{name}@{out}" if own else out
    if own:
        refused("index", out, "photos", "--out", "x.gallery", says=f"name it {place / name}@", cwd=place)
    done("index", model, "photos", "--out", f"{out}.gallery", cwd=place)
    with open_gallery(place / f"{out}.gallery", readonly=True) as gallery:
        if "--dim" in words:
            assert gallery.info.dim == words[words.index("--dim") + 1]
    # Never pickled, and the same command makes the same weights.
    assert {path.suffix for path in (place / out).iterdir()} <= {
        ".safetensors",
        ".json",
        ".jsonl",
        ".toml",
        "",
    }
    done("train", "--model", name, *TRAIN, *words, "--out", f"{out}-again", cwd=place)
    first, second = ((place / run / "model.safetensors").read_bytes() for run in (out, f"{out}-again"))
    assert first == second


def test_what_cannot_be_trained_is_one_line(place):
    words = (*TRAIN, "--out", "runs/none")
    refused(
        "train", "--model", "my.py:black", "--image-size", 24, *words, says="gives no gradients", cwd=place
    )
    refused("train", "--model", "my.py:net", *words, says="say their size", cwd=place)
    refused("train", "--model", "my.py:none", *words, says="has no name 'none'", cwd=place)
    refused(
        "train",
        *("--model", "my.py:net", "--image-size", 24, "--train", "head", *words),
        says="has no head of its own",
        cwd=place,
    )
    refused("train", "--model", "huge", *words, says="unknown model 'huge'", cwd=place)
    assert not (place / "runs" / "none").exists()


def test_a_stopped_run_of_ones_own_module_goes_on(place, monkeypatch):
    words = ("train", "--model", "my.py:net", "--image-size", 24, *TRAIN, "--out", "runs/stopped")
    from holdfast import models as room

    with monkeypatch.context() as broken:
        broken.setattr(room, "save", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt))
        assert here(*words, cwd=place).code == 130
    assert not (place / "runs/stopped/card.json").exists()
    done(*words, cwd=place)
    refused(*words, says="holds a finished run", cwd=place)


def test_two_folders_and_labels_from_a_table(place):
    """Queries and candidates in folders of their own; the same group is not searched, and copies are counted."""
    photos = sorted((place / "photos").rglob("*.jpg"))
    (place / "q").mkdir()
    (place / "g").mkdir()
    lines = ["path,label,group"]
    for number, photo in enumerate(photos):
        side = "q" if number % 4 == 0 else "g"
        (place / side / photo.name).write_bytes(photo.read_bytes())
        lines.append(f"{side}/{photo.name},{photo.parent.name},{number % 3}")
    (place / "g" / "copy.jpg").write_bytes(photos[0].read_bytes())
    lines.append(f"g/copy.jpg,{photos[0].parent.name},7")
    (place / "labels.csv").write_text("\n".join(lines))
    words = (
        "evaluate",
        "my.py:net",
        "--image-size",
        24,
        "--queries",
        "q",
        "--gallery",
        "g",
        "--labels",
        "labels.csv",
    )
    found = done(*words, "--json", cwd=place)
    document = json.loads(found.out)
    assert document["queries"] == 8
    assert "4 classes, for example" in found.err
    assert "1 images are near-duplicates of another; without_duplicates leaves them out" in found.err
    rows = read_rows(place / document["rows"])
    first = rows.columns["query"].tolist().index(f"queries/{photos[0].name}")
    assert rows.columns["hits"][first][0] == "gallery/copy.jpg"
    # 25 candidates, without those of the query's class and group.
    own = [row for row in lines[1:] if row.startswith("g/") and f",{photos[0].parent.name},0" in row]
    assert rows.columns["candidates"][first] == 25 - len(own)
    assert len(own) > 0
    without = done(*words, "--without-duplicates", "--out", "runs/without", "--json", cwd=place)
    assert "left out 1 near-duplicates" in without.err
    rows = read_rows(place / "runs/without/rows.csv.gz")
    assert rows.columns["hits"][first][0] != "gallery/copy.jpg"


def test_wrong_tables_and_folders_are_one_line(place):
    words = ("evaluate", "my.py:net", "--image-size", 24)
    refused(
        *words,
        "--queries",
        "q",
        says="--queries is a number from 1 on, or a folder beside --gallery",
        cwd=place,
    )
    refused(*words, "--gallery", "photos", says="queries and gallery are two folders: give both", cwd=place)
    refused(*words, "--images", "photos", "--labels", "middle", says="labels are 'deepest', 'top'", cwd=place)
    (place / "wrong.csv").write_text("path,label\nphotos/none.jpg,hat\n")
    for command in (
        (*words, "--images", "photos"),
        ("index", "my.py:net", "photos", "--size", 24, "--out", "wrong.gallery"),
        ("train", "--data", "photos", "--model", "small", "--steps", 2, "--out", "runs/wrong"),
    ):
        refused(*command, "--labels", "wrong.csv", says="names 1 images that are not in photos", cwd=place)
    assert not (place / "wrong.gallery").exists()
    assert not (place / "runs/wrong").exists()


def test_a_table_labels_a_gallery_and_a_run(place):
    lines = ["path,label"]
    lines += [
        f"{path.relative_to(place / 'photos')},{'warm' if path.parent.name == 'hat' else 'other'}"
        for path in sorted((place / "photos").rglob("*.jpg"))
    ]
    (place / "photos.csv").write_text("\n".join(lines))
    said = done(
        "index",
        "my.py:net",
        "photos",
        "--size",
        24,
        "--labels",
        "photos.csv",
        "--out",
        "t.gallery",
        cwd=place,
    )
    assert "2 classes: other, warm" in said.err
    words = (
        "train",
        "--model",
        "small",
        "--image-size",
        16,
        *TRAIN,
        "--labels",
        "photos.csv",
        "--out",
        "runs/table",
    )
    assert "2 classes: other, warm" in done(*words, cwd=place).err
    assert str(place / "photos.csv") in (place / "runs/table/config.toml").read_text()
