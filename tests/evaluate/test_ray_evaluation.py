"""Evaluations on a real Ray cluster of two workers: the same rows, also when a worker is killed on the way."""

from __future__ import annotations

import importlib.util
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from holdfast.attacks import Settings
from holdfast.certify.smoothing import parse_smoothing
from holdfast.errors import ModelError, RunError
from holdfast.evaluate import cluster
from holdfast.evaluate import suite as suite_module
from holdfast.evaluate.certify import certify
from holdfast.evaluate.er_recall import er_recall
from holdfast.evaluate.smoothing import certify_smoothed
from holdfast.evaluate.suite import attack_suite
from holdfast.models import wrap
from holdfast.threat import Threat

if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed", allow_module_level=True)
DRAWN = {"queries": 40, "candidates": 60}
HERE = os.getpid()


class Net(nn.Module):
    """A small network that, on a worker, does what a file named `trap` says, once."""

    def __init__(self, trap):
        super().__init__()
        torch.manual_seed(0)
        self.trap = str(trap)
        self.home = HERE
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, images):
        trap = Path(self.trap)
        # Of two workers one takes it, not while it asks which network it has.
        if os.getpid() != self.home and trap.exists() and not isinstance(images, torch.fx.Proxy):
            taken = trap.with_name(f"taken-{os.getpid()}")
            try:
                trap.rename(taken)
            except FileNotFoundError:
                return self.layers(images)
            order = taken.read_text()
            if order == "fail":
                raise ModelError("the network says no; ask another one")
            time.sleep(60)
        return self.layers(images)


@pytest.fixture(scope="module")
def said():
    return []


@pytest.fixture(scope="module")
def two(said):
    """Two workers, started once, that know the networks of this file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        spread = cluster.RaySpread("ray", 2, memory=200 << 20, say=said.append)
        spread.ready()
        yield spread
        spread.close()


@pytest.fixture
def trap(tmp_path):
    return tmp_path / "trap"


@pytest.fixture
def embedder(trap, photos):
    return wrap(Net(trap), photos.spec).eval()


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(suite_module, "BLOCK", 10)


def suite(embedder, photos, out, **options):
    quick = Settings(steps=3, budget=46)
    return attack_suite(
        embedder,
        photos.take(range(200)),
        out,
        Threat.parse("linf:0.05"),
        attacks="qa+,gtm",
        settings=quick,
        check_black_box=2,
        **DRAWN,
        **options,
    )


def same(one, other):
    names = {path.name for path in one.iterdir()}
    assert names == {path.name for path in other.iterdir()}
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def test_rows_are_those_of_one_process(two, embedder, photos, tmp_path):
    suite(embedder, photos, tmp_path / "suite")
    suite(embedder, photos, tmp_path / "suite-ray", spread=two)
    same(tmp_path / "suite", tmp_path / "suite-ray")
    threats = [Threat.parse(text) for text in ("query:linf:0.001", "candidates:linf:0.001")]
    torch.manual_seed(0)
    network = wrap(nn.Sequential(nn.Flatten(), nn.Linear(784, 16)), photos.spec).eval()
    proved = certify(network, photos, tmp_path / "certify", threats, **DRAWN)
    certify(network, photos, tmp_path / "certify-ray", threats, **DRAWN, spread=two)
    same(tmp_path / "certify", tmp_path / "certify-ray")
    assert proved.rows.columns["hit_10"].any()
    how = parse_smoothing("sigma=0.1,n=64,first=32,gallery=32,bound=100")
    for place, options in (("smooth", {}), ("smooth-ray", {"spread": two})):
        certify_smoothed(
            embedder, photos, tmp_path / place, how, queries=4, candidates=20, attacks=[0.2], **options
        )
    same(tmp_path / "smooth", tmp_path / "smooth-ray")
    for place, options in (("er", {}), ("er-ray", {"spread": two})):
        er_recall(
            embedder,
            photos,
            tmp_path / place,
            [Threat.parse("candidates:linf:0.1")],
            ca_queries=12,
            sources=5,
            settings=Settings(steps=2),
            **DRAWN,
            **options,
        )
    same(tmp_path / "er", tmp_path / "er-ray")


def test_the_block_of_a_killed_worker_is_computed_again(two, said, embedder, photos, trap, tmp_path, capsys):
    suite(embedder, photos, tmp_path / "whole")
    killed = []

    def kill():
        """SIGKILL for the worker that waits in the middle of a block."""
        until = time.monotonic() + 60
        while not killed and time.monotonic() < until:
            for taken in tmp_path.glob("taken-*"):
                killed.append(int(taken.name.partition("-")[2]))
                os.kill(killed[0], signal.SIGKILL)
            time.sleep(0.05)

    trap.write_text("wait")
    del said[:]
    killer = threading.Thread(target=kill)
    killer.start()
    suite(embedder, photos, tmp_path / "ray", spread=two)
    killer.join()
    assert killed != [os.getpid()]
    assert len(killed) == 1
    assert said == ["a worker was lost; its block is computed again (1 of 3 times)"]
    same(tmp_path / "whole", tmp_path / "ray")
    assert capsys.readouterr().out == ""


def test_interrupted_on_ray_it_ends_locally(two, embedder, photos, tmp_path, killed_at):
    suite(embedder, photos, tmp_path / "whole")
    with killed_at(3):
        suite(embedder, photos, tmp_path / "stopped", spread=two)
    assert not (tmp_path / "stopped" / "rows.csv.gz").exists()
    suite(embedder, photos, tmp_path / "stopped")
    same(tmp_path / "whole", tmp_path / "stopped")


def test_errors_come_with_their_line_and_leave_what_was_done(
    two, embedder, photos, trap, tmp_path, monkeypatch
):
    trap.write_text("fail")
    with pytest.raises(ModelError, match=r"^the network says no; ask another one$"):
        suite(embedder, photos, tmp_path / "s", spread=two)
    with monkeypatch.context() as patch:
        patch.setattr(cluster, "versions", lambda: {"torch": "0.1"})
        with pytest.raises(RunError, match=r"has torch .*, not 0\.1; have the same on all"):
            suite(embedder, photos, tmp_path / "s", spread=two)
    suite(embedder, photos, tmp_path / "s", spread=two)
    suite(embedder, photos, tmp_path / "whole")
    same(tmp_path / "whole", tmp_path / "s")


def test_a_block_that_kills_every_worker_ends_in_one_line(two, photos, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "LOSSES", 1)
    with pytest.raises(RunError, match=r"lost with its worker 2 times .*; what was done is kept"):
        suite(wrap(Deadly(), photos.spec).eval(), photos, tmp_path / "s", spread=two)


class Deadly(nn.Module):
    """It kills the process, unless that is the one where it was made."""

    def __init__(self):
        super().__init__()
        self.home = os.getpid()
        self.layer = nn.Linear(784, 8)

    def forward(self, images):
        if os.getpid() != self.home:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.layer(images.flatten(1))
