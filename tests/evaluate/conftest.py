"""Real images, and a network whose certificates say something about them."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from holdfast import data
from holdfast.rows import RowWriter
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


@pytest.fixture
def killed_at(monkeypatch):
    """A context in which the process is interrupted as it would write the block of rows of that number."""

    @contextmanager
    def at(number):
        append, calls = RowWriter.append, 0

        def dies(self, rows):
            nonlocal calls
            calls += 1
            if calls == number:
                raise KeyboardInterrupt
            append(self, rows)

        monkeypatch.setattr(RowWriter, "append", dies)
        with pytest.raises(KeyboardInterrupt):
            yield
        monkeypatch.setattr(RowWriter, "append", append)

    return at
