"""A triplet training step on `small`, against the bare forward + backward + optimiser step.

The bare step has its batch ready as floats and its triplets fixed; ours draws, gathers, augments,
mines, logs and watches for a stop.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from _common import alternate, report

STEPS = 100


def main() -> None:
    import torch

    from holdfast import data, models
    from holdfast.training.config import TrainSection, parse
    from holdfast.training.defences import build_defence
    from holdfast.training.loop import fit

    images = data.load("fashion-mnist-mini").train
    labels = images.require_labels("training")
    settings = TrainSection(steps=STEPS, batch=100)
    options = parse({}).defence

    def ours() -> None:
        with tempfile.TemporaryDirectory() as folder:
            embedder = models.build("small", spec=images.spec)
            defence = build_defence(options, 10)
            sampler = defence.sampler(labels, settings.batch, 0)
            fit(embedder, images, labels, sampler, defence, settings, seed=0, folder=Path(folder))

    batches = [images.batch(range(i, i + 100)).float() / 255 for i in range(0, 1000, 100)]

    def bare() -> None:
        embedder = models.build("small", spec=images.spec).train()
        optimiser = torch.optim.Adam(embedder.parameters(), fused=True)
        for step in range(STEPS):
            vectors = embedder(batches[step % len(batches)])
            near = (vectors[0::2] - vectors[1::2]).norm(dim=1)
            far = (vectors[0::2] - vectors[1::2].roll(1, 0)).norm(dim=1)
            loss = torch.relu(near - far + 1.0).mean()
            optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()

    seconds = alternate({"ours": ours, "bare": bare}, repeats=9)
    for name, value in seconds.items():
        print(f"{name}: {1000 * value / STEPS:.2f} ms a step")
    report("training_step", seconds["ours"] / seconds["bare"], 1.15, "lower", "bare step on ready tensors")


if __name__ == "__main__":
    main()
