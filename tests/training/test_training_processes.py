"""Two processes that train together end where one does."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from holdfast import models
from holdfast.errors import ConfigError
from holdfast.spec import ImageSpec
from holdfast.training import parse, processes, train
from holdfast.training.log import read_log

OPTIONS = {
    "ca-tride": [
        *("--batch", "22", "--set", "defence.attack_steps=2", "--set", "defence.attention=auto"),
        *("--precision", "float32"),
    ],
    "certified-rank": ["--batch", "55", "--set", "defence.boxes=10", "--set", "defence.eps=0.02"],
}


def run(folder, defence, launcher):
    command = [
        *launcher, "-m", "holdfast", "train", "--data", "fashion-mnist-mini", "--defence", defence, "--out",
        str(folder), "--steps", "5", "--set", "train.log_every=1", "--set", "train.optimiser=sgd",
        *OPTIONS[defence], "--json",
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HOLDFAST_PROGRESS": "0"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("defence", OPTIONS)
def test_two_processes_agree_with_one(defence, tmp_path):
    together = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run(tmp_path / "one", defence, [sys.executable])
    said = run(tmp_path / "two", defence, together)
    assert said["steps"] == 5, "one process speaks"
    one, two = (models.load(tmp_path / name) for name in ("one", "two"))
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
    logs = [read_log(tmp_path / name / "log.jsonl") for name in ("one", "two")]
    assert len(logs[0]) == len(logs[1])
    first = [next(record["loss"] for record in log if "loss" in record) for log in logs]
    assert first[0] == pytest.approx(first[1], rel=1e-5)


def test_batch_norm_must_be_frozen():
    embedder = models.build("resnet18", spec=ImageSpec(3, 32, 32))
    with pytest.raises(ConfigError, match="freeze_batch_norm"):
        processes.Sharded(embedder)
    embedder.freeze_batch_norm = True
    processes.Sharded(embedder)


def test_what_several_processes_refuse_leaves_the_folder_free(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "shared", processes.Sharded)
    config = parse(
        {
            "data": {"name": "fashion-mnist-mini"},
            "model": {"name": "cnn7-narrow"},
            "defence": {"name": "certified-rank", "boxes": 10},
            "train": {"steps": 1, "batch": 55},
        }
    )
    with pytest.raises(ConfigError, match="freeze_batch_norm"):
        train(config, tmp_path / "run", say=lambda line: None)
    assert not [entry for entry in (tmp_path / "run").iterdir() if not entry.name.startswith(".")]


def test_alone_nothing_is_shared():
    net = torch.nn.Linear(2, 2)
    assert processes.shared(net) is net
    assert processes.count() == 1
    assert processes.any_of(True)
    assert not processes.any_of(False)
