"""Models of transformers: what pictures go through, what the vector is, and what is refused."""

from __future__ import annotations

import io
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from holdfast.attacks import Attack, Given, objective, optimiser
from holdfast.bounds import trace
from holdfast.data import decode, decode_picture
from holdfast.errors import MissingExtraError, ModelError
from holdfast.models import Embedder, Smoothed, find, wrap
from holdfast.spec import ImageSpec
from holdfast.threat import Threat

transformers = pytest.importorskip("transformers", reason="the extra 'hf' is not installed")

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}
VIT: dict[str, Any] = {
    "image_processor_type": "ViTImageProcessor",
    "size": {"height": 32, "width": 32},
    "resample": 2,
    "image_mean": [0.5, 0.4, 0.3],
    "image_std": [0.2, 0.25, 0.3],
}
CLIP: dict[str, Any] = {
    "image_processor_type": "CLIPImageProcessor",
    "size": {"shortest_edge": 32},
    "crop_size": {"height": 32, "width": 32},
}


def written(folder: Path, model: Any, processor: dict[str, Any] | None) -> Path:
    """A folder as the library writes it."""
    log = transformers.utils.logging
    log.disable_progress_bar()
    model.save_pretrained(folder)
    log.enable_progress_bar()
    if processor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder


def vit(**changes: Any) -> Any:
    torch.manual_seed(0)
    return transformers.ViTModel(transformers.ViTConfig(**(SMALL | changes))).eval()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written(tmp_path / "vit", vit(), VIT)


def photos(shared_data: Path, count: int) -> list[bytes]:
    archive = shared_data / "clothing_small_s128.tar"
    if not archive.exists():
        pytest.skip(f"{archive.name} is not among the data sets")
    found: list[bytes] = []
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.name.endswith(".jpg"):
                content = tar.extractfile(member)
                assert content is not None
                found.append(content.read())
            if len(found) == count:
                break
    return found


def odd_pictures() -> list[bytes]:
    """Shapes at which whole pixels and middles matter, one of them many times as large as the network's input."""
    made = []
    random = np.random.default_rng(0)
    for width, height in ((101, 67), (64, 129), (33, 32), (700, 411), (40, 40)):
        pixels = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
        buffer = io.BytesIO()
        smooth = Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR)
        smooth.save(buffer, "JPEG", quality=95)
        made.append(buffer.getvalue())
    return made


STEP = 1.01 / 255
PROCESSORS: dict[str, tuple[dict[str, Any], float]] = {
    # A bilinear picture of ours is not rounded to 8 bits on the way: two roundings of half a step lie between.
    "squashed, bilinear": (VIT, STEP),
    "squashed, bicubic": (VIT | {"resample": 3, "image_processor_type": "SiglipImageProcessor"}, 0),
    # Resizing and cutting out are one step here: the filter's weights round to the other side now and then.
    "shorter side, cut out": (CLIP, STEP),
    "larger than what is cut out": (
        CLIP | {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 37}},
        STEP,
    ),
    "larger than what is cut out, bilinear": (
        CLIP | {"size": {"shortest_edge": 41}, "resample": 2, "crop_size": {"height": 32, "width": 27}},
        STEP,
    ),
    "a share cut out": (
        {
            "image_processor_type": "ConvNextImageProcessor",
            "size": {"shortest_edge": 32},
            "crop_pct": 0.875,
            "resample": 3,
        },
        STEP,
    ),
    "pixels from -1 to 1": (VIT | {"rescale_factor": 1 / 127.5, "do_normalize": False}, 2 * STEP),
}


@pytest.mark.parametrize("name", PROCESSORS)
def test_pictures_are_prepared_as_the_processor_does(name: str, tmp_path: Path, shared_data: Path) -> None:
    """The largest difference of a network's input, over pixels in [0, 1]: one step of 8 bits, or none."""
    settings, most = PROCESSORS[name]
    written(tmp_path, vit(), settings)
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path)
    embedder = find(f"hf:{tmp_path}")
    assert isinstance(embedder, Embedder)
    std = 1.0 if embedder.pixels is None else min(embedder.pixels.std)
    largest = 0.0
    for content in [*photos(shared_data, 12), *odd_pictures()]:
        picture = Image.open(io.BytesIO(content)).convert("RGB")
        wanted = processor(images=picture, return_tensors="pt")["pixel_values"]
        found = torch.from_numpy(np.asarray(decode(content, embedder.spec)))[None]
        found = found.float() / 255 if found.dtype == torch.uint8 else found
        difference = (embedder.normalise(found) - wanted).abs().max()
        assert found.shape == wanted.shape
        largest = max(largest, float(difference))
    # Of the normalised numbers float32 keeps seven digits.
    scale = 1 if name == "pixels from -1 to 1" else 1 / std
    assert largest <= most * scale + 4e-6
    assert largest >= 0.2 * most


def test_bilinear_claims_are_of_the_file_and_bicubic_ones_of_the_networks_input(tmp_path: Path) -> None:
    (content, *_) = odd_pictures()
    bilinear = find(f"hf:{written(tmp_path / 'a', vit(), VIT)}")
    assert bilinear.spec.picture == "file"
    assert decode_picture(content, bilinear.spec).stretch is not None
    bicubic = find(f"hf:{written(tmp_path / 'b', vit(), CLIP)}")
    assert bicubic.spec.picture == "network input"
    assert decode_picture(content, bicubic.spec).stretch is None


def test_the_vector_is_what_the_library_gives(folder: Path) -> None:
    model, images = vit(), torch.rand(3, 3, 32, 32)
    embedder = find(f"hf:{folder}?normalise=false")
    assert isinstance(embedder, Embedder)
    with torch.no_grad():
        output = model(embedder.normalise(images))
    for pool, wanted in (
        ("cls", output.last_hidden_state[:, 0]),
        ("mean", output.last_hidden_state[:, 1:].mean(1)),
        ("pooler", output.pooler_output),
    ):
        found = find(f"hf:{folder}", pool=pool, normalise=False)
        torch.testing.assert_close(found.embed(images), wanted, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(embedder.embed(images), output.last_hidden_state[:, 0], atol=1e-5, rtol=1e-5)
    unit = find(f"hf:{folder}").embed(images)
    torch.testing.assert_close(unit.norm(dim=1), torch.ones(3))
    with pytest.raises(ModelError, match="gives nothing for pool=image-embeds; it has cls, mean, pooler"):
        find(f"hf:{folder}", pool="image-embeds")


def test_the_pictures_side_of_a_clip_model(tmp_path: Path) -> None:
    torch.manual_seed(0)
    text = {key: SMALL[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
    config = transformers.CLIPConfig(
        text_config={**text, "intermediate_size": 64, "vocab_size": 99, "bos_token_id": 1, "eos_token_id": 2},
        vision_config=SMALL,
        projection_dim=16,
    )
    model = transformers.CLIPModel(config).eval()
    written(tmp_path, model, CLIP)
    embedder = find(f"hf:{tmp_path}", normalise=False)
    assert isinstance(embedder, Embedder)
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        output = model.get_image_features(pixel_values=embedder.normalise(images))
    wanted = output if isinstance(output, torch.Tensor) else output.pooler_output
    torch.testing.assert_close(embedder.embed(images), wanted, atol=1e-5, rtol=1e-5)
    assert not [name for name, _ in embedder.named_parameters() if "text" in name]


def test_a_map_is_pooled_and_registers_are_no_patches(tmp_path: Path) -> None:
    torch.manual_seed(0)
    resnet = transformers.ResNetModel(
        transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    )
    written(tmp_path / "resnet", resnet, VIT)
    images = torch.rand(2, 3, 32, 32)
    pooler, mean = (find(f"hf:{tmp_path / 'resnet'}", pool=pool).embed(images) for pool in ("pooler", "mean"))
    torch.testing.assert_close(pooler, mean, atol=1e-5, rtol=1e-5)
    config = transformers.Dinov2WithRegistersConfig(**SMALL, num_register_tokens=3)
    model = transformers.Dinov2WithRegistersModel(config).eval()
    written(tmp_path / "dino", model, VIT)
    found = find(f"hf:{tmp_path / 'dino'}", pool="mean", normalise=False)
    assert isinstance(found, Embedder)
    with torch.no_grad():
        output = model(found.normalise(images))
    torch.testing.assert_close(
        found.embed(images), output.last_hidden_state[:, 4:].mean(1), atol=1e-5, rtol=1e-5
    )
    # Parts of it that are models themselves do not say either where they were loaded from.
    moved = (tmp_path / "dino").rename(tmp_path / "moved")
    assert find(f"hf:{moved}", pool="mean", normalise=False).fingerprint() == found.fingerprint()


def test_another_size_is_asked_for(folder: Path) -> None:
    embedder = find(f"hf:{folder}?size=48")
    assert embedder.spec.shape == (3, 48, 48)
    assert embedder.spec.resize == (48, 48)
    assert embedder.origin == f"hf:{folder}?size=48"
    again = find(str(embedder.origin))
    assert again.fingerprint() == embedder.fingerprint() != find(f"hf:{folder}").fingerprint()


def test_fingerprints_follow_weights_pooling_and_preparation_but_not_the_place(
    folder: Path, tmp_path: Path
) -> None:
    usual = find(f"hf:{folder}").fingerprint()
    folder = folder.rename(tmp_path / "moved")
    assert find(f"hf:{folder}").fingerprint() == usual
    seen = {usual, find(f"hf:{folder}", pool="mean").fingerprint()}
    for change in (
        {"image_mean": [0.5, 0.5, 0.5]},
        {"resample": 3},
        {"size": {"height": 40, "width": 40}, "do_center_crop": True, "crop_size": 32},
    ):
        (folder / "preprocessor_config.json").write_text(json.dumps(VIT | change))
        seen.add(find(f"hf:{folder}").fingerprint())
    model = vit()
    with torch.no_grad():
        model.layernorm.weight[0] += 0.5
    seen.add(find(f"hf:{written(tmp_path / 'other', model, VIT)}").fingerprint())
    assert len(seen) == 6


def test_attention_is_attacked_and_smoothed_and_bounds_refuse_it_by_name(folder: Path) -> None:
    embedder = find(f"hf:{folder}")
    assert isinstance(embedder, Embedder)
    images = torch.full((2, 3, 32, 32), 0.5)
    attack = Attack(objective("es", Given()), optimiser("pgd", steps=4), Threat.parse("query:linf:0.05"))
    altered = attack.run(embedder, images)
    assert (embedder.embed(altered.images) - embedder.embed(images)).norm(dim=1).min() > 0.01
    smoothed = Smoothed(embedder, 0.1, 32)
    assert smoothed.embed(images).norm(dim=1).max() <= 1.001
    with pytest.raises(ModelError, match="bounds cannot follow ViTModel"):
        trace(embedder)


def test_a_model_of_the_library_is_wrapped(folder: Path) -> None:
    embedder = wrap(vit(), size=32, mean=VIT["image_mean"], std=VIT["image_std"], unit_norm=True)
    images = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(embedder.embed(images), find(f"hf:{folder}").embed(images))
    assert embedder.spec == ImageSpec(3, 32, 32)
    mean = wrap(vit(), size=32, pool="mean")
    assert not torch.allclose(mean.embed(images), embedder.embed(images), atol=1e-3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"resample": 1}, "resizes by filter 1 of Pillow"),
        ({"do_resize": False}, "does not say to which size"),
        ({"size": {"shortest_edge": 32, "longest_edge": 64}}, "does not say to which size"),
        ({"do_pad": True}, "borders"),
        ({"do_flip_channel_order": True}, "blue before red"),
        ({"size": {"shortest_edge": 32}}, "keeps the shape"),
    ],
)
def test_what_is_prepared_in_another_way_is_refused(change: Any, says: str) -> None:
    from holdfast.models.adapters.hugging_face import prepared_as
    from holdfast.models.options import Options

    settings = {"rescale_factor": 1 / 255, **VIT, **change}
    with pytest.raises(ModelError, match=says):
        prepared_as(settings, Options(), "hf:it")


def test_what_cannot_be_loaded_is_one_line(folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    def refused(name: str, says: str, **options: Any) -> None:
        with pytest.raises(ModelError, match=says) as error:
            find(name, **options)
        assert "\n" not in str(error.value)

    refused(f"hf:{tmp_path / 'none'}", "there is no folder at")
    refused("hf:", "say which model")
    (folder / "preprocessor_config.json").unlink()
    refused(f"hf:{folder}", "give size, mean and std")
    assert find(f"hf:{folder}?size=32&mean=0.5&std=0.5").spec.shape == (3, 32, 32)
    # Weights of another architecture: what is missing would be random.
    config = json.loads((folder / "config.json").read_text())
    (folder / "preprocessor_config.json").write_text(json.dumps(VIT))
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 5}))
    refused(f"hf:{folder}", "lacks weights that its network needs")
    (folder / "config.json").write_text(json.dumps(config | {"hidden_size": 16}))
    refused(f"hf:{folder}", "cannot be loaded")
    (folder / "config.json").write_text(json.dumps(config))
    torch.save({}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    refused(f"hf:{folder}", "cannot be loaded")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "transformers", None)
        with pytest.raises(MissingExtraError, match=r"holdfast\[hf\]"):
            find(f"hf:{folder}")
