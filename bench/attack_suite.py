"""The suite of ERS and ARS on real images, against its floor: its gradient evaluations at their bare cost.

C2F2, 1,000 Fashion-MNIST queries, a gallery of 10,000, 32 steps. For each attack the bare cost of a
gradient (forward, objective with its product with the gallery, input gradient, in the suite's batch) is
taken before and after the suite, in processor time. Beside gradients the suite embeds, draws targets,
projects, keeps the best iterate, ranks every altered image against the whole gallery, and writes rows.
`--queries 100` takes a tenth of the time.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from _common import report

CANDIDATES, STEPS, BLOCK, BARE = 10_000, 32, 100, 3


def main() -> None:
    import torch

    from holdfast import data, models
    from holdfast.attacks import Settings, objective
    from holdfast.evaluate.attacked import set_scene
    from holdfast.evaluate.folder import SUITE, Task
    from holdfast.evaluate.suite import attack_suite
    from holdfast.evaluate.trials import ERS, make_trials
    from holdfast.spec import ImageSpec
    from holdfast.threat import Threat

    options = argparse.ArgumentParser()
    options.add_argument("--queries", type=int, default=1000)
    queries = options.parse_args().queries
    torch.manual_seed(0)
    embedder = models.build("c2f2", spec=ImageSpec(1, 28, 28)).eval()
    for weight in embedder.parameters():
        weight.requires_grad_(False)
    images = data.load("fashion-mnist").train
    asked, found = data.draw(images, queries, CANDIDATES, seed=0)

    with tempfile.TemporaryDirectory() as scratch:
        task = Task(Path(scratch), SUITE, embedder, images, {"seed": 0})
        scene = set_scene(task, asked, found)

        def bare(name: str) -> float:
            """Processor seconds of one image's gradient."""
            trials = make_trials(scene, scene.gallery, name, 0, range(min(BLOCK, queries)))
            pixels = scene.images.batch(trials.altered).float() / 255
            wish = objective(name, trials.given).bind(slice(0, len(pixels)), trials.clean)
            seconds = []
            for _ in range(BARE + 1):
                start = time.process_time()
                at = pixels.clone().requires_grad_()
                torch.autograd.grad(wish.loss(embedder(at)).sum(), at)
                seconds.append((time.process_time() - start) / len(pixels))
            return statistics.median(seconds[1:])

        before = {name: bare(name) for name in ERS}
        start, wall = time.process_time(), time.perf_counter()
        done = attack_suite(
            embedder,
            images,
            Path(scratch) / "suite",
            Threat.parse("linf:8/255"),
            queries=queries,
            candidates=CANDIDATES,
            settings=Settings(steps=STEPS),
        )
        spent, wall = time.process_time() - start, time.perf_counter() - wall
        after = {name: bare(name) for name in ERS}
    columns, floor = done.rows.columns, 0.0
    for name in ERS:
        gradients = int(columns["gradients"][columns["attack"] == name].sum())
        cost = (before[name] + after[name]) / 2
        floor += gradients * cost
        print(f"{name}: {gradients:,} gradients at {1e3 * cost:.2f} ms")
    print(f"{queries:,} queries: {spent:.0f} s of processor time, {wall:.0f} s in all; floor {floor:.0f} s")
    report("attack_suite", spent / floor, 1.3, "lower", "gradient evaluations × their bare cost")


if __name__ == "__main__":
    main()
