"""A step of PGD, against one bare forward and input gradient of the same batch through model and objective.

C2F2 and a gallery of 10,000: every step has its product with the gallery, bare or not. Ours has the
projection, the best iterate, the step schedule, the looks at the clean and the last images and the
check of the result beside it. Processor time, in pairs: on a busy machine wall time is anybody's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from _common import report

BATCH, GALLERY, STEPS, PAIRS = 32, 10_000, 32, 7


def used(function: Callable[[], None]) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start


def main() -> None:
    import torch

    from holdfast import models
    from holdfast.attacks import Attack, Candidates, Given, Pgd, objective
    from holdfast.spec import ImageSpec
    from holdfast.threat import Threat

    torch.manual_seed(0)
    embedder = models.build("c2f2", spec=ImageSpec(1, 28, 28)).eval()
    images = torch.rand(BATCH, 1, 28, 28)
    vectors = torch.nn.functional.normalize(torch.randn(GALLERY, embedder.dim), dim=1)
    given = Given(
        Candidates(vectors, torch.arange(GALLERY) % 10),
        torch.arange(BATCH) % 10,
        torch.arange(BATCH),
        torch.arange(BATCH),
        vectors[:100],
    )
    worst = 0.0
    for name, norm in (("qa+", "linf"), ("qa+", "l2"), ("gtm", "linf")):
        wanted = objective(name, given)
        threat = Threat("linf", 0.1, "both") if norm == "linf" else Threat("l2", 2.0, "both")
        attack = Attack(wanted, Pgd(steps=STEPS), threat)
        for weight in embedder.parameters():
            weight.requires_grad_(False)
        wish = wanted.bind(slice(0, BATCH), embedder(images))

        def bare() -> None:
            for _ in range(STEPS):
                x = images.clone().requires_grad_()
                loss = wish.loss(embedder(x)).sum()  # noqa: B023
                torch.autograd.grad(loss, x)

        def ours() -> None:
            attack.run(embedder, images, batch_size=BATCH)  # noqa: B023

        ours()
        bare()
        pairs = [(used(ours), used(bare)) for _ in range(PAIRS)]
        ratio = statistics.median(mine / theirs for mine, theirs in pairs)
        worst = max(worst, ratio)
        step = 1e3 * statistics.median(mine for mine, _ in pairs) / STEPS
        print(f"{name} {norm}: {step:.1f} ms a step, {ratio:.3f} x", flush=True)
    report(
        "attack_step",
        worst,
        1.15,
        "lower",
        "bare forward + input gradient through model and objective; the worst",
    )


if __name__ == "__main__":
    main()
