"""The loop: what a step does, and that a stopped run goes on to the same bits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.errors import CheckpointError, RunError
from holdfast.models import to_unit
from holdfast.spec import ImageSpec
from holdfast.training import loop
from holdfast.training.augment import augment
from holdfast.training.config import TrainSection, parse
from holdfast.training.defences import DEFENCES, build_defence
from holdfast.training.defences.bounded import Bounded
from holdfast.training.log import Log, read_log
from holdfast.training.loop import LOG, STATE
from holdfast.training.schedules import learning_rate, ramp, smooth_ramp

SPEC = ImageSpec(1, 12, 12)
PLAIN = sorted(set(DEFENCES) - {"fctb"})
"""Those that train from scratch on labels."""
MORE = {
    "attacked": {"attacked": 0.5, "attack_steps": 2},
    "small": {"box_share": 0.5, "attack_steps": 2},
    "regularised": {"regularise": 0.5, "ramp_end": 0.8},
}
VARIANTS = [f"certified-rank {more}" for more in MORE]
"""Options that draw and search on their own."""


class Images:
    def __init__(self) -> None:
        g = torch.Generator().manual_seed(0)
        self.labels = np.arange(60) % 3
        base = torch.randint(0, 256, (3, 1, 12, 12), generator=g)
        noise = torch.randint(-60, 60, (60, 1, 12, 12), generator=g)
        self.pixels = (base[self.labels] + noise).clamp(0, 255).to(torch.uint8)

    def __len__(self) -> int:
        return len(self.pixels)

    def batch(self, indices):
        return self.pixels[torch.as_tensor(indices)]


def network(bounded: bool = False) -> nn.Module:
    torch.manual_seed(5)
    if bounded:  # bounds are of a network without dropout
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(400, 8)
        )
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(400, 8)
    )


def options(name: str):
    two = {"parts": [{"name": "triplet"}, {"name": "triplet", "margin": 0.5}], "weights": [1.0, 0.5]}
    special = {"c-ibp": {"dim": 8}, "certified-rank": {"boxes": 8}, "mixed": two}
    name, _, more = name.partition(" ")
    return parse({"defence": {"name": name, **special.get(name, {}), **MORE.get(more, {})}}).defence


def run(folder: Path, defence: str = "triplet", **settings):
    folder.mkdir(parents=True, exist_ok=True)
    images, model = Images(), network(issubclass(DEFENCES[defence.partition(" ")[0]], Bounded))
    made = TrainSection(
        **{
            "steps": 12,
            "batch": 16,
            "crop": 2,
            "flip": True,
            "log_every": 1,
            "checkpoint_seconds": 0,
            **settings,
        }
    )
    outcome = fit(
        model, images, images.labels, build_defence(options(defence), 3), made, seed=1, folder=folder
    )
    return model, outcome


def fit(model, images, labels, defence, settings, **rest):
    sampler = defence.sampler(labels, settings.batch, rest["seed"])
    return loop.fit(model, images, labels, sampler, defence, settings, **rest)


def weights(model: nn.Module) -> bytes:
    return b"".join(value.detach().numpy().tobytes() for value in model.state_dict().values())


def stable(records):
    return [{k: v for k, v in r.items() if k != "seconds"} for r in records]


@pytest.mark.parametrize("defence", PLAIN)
def test_classes_come_apart(tmp_path, defence):
    run(tmp_path, defence, steps=60, lr=3e-3, crop=0, flip=False)
    seen = [r["separability"] for r in read_log(tmp_path / LOG) if "loss" in r]
    assert np.mean(seen[-10:]) > min(np.mean(seen[:5]) + 0.2, 0.75)


@pytest.mark.parametrize("defence", [*PLAIN, *VARIANTS])
def test_resumed_run_ends_with_the_same_bits(tmp_path, defence, monkeypatch):
    whole, _ = run(tmp_path / "whole", defence)

    saved, count = loop.save_state, 0

    def dies(*args):
        nonlocal count
        saved(*args)
        count += 1
        if count == 5:
            raise SystemExit

    monkeypatch.setattr(loop, "save_state", dies)
    with pytest.raises(SystemExit):
        run(tmp_path / "stopped", defence)
    monkeypatch.setattr(loop, "save_state", saved)
    resumed, outcome = run(tmp_path / "stopped", defence)
    assert outcome.finished
    assert weights(resumed) == weights(whole)
    assert stable(read_log(tmp_path / "stopped" / LOG)) == stable(read_log(tmp_path / "whole" / LOG))


CHILD = """
import sys, pathlib
sys.path.insert(0, sys.argv[2])
import torch
torch.set_num_threads(1)
from test_loop import run
run(pathlib.Path(sys.argv[1]), steps=400)
"""


def test_sigkill_at_any_moment_then_resume(tmp_path):
    here = str(Path(__file__).parent)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        whole, _ = run(tmp_path / "whole", steps=400)
        killed = 0
        for attempt in range(20):
            child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path / "killed"), here])
            state = tmp_path / "killed" / STATE
            before = state.stat().st_mtime_ns if state.exists() else 0
            while child.poll() is None:
                if state.exists() and state.stat().st_mtime_ns != before:
                    time.sleep(0.11 + 0.013 * attempt)
                    os.kill(child.pid, signal.SIGKILL)
                    break
                time.sleep(0.002)
            if child.wait() == 0:
                break
            killed += 1
            if killed == 3:
                break
        assert killed >= 1
        resumed, outcome = run(tmp_path / "killed", steps=400)
    finally:
        torch.set_num_threads(threads)
    assert outcome.finished
    assert weights(resumed) == weights(whole)
    assert [r["step"] for r in read_log(tmp_path / "killed" / LOG)] == list(range(1, 401))


def test_interrupt_stops_after_a_step_and_keeps_the_state(tmp_path):
    class Interrupting(Images):
        def batch(self, indices):
            self.calls = getattr(self, "calls", 0) + 1
            if self.calls == 4:
                os.kill(os.getpid(), signal.SIGINT)
            return super().batch(indices)

    images = Interrupting()
    settings = TrainSection(steps=12, batch=16, log_every=1)
    model = network()
    before = signal.getsignal(signal.SIGINT)  # ignored where the tests run in the background
    outcome = fit(
        model, images, images.labels, build_defence(options("triplet"), 3), settings, seed=1, folder=tmp_path
    )
    assert (outcome.step, outcome.finished) == (4, False)
    assert (tmp_path / STATE).exists()
    assert signal.getsignal(signal.SIGINT) is before


def test_nan_loss_is_one_clear_error(tmp_path):
    with pytest.raises(RunError, match="the loss became nan"):
        run(tmp_path, lr=1e30, steps=30)


def test_damaged_state_is_refused(tmp_path):
    run(tmp_path, steps=2)
    state = tmp_path / STATE
    state.write_bytes(state.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="cannot resume"):
        run(tmp_path, steps=4)


def test_a_state_of_other_images_is_refused(tmp_path):
    images = Images()
    for data, steps in (("one", 3), ("other", 6)):
        arguments = (network(), images, images.labels, build_defence(options("triplet"), 3))
        settings = TrainSection(steps=steps, batch=16)
        if data == "one":
            fit(*arguments, settings, seed=0, folder=tmp_path, data=data)
        else:
            with pytest.raises(RunError, match="other images"):
                fit(*arguments, settings, seed=0, folder=tmp_path, data=data)


def test_collapse_is_said(tmp_path):
    class Collapsing(nn.Linear):
        def forward(self, x):
            self.calls = getattr(self, "calls", 0) + 1
            return super().forward(x.flatten(1)) * (1.0 if self.calls < 5 else 1e-9)

    images, lines = Images(), []
    fit(
        Collapsing(144, 4),
        images,
        images.labels,
        build_defence(options("triplet"), 3),
        TrainSection(steps=8, batch=16, log_every=1),
        seed=0,
        folder=tmp_path,
        warn=lines.append,
    )
    assert "step 5: the embedding has collapsed" in lines[0]


def test_log_drops_what_the_checkpoint_does_not_know(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"st')
    Log(path, step=2).write(step=3, loss=0.5)
    assert [r["step"] for r in read_log(path)] == [1, 2, 3]
    assert read_log(path)[-1]["loss"] == 0.5


def test_global_generator_is_left_alone(tmp_path):
    torch.manual_seed(9)
    want = torch.rand(3)
    torch.manual_seed(9)
    state = torch.get_rng_state()
    model = network()
    torch.set_rng_state(state)
    images = Images()
    fit(
        model,
        images,
        images.labels,
        build_defence(options("triplet"), 3),
        TrainSection(steps=2, batch=16),
        seed=0,
        folder=tmp_path,
    )
    assert torch.equal(torch.rand(3), want)
    assert not torch.are_deterministic_algorithms_enabled()


def test_augment_shifts_and_mirrors_whole_images():
    torch.manual_seed(0)
    images = (
        torch.arange(2 * 64 * 3, dtype=torch.int64).reshape(2, 3, 8, 8).to(torch.uint8).repeat(50, 1, 1, 1)
    )
    out = augment(images, crop=2, flip=True)
    assert out.shape == images.shape
    assert out.dtype == torch.uint8
    padded = nn.functional.pad(images.float(), (2, 2, 2, 2), mode="replicate").to(torch.uint8)
    kinds = set()
    for before, after in zip(padded, out, strict=True):
        options = {
            (i, j, m): (before[:, i : i + 8, j : j + 8].flip(2) if m else before[:, i : i + 8, j : j + 8])
            for i in range(5)
            for j in range(5)
            for m in (False, True)
        }
        found = [key for key, value in options.items() if torch.equal(value, after)]
        assert found
        kinds.add(found[0])
    assert len(kinds) > 25
    assert to_unit(torch.tensor([0, 255], dtype=torch.uint8)).tolist() == [0.0, 1.0]
    assert torch.equal(augment(images, crop=0, flip=False), images)


def test_schedules_by_hand():
    assert learning_rate("constant", 0.7) == 1.0
    assert learning_rate("steps", 0.5, milestones=(0.25, 0.5, 0.9), decay=0.1) == pytest.approx(0.01)
    assert learning_rate("cosine", 0.0, final=0.02) == pytest.approx(1.0)
    assert learning_rate("cosine", 0.5, final=0.0) == pytest.approx(0.5)
    assert [ramp(x, 0.2, 0.6, 1.0, 0.5) for x in (0.1, 0.4, 0.9)] == pytest.approx([1.0, 0.75, 0.5])
    # Up to 0.4 of the ramp the fourth power, 1/7 there; then a line to 1, at the same slope.
    grown = [smooth_ramp(x, 0.2, 0.7, 7.0) for x in (0.1, 0.2, 0.3, 0.4, 0.55, 0.7, 0.9)]
    assert grown == pytest.approx([0.0, 0.0, 1 / 16, 1.0, 4.0, 7.0, 7.0])
    slopes = [(smooth_ramp(0.4 + h, 0.2, 0.7, 7.0) - 1) / h for h in (-1e-6, 1e-6)]
    assert slopes[0] == pytest.approx(slopes[1], rel=1e-4)


def test_a_run_can_end_with_the_mean_of_its_weights(tmp_path):
    seen = []

    class Steps(loop.Average):
        def follow(self, network, step):
            super().follow(network, step)
            seen.append((step, [p.detach().clone() for p in network.parameters()]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "Average", Steps)
        model, _ = run(tmp_path / "mean", average=0.6)
    # By hand: shares s/(s + 9) of the mean, and no more than 0.6, are kept.
    mean = [p.detach().clone() for p in network(False).parameters()]
    for step, weights_then in seen:
        keep = min(0.6, step / (step + 9))
        mean = [keep * old + (1 - keep) * new for old, new in zip(mean, weights_then, strict=True)]
    for mine, by_hand, last in zip(model.parameters(), mean, seen[-1][1], strict=True):
        torch.testing.assert_close(mine, by_hand, atol=1e-6, rtol=1e-5)
        assert not torch.equal(mine, last)


def test_a_resumed_mean_has_the_same_bits(tmp_path, monkeypatch):
    whole, _ = run(tmp_path / "whole", average=0.9)
    saved = loop.save_state

    def dies(*args):
        saved(*args)
        if args[-1]["step"] == 7:
            raise KeyboardInterrupt

    monkeypatch.setattr(loop, "save_state", dies)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", average=0.9)
    monkeypatch.undo()
    again, _ = run(tmp_path / "cut", average=0.9)
    assert weights(again) == weights(whole)
    finished, _ = run(tmp_path / "cut", average=0.9)
    assert weights(finished) == weights(whole), "a run that was killed after its last step ends alike"
