"""Write the table of docs/which-certificate.md: bounds and smoothing on the same Fashion-MNIST queries, from rows."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from _page import with_table
from numpy.typing import NDArray

from holdfast.evaluation.smoothed_tables import radii_of
from holdfast.methods import bound_method
from holdfast.rows import Rows, read_rows

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "which-certificate.md"
BOUNDS = ROOT / "reproduce" / "which-certificate"
SMOOTHED = ROOT / "reproduce" / "retrievalguard" / "rows" / "laptop"
START = "<!-- table: scripts/make_which_table.py -->"
L2, LINF = (0.1, 0.25, 0.5, 1.0), (0.005, 0.01, 0.02, 0.05, 0.1)
SIDE = math.sqrt(28 * 28)
"""An ℓ2 ball of radius r holds the ℓ∞ ball of r/28, and is held by that of r."""
WAYS = {"smoothing": "cdf", "smoothing by votes": "votes"}
NETWORKS = (
    ("certified-rank", "bounds", "trained for bounds (`certified-rank`, ε = 0.2)"),
    ("gdml-0.25", "bounds", "trained with noise 0.25 (`margin`)"),
    *(
        (f"gdml-{noise}", way, f"trained with noise {noise}")
        for noise in ("0.1", "0.25", "0.5", "1")
        for way in WAYS
    ),
)


def table() -> str:
    """A row for each network and certificate: what is certified of the same queries, in both norms."""
    sizes = [*(f"ℓ2 {r:g}" for r in L2), *(f"ℓ∞ {eps:g}" for eps in LINF)]
    lines = [
        "| network | certificate | Recall@1 | " + " | ".join(sizes) + " | images a query |",
        "|---" * (4 + len(sizes)) + "|",
    ]
    asked: list[str] | None = None
    for name, way, words in NETWORKS:
        path = _path(name, way)
        if not path.exists():
            lines.append(f"| {words} | {way} | " + " | ".join(["–"] * (2 + len(sizes))) + " |")
            continue
        rows = read_rows(path)
        queries = rows.columns["query"].tolist()
        if asked is not None and queries != asked:
            raise SystemExit(f"{path} is about other queries")
        asked = queries
        lines.append(f"| {words} | {_named(rows, way)} | " + " | ".join(_cells(rows, way)) + " |")
    return "\n".join(lines)


def _path(name: str, way: str) -> Path:
    if way == "bounds":
        return BOUNDS / f"{name}.csv.gz"
    return SMOOTHED / f"fashion-mnist-small-{name}-s0" / f"smoothed-{name.removeprefix('gdml-')}.csv.gz"


def _named(rows: Rows, way: str) -> str:
    config = rows.header["config"]
    if way == "bounds":
        return f"bounds, {bound_method(config['method']).name}"
    return f"{way}, σ = {config['noise']['sigma']:g}"


def _cells(rows: Rows, way: str) -> list[str]:
    if way == "bounds":
        right, reach = rows.columns["recall_1"] > 0, rows.columns["eps_1"]
        l2, linf = [_share(reach >= r) for r in L2], [_share(reach >= eps) for eps in LINF]
        # Ten bisections of one pass of bounds, each about two forward passes.
        images = "about 20"
    else:
        right, radius = radii_of(rows, WAYS[way], 1)
        l2, linf = [_share(radius > r) for r in L2], [_share(radius > SIDE * eps) for eps in LINF]
        noise = rows.header["config"]["noise"]
        images = f"{noise['n'] + noise['first']:,}"
    return [_share(right), *l2, *linf, images]


def _share(which: NDArray[np.bool_]) -> str:
    return f"{float(which.mean()):.2f}"


def page() -> str:
    """The page as it stands, with its table made anew."""
    return with_table(PAGE, START, table())


if __name__ == "__main__":
    PAGE.write_text(page())
