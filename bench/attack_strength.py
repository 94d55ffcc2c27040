"""Every attack by our PGD, against plain last-iterate PGD at as many gradients: what the attacker counts.

The same network (C2F2, briefly trained on the bundled images), images, targets, eps and 32 gradient
evaluations a start. The plain form is written here from its definition: equal signed steps of 3/255 from
the clean image (for es from a point beside it), the last one kept; with restarts also from random points
of the box, the best of the last ones kept. Scores are shares of ranks, hits, cosines and shifts; less is
better for the attacker, and the gain is plain − ours, image by image. At the end, for three starts each
and for one: the lower end of the 95 % interval of the mean over attacks, and the least gain of any attack.
"""

from __future__ import annotations

import tempfile
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from _common import report

if TYPE_CHECKING:
    from torch import Tensor

    from holdfast.attacks import Objective
    from holdfast.models import Embedder

STEPS, STEP, QUERIES, TRAINING, STARTS = 32, 3 / 255, 48, 150, 3


def plain(embedder: Embedder, wanted: Objective, images: Tensor, eps: float, starts: int) -> Tensor:
    import torch

    wish = wanted.bind(slice(0, len(images)), embedder(images).detach())
    best = torch.full((len(images),), torch.inf)
    for start in range(starts):
        x, share = images.clone(), 1.0 if start else 0.01 * wanted.nudge
        noise = torch.rand(images.shape, generator=torch.Generator().manual_seed(1 + start)) * 2 - 1
        x = (x + share * eps * noise).clamp(0, 1)
        for _ in range(STEPS):
            x.requires_grad_()
            (gradient,) = torch.autograd.grad(wish.loss(embedder(x)).sum(), x)
            x = (x.detach() - STEP * gradient.sign()).clamp(images - eps, images + eps).clamp(0, 1)
        best = torch.minimum(best, wish.assess(embedder(x).detach()).score.float())
    return best


def interval(gain: Tensor) -> tuple[float, float]:
    """95 % of the means of resampled images."""
    import torch

    drawn = torch.randint(len(gain), (2000, len(gain)), generator=torch.Generator().manual_seed(0))
    low, high = gain[drawn].mean(1).quantile(torch.tensor([0.025, 0.975], dtype=gain.dtype)).tolist()
    return low, high


def main() -> None:
    import torch

    from holdfast import data, models
    from holdfast.attacks import (
        OBJECTIVES,
        Attack,
        Candidates,
        Given,
        Pgd,
        er_sources,
        near_targets,
        objective,
    )
    from holdfast.attacks import random_targets as drawn
    from holdfast.threat import Threat
    from holdfast.training.config import TrainSection, parse
    from holdfast.training.defences import build_defence
    from holdfast.training.loop import fit

    torch.manual_seed(0)
    sets = data.load("fashion-mnist-mini")
    labels = sets.train.require_labels("training")
    embedder = models.build("c2f2", spec=sets.train.spec)
    defence = build_defence(parse({"defence": {"name": "triplet", "margin": 0.2}}).defence, 10)
    settings = TrainSection(steps=TRAINING, batch=100)
    with tempfile.TemporaryDirectory() as folder:
        sampler = defence.sampler(labels, settings.batch, 0)
        fit(embedder, sets.train, labels, sampler, defence, settings, seed=0, folder=Path(folder))
    embedder.eval().requires_grad_(False)

    vectors = embedder.embed(sets.test)
    classes = torch.as_tensor(sets.test.require_labels("attacks"))
    candidates = Candidates(vectors, classes)
    rows = range(QUERIES)
    own, mine, total = torch.arange(QUERIES), classes[:QUERIES], len(vectors)
    far = drawn(0, rows, total, own)
    near = near_targets(0, rows, vectors[:QUERIES], candidates, own)
    pairs = er_sources(Given(candidates, classes[:4], queries=vectors[:4]), count=QUERIES // 4)
    gains: dict[int, list[Tensor]] = {STARTS: [], 1: []}
    for starts, eps in product(gains, (8 / 255, 77 / 255)):
        for name in OBJECTIVES:
            given = Given(candidates, mine, near if name[-1] == "-" else far, own, vectors)
            if name == "er-candidates":
                given = pairs
            assert given.own is not None
            images = sets.test.batch(given.own).float() / 255
            wanted = objective(name, given)
            theirs = plain(embedder, wanted, images, eps, starts)
            pgd = Pgd(steps=STEPS, restarts=starts)
            ours = Attack(wanted, pgd, Threat("linf", eps, "both")).run(embedder, images)
            gain = (theirs - ours.score).double()
            low, high = interval(gain)
            mean = float(gain.mean())
            gains[starts].append(gain)
            print(
                f"{starts} start{'s' * (starts > 1)}, eps {round(255 * eps)}/255 {name:14} "
                f"clean {float(ours.score_before.mean()):8.4f}  "
                f"plain {float(theirs.mean()):8.4f}  ours {float(ours.score.mean()):8.4f}  "
                f"gain {mean:.4f} [{low:.4f}, {high:.4f}]",
                flush=True,
            )
    # All attacks but the last have the same images: what an image adds to each of them is one observation.
    for starts, found in gains.items():
        low, _ = interval(torch.stack([gain for gain in found if len(gain) == QUERIES]).mean(0))
        against = f"plain last-iterate PGD, {starts} starts each, equal gradients"
        report(
            f"attack_strength ({starts}, mean)", low, 0.0, "higher", f"{against}; 95 % interval's lower end"
        )
    for starts, found in gains.items():
        least = min(float(gain.mean()) for gain in found)
        against = (
            f"plain last-iterate PGD, {starts} starts each, equal gradients; the least gain of any attack"
        )
        report("attack_strength" + f" ({starts})" * (starts > 1), least, 0.0, "higher", against)


if __name__ == "__main__":
    main()
