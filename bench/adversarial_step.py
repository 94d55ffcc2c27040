"""A step of adversarial training against the bare gradients in it, in the best layout and precision of this machine.

ACT, HM and CA-TRIDE on C2F2 (28 pixels, 128 pairs), ACT on efficientnet-lite0 and resnet18 (96 pixels, 8 pairs),
early stop off. The floor is what cannot be left out, on ready tensors with a bare loss: the input gradients of the
images that move, the forward and backward of the images in the loss, and for semi-hard negatives (HM, CA-TRIDE) the
forward of the clean batch; the fastest of float32 and bfloat16, rows and channels last. Ours also chooses triplets,
keeps a log, steps the optimiser and saves its state. Processor time of one thread; the two take turns.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from _common import report

# isort: split
import numpy as np
import torch

from holdfast import data, models
from holdfast.data import ImageSet
from holdfast.spec import ImageSpec
from holdfast.training.arithmetic import Computed, Precision, channels_last, choose
from holdfast.training.config import TrainSection, parse
from holdfast.training.defences import build_defence
from holdfast.training.loop import fit

ROUNDS, STEPS = 3, 4
CASES: dict[str, dict[str, tuple[dict[str, object], tuple[int, int], int]]] = {
    "c2f2": {
        "act": ({"sampling": "random", "attack_steps": 8}, (2, 2), 3),
        "hm": ({"attack_steps": 8}, (3, 3), 5),
        "ca-tride": ({"attack_steps": 8}, (2, 1), 3),
    },
    "efficientnet-lite0": {"act": ({"sampling": "random", "attack_steps": 8}, (2, 2), 3)},
    "resnet18": {"act": ({"sampling": "random", "attack_steps": 8}, (2, 2), 3)},
}
"""By network and defence: settings, how many images of a triplet move in turn, how many are in the loss."""


def main() -> int:
    torch.set_num_threads(1)
    shares = []
    for name, defences in CASES.items():
        small = name == "c2f2"
        images = data.load("fashion-mnist-mini").train if small else Photographs()
        pairs = 128 if small else 8
        torch.manual_seed(0)
        embedder = models.build(name, spec=images.spec, unit_norm=True)
        embedder.freeze_batch_norm = True
        for defence, (settings, moving, trained) in defences.items():
            shares.append(compared(embedder, images, pairs, defence, settings, moving, trained))
    against = "the bare gradients of the same images, in the best layout and precision; the worst case"
    return 0 if report("adversarial_step", min(shares), 0.85, "higher", against) else 1


class Photographs:
    """Pictures of 96 × 96 pixels in colour, 8 classes: the values of pixels do not change the time."""

    spec = ImageSpec(3, 96, 96)
    labels = np.arange(64) // 8

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self._pixels = torch.from_numpy(rng.integers(0, 256, (64, *self.spec.shape), dtype=np.uint8))

    def __len__(self) -> int:
        return len(self._pixels)

    def batch(self, indices: torch.Tensor) -> torch.Tensor:
        return self._pixels[indices]


def compared(
    embedder: models.Embedder,
    images: ImageSet | Photographs,
    pairs: int,
    name: str,
    settings: dict[str, object],
    moving: tuple[int, int],
    trained: int,
) -> float:
    """Our gradients a second over the floor's."""
    labels = images.labels
    assert labels is not None
    options = parse({"defence": {"name": name, "eps": 0.05, "early_stop": False, **settings}}).defence
    section = TrainSection(steps=STEPS, batch=2 * pairs, freeze_batch_norm=True)
    defence = build_defence(options, 10)
    sampler = defence.sampler(labels, 2 * pairs, 0)
    pixels = images.batch(sampler.indices(0)).float() / 255
    arithmetic = choose(embedder, pixels, "auto", defence.lower, None, 0, say=print)
    search = options.attack_steps  # type: ignore[attr-defined]

    def ours() -> None:
        with tempfile.TemporaryDirectory() as folder, channels_last(embedder):
            place = Path(folder)
            fit(
                embedder,
                images,
                labels,
                sampler,
                defence,
                section,
                seed=0,
                folder=place,
                arithmetic=arithmetic,
            )

    rows = pixels.repeat(3, 1, 1, 1)

    def bare(precision: Precision, last: bool) -> Callable[[], None]:
        model = Computed(embedder, precision)

        def steps() -> None:
            embedder.train()
            for step in range(STEPS):
                first = rows[: moving[step % 2] * pairs]
                order = torch.channels_last if last else torch.contiguous_format
                at = first.contiguous(memory_format=order).requires_grad_()
                if options.sampling == "semi-hard":  # type: ignore[attr-defined]
                    with torch.no_grad():
                        model(pixels)
                for _ in range(search):
                    torch.autograd.grad(model(at).sum(), at)
                model(rows[: trained * pairs]).square().sum().backward()
                embedder.zero_grad(set_to_none=True)

        def ordered() -> None:
            if not last:
                steps()
                return
            with channels_last(embedder):
                steps()

        return ordered

    timed = {
        "ours": ours,
        "float32": bare("float32", False),
        "float32, channels last": bare("float32", True),
        "bfloat16": bare("bfloat16", False),
        "bfloat16, channels last": bare("bfloat16", True),
    }
    spent: dict[str, list[float]] = {way: [] for way in timed}
    for turn in range(ROUNDS + 1):
        for way, run in timed.items():
            start = time.process_time()
            run()
            if turn:
                spent[way].append(time.process_time() - start)
    seconds = {way: statistics.median(values) for way, values in spent.items()}
    count = sum(pairs * (search * moving[step % 2] + trained) for step in range(STEPS))
    best = min((way for way in timed if way != "ours"), key=lambda way: seconds[way])
    share = seconds[best] / seconds["ours"]
    print(
        f"{embedder.architecture['name']}, {name}: {count / seconds['ours']:.0f} gradients a second, "
        f"bare {count / seconds[best]:.0f} ({best}): {share:.2f}"
    )
    return share


if __name__ == "__main__":
    sys.exit(main())
