"""Noise while training, and training only a part: the rest stays as it was, and kept features are the right ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from holdfast import data, models
from holdfast.errors import ConfigError, ModelError
from holdfast.models.parts import Head, before_head, head_of, learn_only
from holdfast.training import features, parse, train
from holdfast.training.augment import prepared


def config(**changes):
    table = {
        "data": {"name": "fashion-mnist-mini", "validation": 0.1},
        "model": {"name": "small", "unit_norm": True, "dim": 8},
        "defence": {"name": "margin"},
        "train": {"steps": 12, "batch": 40, "copies": 1, **changes},
    }
    return parse(table)


def quiet(line):
    pass


def test_noise_is_gaussian_on_every_image_by_itself_and_not_clamped():
    pixels = torch.full((50, 1, 20, 20), 255, dtype=torch.uint8)
    torch.manual_seed(0)
    made = prepared(pixels, crop=0, flip=False, noise=0.25)
    assert (made - 1).std().item() == pytest.approx(0.25, abs=0.005)
    assert (made - 1).mean().item() == pytest.approx(0, abs=0.005)
    assert made.max() > 1.5
    assert not torch.equal(made[0], made[1])
    assert torch.equal(prepared(pixels, crop=0, flip=False, noise=0.0), torch.ones_like(made))
    assert prepared(made, crop=2, flip=True, noise=1.0) is made, "features had all that before"


@pytest.mark.parametrize("part", ["head", "last-blocks"])
def test_only_the_part_learns(part, tmp_path):
    torch.manual_seed(0)
    embedder = models.build("resnet18", spec=(3, 32, 32), dim=8)
    learn_only(embedder, part)
    before = {name: tensor.clone() for name, tensor in embedder.network.state_dict().items()}
    embedder.train()
    embedder(torch.rand(4, 3, 32, 32)).sum().backward()
    torch.optim.SGD([p for p in embedder.parameters() if p.requires_grad], 0.1).step()
    after = embedder.network.state_dict()
    changed = {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert changed == ({"fc"} if part == "head" else {"fc", "layer4"})


def test_features_are_what_the_head_gets():
    torch.manual_seed(0)
    embedder = models.build("resnet18", spec=(3, 32, 32), dim=8)
    images = torch.rand(3, 3, 32, 32)
    with before_head(embedder) as make:
        found = make(images)
    assert found.shape == (3, 512)
    embedder.eval()
    with torch.no_grad():
        assert torch.allclose(Head(embedder)(found), embedder(images), atol=1e-6)
    assert not head_of(embedder)._forward_pre_hooks, "nothing is left behind"
    rectified = models.build("small", spec=(1, 28, 28), dim=8, activation="relu")
    with before_head(rectified) as make, pytest.raises(ModelError, match="comes after the network's last"):
        make(torch.rand(2, 1, 28, 28))


def test_a_head_trains_on_kept_features_and_goes_on_where_it_stopped(tmp_path, monkeypatch):
    """The backbone keeps its first weights; a run stopped among its features ends with the same bits."""
    wanted = config(part="head", noise=0.1, steps=30)
    run = train(wanted, tmp_path / "whole", say=quiet)
    assert not (tmp_path / "whole" / features.FEATURES).exists()
    fresh = train(config(steps=1), tmp_path / "fresh", say=quiet)
    first, last = (e.embedder.network.state_dict() for e in (fresh, run))
    untouched = train(config(part="head", steps=1), tmp_path / "one", say=quiet).embedder.network.state_dict()
    assert torch.equal(untouched["0.weight"], last["0.weight"])
    assert not torch.equal(first["0.weight"], last["0.weight"]), "which training the whole changes"
    assert not torch.equal(untouched["embedding.weight"], last["embedding.weight"])
    assert run.metrics["hit_rate_1"] > 0.4

    made = features.prepared
    calls = iter(range(1000))

    def interrupted(*args, **more):
        if next(calls) == 20:
            raise KeyboardInterrupt
        return made(*args, **more)

    monkeypatch.setattr(features, "prepared", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(wanted, tmp_path / "stopped", say=quiet)
    monkeypatch.setattr(features, "prepared", made)
    again = train(wanted, tmp_path / "stopped", say=quiet).embedder.network.state_dict()
    for name, tensor in last.items():
        assert torch.equal(tensor, again[name]), name


def test_features_of_other_images_are_not_gone_on_with(tmp_path):
    torch.manual_seed(0)
    embedder = models.build("small", spec=(1, 28, 28), dim=8)
    images = data.load("fashion-mnist-mini").train
    section = config(part="head", copies=1).train
    features.cached_features(embedder, images.take(np.arange(64)), section, 0, tmp_path)
    kept = features.cached_features(embedder, images.take(np.arange(64, 192)), section, 0, tmp_path)
    again = features.clean_features(embedder, images.take(np.arange(64, 192)))
    assert torch.allclose(kept.batch(np.arange(128)), again, atol=1e-5)


def test_a_head_begins_with_the_principal_components_of_its_features(tmp_path):
    torch.manual_seed(0)
    embedder = models.build("small", spec=(1, 28, 28), dim=8)
    images = data.load("fashion-mnist-mini").train.take(np.arange(300))
    kept = features.cached_features(
        embedder, images, config(part="head", noise=0.1, copies=2).train, 0, tmp_path
    )
    rows = np.concatenate([np.asarray(copy) for copy in kept._rows]).astype(np.float64)
    assert np.array_equal(kept.some(10**6), rows.astype(np.float32))
    assert np.array_equal(kept.some(300), rows[::2].astype(np.float32))
    head = torch.nn.Linear(rows.shape[1], 8)
    features.begin_with_components(head, kept)
    made = head(torch.from_numpy(rows).float()).detach().double().numpy()
    assert made.mean(0) == pytest.approx(np.zeros(8), abs=1e-3)
    spread = np.linalg.svd(rows - rows.mean(0), compute_uv=False)[:8]
    assert np.linalg.norm(made, axis=0) == pytest.approx(spread, rel=0.02)
    few = features.Features(np.ascontiguousarray(kept._rows[:, :, :20]))
    wide = torch.nn.Linear(20, 22)
    random = wide.weight.detach().clone()
    features.begin_with_components(wide, few)
    assert torch.equal(wide.weight[-2:], random[-2:])
    assert torch.allclose(wide.weight[:20] @ wide.weight[:20].T, torch.eye(20), atol=1e-5)


def test_kept_copies_are_noisy_versions_of_their_own_image(tmp_path):
    torch.manual_seed(0)
    embedder = models.build("small", spec=(1, 28, 28), dim=8)
    images = data.load("fashion-mnist-mini").train.take(np.arange(100))
    section = config(part="head", noise=0.02, copies=3).train
    kept = features.cached_features(embedder, images, section, 0, tmp_path)
    clean = features.clean_features(embedder, images)
    assert len(kept) == 100
    torch.manual_seed(1)
    drawn = kept.batch(np.arange(100))
    assert torch.cdist(drawn, clean).argmin(1).tolist() == list(range(100))
    assert not torch.equal(drawn, kept.batch(np.arange(100))), "another copy each time"


def test_what_cannot_be_is_said(tmp_path):
    with pytest.raises(ModelError, match="take head or all"):
        train(config(part="last-blocks"), tmp_path / "a", say=quiet)
    with pytest.raises(ConfigError, match=r"train\.noise is for triplet and margin"):
        train(parse({"defence": {"name": "tbt"}, "train": {"noise": 0.1}}), tmp_path / "b", say=quiet)
    with pytest.raises(ConfigError, match="part 'head' is for triplet and margin"):
        train(parse({"defence": {"name": "hm"}, "train": {"part": "head"}}), tmp_path / "c", say=quiet)
    assert not list(tmp_path.iterdir())
