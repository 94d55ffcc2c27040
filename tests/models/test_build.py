from __future__ import annotations

from typing import Any

import pytest
import torch

from holdfast.errors import ModelError
from holdfast.models import MODELS, build


@pytest.mark.parametrize(
    ("name", "options", "found"),
    [
        (
            "smal",
            {},
            "unknown model 'smal'; known: c2f2, cnn7-narrow, efficientnet-lite0, efficientnet-lite1, ",
        ),
        ("c2f2", {"wide": 2}, "unknown option 'wide'; c2f2 has no options"),
        ("c2f2", {"pretrained": True}, "unknown option 'pretrained'; c2f2 has no options"),
        ("resnet18", {"haed": "linear"}, "unknown option of resnet18 'haed'; known: head"),
        ("efficientnet-lite0", {"haed": "none"}, "known: head, pretrained"),
        ("resnet18", {"head": "mlp"}, "head is one of linear, none, not 'mlp'"),
        ("resnet18", {"head": "none", "dim": 100}, "without a head has 512 dimensions, not 100"),
        ("efficientnet-lite0", {"pretrained": "yes"}, "pretrained is true or false, not 'yes'"),
        ("efficientnet-lite0", {"pretrained": True, "weights": "x"}, "not both"),
        ("small", {"dim": 0}, "at least 1 dimension, not 0"),
        ("small", {"dim": 1.5}, "at least 1 dimension, not 1.5"),
        ("small", {"dim": True}, "at least 1 dimension, not True"),
        ("small", {"mean": (0.5, 0.5)}, "2 values for images with 3 channels"),
    ],
)
def test_bad_requests_are_one_clear_line(name: str, options: dict[str, Any], found: str) -> None:
    with pytest.raises(ModelError) as error:
        build(name, spec=(3, 32, 32), **options)
    assert found in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", [name for name in MODELS if MODELS[name].colour_only])
def test_backbones_for_colour_refuse_grey(name: str) -> None:
    with pytest.raises(
        ModelError, match=f"{name} takes colour images, not 1x32x32; read the images in colour"
    ):
        build(name, spec=(1, 32, 32))


@pytest.mark.parametrize("name", ["small", "resnet18"])
def test_the_random_state_decides_the_weights(name: str) -> None:
    def make(seed: int) -> str:
        torch.manual_seed(seed)
        return build(name, spec=(3, 32, 32), dim=4).fingerprint()

    assert make(1) == make(1)
    assert make(1) != make(2)


def test_options_reach_the_embedder() -> None:
    embedder = build(
        "resnet18", spec=(3, 32, 32), dim=7, unit_norm=False, freeze_batch_norm=True, mean=0, std=1
    )
    assert (embedder.dim, embedder.unit_norm) == (7, False)
    assert embedder.architecture == {"name": "resnet18", "head": "linear"}
    assert embedder.pixels is not None
    assert embedder.pixels.mean == (0.0, 0.0, 0.0)
    assert embedder.training
    assert not embedder.get_submodule("network.bn1").training
