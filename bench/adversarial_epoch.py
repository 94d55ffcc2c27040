"""CA-TRIDE's epoch against HM's, and each one's step against its floor of forwards and backwards.

C2F2 on the bundled Fashion-MNIST images at eps 77/255, the same batches; CA-TRIDE makes half of HM's PGD
steps (32 and 16, the papers' counts; `--search 8` for another), early stop off. An "epoch" is two batches:
a CAP and an ANP one. Half the steps on half the images is a quarter of the adversary's gradients; the loss
is on three images a triplet for CA-TRIDE and on five for HM, whose structure term needs two clean ones. The
floor of a step is what cannot be left out, on ready tensors with a bare loss: the clean forward, the input
gradients of the images that move, the forward and backward of the perturbed triplets, the optimiser.
Processor time.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from _common import report

EPS, BATCH, STEPS, SEARCH, ROUNDS = 77 / 255, 112, 2, 32, 3
PAIRS = BATCH // 2


def main() -> None:
    import torch

    from holdfast import data, models
    from holdfast.training.config import TrainSection, parse
    from holdfast.training.defences import build_defence
    from holdfast.training.loop import fit

    options = argparse.ArgumentParser()
    options.add_argument("--search", type=int, default=SEARCH, help="PGD steps of HM")
    steps = options.parse_args().search
    images = data.load("fashion-mnist-mini").train
    labels = images.require_labels("training")
    settings = TrainSection(steps=STEPS, batch=BATCH, freeze_batch_norm=True)
    pixels = images.batch(range(BATCH)).float() / 255

    def network() -> models.Embedder:
        torch.manual_seed(0)
        return models.build("c2f2", spec=images.spec, unit_norm=True)

    def ours(name: str, search: int) -> Callable[[], None]:
        table = {"name": name, "eps": EPS, "attack_steps": search, "early_stop": False}
        options = parse({"defence": table}).defence

        def epoch() -> None:
            with tempfile.TemporaryDirectory() as folder:
                defence = build_defence(options, 10)
                sampler = defence.sampler(labels, BATCH, 0)
                fit(network(), images, labels, sampler, defence, settings, seed=0, folder=Path(folder))

        return epoch

    def floor(moving: tuple[int, ...], search: int, trained: int) -> Callable[[], None]:
        """`moving`: how many of a triplet's images move, step by step; `trained` rows of pairs at the end."""

        def epoch() -> None:
            embedder = network()
            optimiser = torch.optim.Adam(embedder.parameters(), fused=True)
            for step in range(STEPS):
                count = moving[step % len(moving)] * PAIRS
                rows = pixels.repeat(3, 1, 1, 1)
                with torch.no_grad():
                    embedder(pixels)
                for _ in range(search):
                    at = rows[:count].clone().requires_grad_()
                    torch.autograd.grad(embedder(at).sum(), at)
                loss = embedder(rows[: trained * PAIRS]).square().mean()
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                optimiser.step()

        return epoch

    timed = {
        "hm": ours("hm", steps),
        "ca-tride": ours("ca-tride", steps // 2),
        "hm's floor": floor((3,), steps, 5),
        "ca-tride's floor": floor((2, 1), steps // 2, 3),
    }
    spent: dict[str, list[float]] = {name: [] for name in timed}
    for turn in range(ROUNDS + 1):
        for name, run in timed.items():
            start = time.process_time()
            run()
            if turn:
                spent[name].append(time.process_time() - start)
    seconds = {name: statistics.median(values) for name, values in spent.items()}
    for name, value in seconds.items():
        print(f"{name}: {1000 * value / STEPS:.0f} ms of processor time a step")
    for name in ("hm", "ca-tride"):
        ratio = seconds[name] / seconds[f"{name}'s floor"]
        report(f"adversarial_step ({name})", ratio, 1.15, "lower", "its forwards and backwards alone")
    ratio = seconds["ca-tride"] / seconds["hm"]
    report("adversarial_epoch", ratio, 0.35, "lower", "an epoch of HM at twice the PGD steps")


if __name__ == "__main__":
    main()
