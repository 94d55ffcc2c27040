"""The exact radius of 1,000 USPS test points (1-NN) against loops over QPs of a general solver (Clarabel).

Two loops are shown, both measured on the same few points. The plain one solves a problem for every training vector of
another class (projected from some of them). The screened one skips what ours skips, by the same bounds in the same
order, and is the one compared with: what is left is a solver for these problems against a general one. Also printed:
on which share of the points the lower and the upper end agree to 1e-6 of themselves. `--all` measures that on six
data sets, `--quick` on fewer points.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from _common import report

# isort: split
from holdfast.bounds.neighbours import Neighbours, pair_distances
from holdfast.certify.mahalanobis import exact_radius
from holdfast.models.metric import scale_of
from holdfast.neighbours.features import load_features

Array = NDArray[np.float64]
Part = tuple[Neighbours, Array, NDArray[np.int64]]
SETS = ("splice", "pendigits", "satimage", "usps", "mnist", "fashion-mnist")
AGREE = 1e-6


def load(name: str, points: int) -> Part | None:
    """Training vectors under the Euclidean metric and test points, features scaled to [0, 1]; None if not here."""
    from holdfast.data import load as load_images
    from holdfast.data.settings import data_folders
    from holdfast.errors import DataError

    if name in ("mnist", "fashion-mnist"):
        try:
            found = load_images(name)
        except DataError:
            return None
        parts = []
        for part in (found.train, found.test):
            parts += [part.pixels[part.rows].reshape(len(part), -1) / 255, np.asarray(part.labels)]
        train, labels, test, truth = parts
    else:
        path = next((p for f in data_folders() if (p := Path(f) / "uci" / f"{name}.npz").exists()), None)
        if path is None:
            return None
        train, labels, test, truth = _letters(path) if name == "splice" else _vectors(path)
    low, span = scale_of(train)
    chosen = np.random.default_rng(0).permutation(len(test))[:points]
    known = Neighbours((train - low) / span, labels, np.eye(train.shape[1]))
    return known, (test[chosen] - low) / span, truth[chosen]


def _vectors(path: Path) -> tuple[Array, NDArray[np.int64], Array, NDArray[np.int64]]:
    found = load_features(path)
    return found.train, found.train_labels, found.test, found.test_labels


def _letters(path: Path) -> tuple[Array, NDArray[np.int64], Array, NDArray[np.int64]]:
    """Splice: each of 60 letters as four numbers, a third of the sequences for testing."""
    with np.load(path, allow_pickle=False) as found:
        letters, kinds = found["seq"], found["label"]
    vectors = (letters[:, :, None] == np.array(list("ACGT"))).reshape(len(letters), -1).astype(np.float64)
    _, labels = np.unique(kinds, return_inverse=True)
    order = np.random.default_rng(0).permutation(len(vectors))
    held, kept = order[: len(order) // 3], order[len(order) // 3 :]
    return vectors[kept], labels[kept], vectors[held], labels[held]


def by_clarabel(
    known: Neighbours, point: Array, squared: Array, ours: NDArray[np.int64], other: int
) -> float:
    """The least move for one negative: min ½‖δ‖² with a row for every positive."""
    import clarabel
    from scipy import sparse

    rows = 2 * (known.u[other] - known.u[ours])
    needed = squared[other] - squared[ours]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.max_threads = 1
    size = len(point)
    solved = clarabel.DefaultSolver(
        sparse.identity(size, format="csc"),
        np.zeros(size),
        sparse.csc_matrix(-rows),
        -needed,
        [clarabel.NonnegativeConeT(len(rows))],
        settings,
    ).solve()
    return float(np.linalg.norm(solved.x)) if "Solved" in str(solved.status) else np.inf


def screened(known: Neighbours, point: Array, label: int) -> tuple[float, int]:
    """A competent loop: negatives in the order of their largest single constraint, until that is above the best."""
    squared = known.squared(point)
    ours = np.flatnonzero(known.labels == label)
    others = np.flatnonzero(known.labels != label)
    if squared[others].min() <= squared[ours].min():
        return 0.0, 0
    ours = ours[np.argsort(squared[ours], kind="stable")]
    quick = pair_distances(squared, known, known.noise(point), ours[:8], others).max(0)
    best, solved = np.inf, 0
    for place in np.argsort(quick, kind="stable"):
        if quick[place] >= best:
            break
        best = min(best, by_clarabel(known, point, squared, ours, int(others[place])))
        solved += 1
    return best, solved


def agreement(part: Part) -> tuple[float, float, float]:
    """The share of points whose ends agree, the largest gap, and the seconds."""
    known, points, labels = part
    start = time.perf_counter()
    gaps = np.array([exact_radius(x, int(y), known).gap for x, y in zip(points, labels, strict=True)])
    return float((gaps <= AGREE).mean()), float(gaps.max()), time.perf_counter() - start


def timed(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def shares(points: int, names: tuple[str, ...]) -> Iterator[float]:
    for name in names:
        part = load(name, points)
        if part is None:
            print(f"{name}: not here, left out")
            continue
        share, gap, seconds = agreement(part)
        print(
            f"{name}: {len(part[0].labels):,} × {part[1].shape[1]}, {len(part[1]):,} test points, ends agree to "
            f"{AGREE:g} on {share:.2%} (largest gap {gap:.1e}), {1e3 * seconds / len(part[1]):.1f} ms a point",
            flush=True,
        )
        yield share


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true", help="100 test points, fewer by the general solver")
    options.add_argument("--all", action="store_true", help="the agreement on all six data sets")
    chosen = options.parse_args()
    points, few = (100, 6) if chosen.quick else (1000, 40)
    try:
        import clarabel  # noqa: F401
    except ImportError:
        print("clarabel is not here (pip install clarabel); nothing is compared")
        return 0
    part = load("usps", points)
    if part is None:
        print("no USPS features (uci/usps.npz in a folder of HOLDFAST_DATA); nothing is compared")
        return 0
    known, asked, labels = part
    worst = min(shares(points, SETS if chosen.all else ("usps",)))
    # Points that are wrong as they are cost neither side anything.
    right = [i for i in range(len(asked)) if exact_radius(asked[i], int(labels[i]), known).upper > 0][:few]
    ours = theirs = plain = off = 0.0
    for i in right:
        x, y = asked[i], int(labels[i])
        ours += timed(partial(exact_radius, x, y, known))
        theirs += timed(partial(screened, known, x, y))
        best, _ = screened(known, x, y)
        off = max(off, abs(best - exact_radius(x, y, known).upper) / best)
    for i in right[:3]:
        squared, mine = known.squared(asked[i]), np.flatnonzero(known.labels == labels[i])
        others = np.flatnonzero(known.labels != labels[i])
        sample = np.random.default_rng(i).choice(others, 3, replace=False)
        each = np.mean([timed(partial(by_clarabel, known, asked[i], squared, mine, int(j))) for j in sample])
        plain += float(each) * len(others) / 3
    print(f"{len(right)} points: ours {1e3 * ours / len(right):.1f} ms a point, largest difference {off:.1e}")
    print(
        f"screened loop {1e3 * theirs / len(right):.1f} ms a point; plain loop, projected, {plain:.0f} s a point"
    )
    ok = report(
        "exact_neighbours",
        ours / theirs,
        0.1,
        "lower",
        "a loop over Clarabel QPs, screened by the same bounds, on the same USPS points",
    )
    return 0 if ok and worst >= 0.999 else 1


if __name__ == "__main__":
    sys.exit(main())
