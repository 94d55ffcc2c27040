"""Real images, and a network whose certificates say something about them."""

from __future__ import annotations

import pytest

from holdfast import data
from holdfast.training import parse, train


@pytest.fixture(scope="session")
def photos():
    return data.load("fashion-mnist-mini").test


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A network whose bounds are tight enough to certify something after a few seconds of training."""
    config = parse(
        {
            "data": {"name": "fashion-mnist-mini", "validation": 0},
            "defence": {
                "name": "certified-rank",
                "eps": 0.05,
                "ramp_start": 0.02,
                "ramp_end": 0.5,
                "clean": 0.0,
            },
            "train": {"steps": 120, "batch": 160, "lr": 0.003, "clip": 10},
        }
    )
    return train(config, tmp_path_factory.mktemp("run") / "run", say=lambda line: None).embedder
