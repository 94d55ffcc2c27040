"""A certified-rank training step on `large`, against a plain triplet step on the same batch.

Both go through the loop: 224 images of 28 × 28, of which certified-rank bounds 80. Also printed: the step on `small`
and on `cnn7-narrow`, with batch norm that learns.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from _common import alternate, report

STEPS, BATCH = 3, 224


def main() -> None:
    from holdfast import data, models
    from holdfast.training.config import TrainSection, parse
    from holdfast.training.defences import build_defence
    from holdfast.training.loop import fit

    images = data.load("fashion-mnist-mini").train
    labels = images.require_labels("training")
    settings = TrainSection(steps=STEPS, batch=BATCH)

    def steps(model: str, defence: dict[str, object]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            embedder = models.build(model, spec=images.spec)
            made = build_defence(parse({"defence": defence}).defence, 10)
            made.prepare(embedder)
            sampler = made.sampler(labels, BATCH, 0)
            fit(embedder, images, labels, sampler, made, settings, seed=0, folder=Path(folder))

    certified: dict[str, object] = {"name": "certified-rank", "ramp_start": 0.0, "ramp_end": 0.0}
    work: dict[str, Callable[[], object]] = {
        "certified-rank": partial(steps, "large", certified),
        "triplet": partial(steps, "large", {"name": "triplet"}),
    }
    seconds = alternate(work, repeats=5)
    others = {name: partial(steps, name, certified) for name in ("small", "cnn7-narrow")}
    for name, value in (seconds | alternate(others, repeats=3)).items():
        print(f"{name}: {1000 * value / STEPS:.0f} ms a step")
    report(
        "certified_rank_step", seconds["certified-rank"] / seconds["triplet"], 3.0, "lower", "a triplet step"
    )


if __name__ == "__main__":
    main()
