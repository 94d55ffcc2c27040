"""How tight linear bounds are on a network that was trained without proofs: what they prove of what an attack leaves.

`small`, 200 steps of triplet training on the bundled Fashion-MNIST images (seed 0). For 30 test images the ten nearest
of 1,970 others are each paired with rivals of ranks 20, 40, …, 200. The margin of a pair is ‖z − c‖² − ‖z − ĉ‖². PGD
lowers it within eps (ℓ∞); the true worst case lies between the bound and what PGD reaches. Printed for each eps and
method: the share proved of the pairs that PGD cannot turn, the mean gap between the margin PGD reaches and the
certified one, and the time of a search for ten hits with `--method crown`. All bounds but those in exact arithmetic
hold for float32.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

from _common import report

# isort: split
import torch
from torch import Tensor

from holdfast import data, models
from holdfast.bounds import Box, Relaxation, image_box, interval_bounds, trace
from holdfast.certify.certifier import Certifier
from holdfast.models import to_unit
from holdfast.training import parse, train

QUERIES, HITS, RIVALS, STEPS = 30, 10, 10, 60
SIZES = (0.002, 0.005)
NAMES = ("interval", "crown-ibp", "crown", "crown, exact arithmetic")


def network() -> models.Embedder:
    config = parse(
        {
            "data": {"name": "fashion-mnist-mini", "validation": 0},
            "train": {"steps": 200, "batch": 100},
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        return train(config, Path(folder) / "run", say=lambda line: None).embedder


def attacked(embedder: models.Embedder, image: Tensor, pairs: Tensor, shift: Tensor, eps: float) -> Tensor:
    """The least margin that PGD reaches for each pair: `shift` + 2 z·(ĉ − c)."""
    count = len(pairs)
    low, high = (image - eps).clamp(min=0), (image + eps).clamp(max=1)
    best = torch.full((count,), torch.inf, dtype=torch.float64)
    for start in range(2):
        torch.manual_seed(start)
        x = image.expand(count, -1, -1, -1)
        if start:
            x = torch.clamp(x + eps * (2 * torch.rand(count, *image.shape[1:]) - 1), low, high)
        for step in range(STEPS + 1):
            x = x.detach().requires_grad_()
            margin = shift + 2 * (embedder.features(x).double() * pairs).sum(1)
            best = torch.minimum(best, margin.detach())
            (gradient,) = torch.autograd.grad(margin.sum(), x)
            size = eps * (0.5 if step < STEPS // 2 else 0.1)
            x = torch.clamp(x.detach() - size * gradient.sign(), low, high)
    return best


def main() -> int:
    torch.set_num_threads(1)
    embedder = network().eval()
    sets = data.load("fashion-mnist-mini").test
    images = to_unit(sets.batch(range(2000))).float()
    graph = trace(embedder)
    with torch.no_grad():
        vectors = embedder.features(images).double()
    asked, gallery = vectors[:QUERIES], vectors[QUERIES:]
    order = torch.cdist(asked, gallery).argsort(1)
    share, gaps = {}, {}
    for eps in SIZES:
        reached: list[Tensor] = []
        found: dict[str, list[Tensor]] = {name: [] for name in NAMES}
        for q in range(QUERIES):
            own = gallery[order[q, :HITS]].repeat_interleave(RIVALS, 0)
            other = gallery[order[q, 19 : 20 * RIVALS : 20]].repeat(HITS, 1)
            pairs, shift = own - other, other.square().sum(1) - own.square().sum(1)
            image = images[q : q + 1]
            reached.append(attacked(embedder, image, pairs, shift, eps))
            with torch.no_grad():
                box = image_box(image.double(), eps, rounding=True)
                held = interval_bounds(graph, box, rounding=True)
                found["interval"].append(shift + 2 * lowest(held, pairs))
                loose = Relaxation(graph, box, rounding=True).lower(pairs)[0]
                found["crown-ibp"].append(shift + 2 * loose)
                tight = Relaxation(graph, box, rounding=True, intermediate="crown").lower(pairs)[0]
                found["crown"].append(shift + 2 * torch.maximum(loose, tight))
                exact = Relaxation(graph, image_box(image.double(), eps), intermediate="crown").lower(pairs)[
                    0
                ]
                found["crown, exact arithmetic"].append(shift + 2 * exact)
        worst = torch.cat(reached)
        kept = worst > 0
        print(f"eps {eps}: {len(worst)} pairs, PGD turns {int((~kept).sum())}")
        for name, bounds in found.items():
            bound = torch.cat(bounds)
            if (bound > worst + 1e-9).any():
                print(f"{name}: a bound above what PGD reached")
                return 1
            share[eps, name] = float((bound[kept] > 0).double().mean())
            gaps[eps, name] = float((worst - bound).mean())
            print(f"  {name}: proved {share[eps, name]:.1%}, mean gap {gaps[eps, name]:.4f}")
    certifier, seconds = Certifier(embedder), []
    for q in range(10):
        start = time.thread_time()
        attack = certifier.altered_query(SIZES[-1], "crown", images[q : q + 1], gallery, [HITS])
        attack.ranks(order[q : q + 1, :HITS])
        seconds.append(time.thread_time() - start)
    spent = statistics.median(seconds)
    print(
        f"rank intervals of {HITS} hits of 1,970 by crown at eps {SIZES[-1]}: {spent:.2f} processor seconds a query"
    )
    proved = report(
        "crown_tightness", share[SIZES[-1], "crown"], 0.98, "higher", "pairs that PGD cannot turn"
    )
    quick = report("crown_seconds", spent, 0.2, "lower", "processor seconds a query of ten hits")
    return 0 if proved and quick else 1


def lowest(held: Box, pairs: Tensor) -> Tensor:
    """The least z·(ĉ − c) over a box of z."""
    return pairs @ held.centre[0] - pairs.abs() @ held.radius[0]


if __name__ == "__main__":
    sys.exit(main())
