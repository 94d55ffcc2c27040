"""Draw what smoothing certifies, the printed form beside ours, from the rows of `holdfast reproduce retrievalguard`.

docs/smoothing.png: above, the mean radius against the number of samples; below, Recall@1(r) on the same queries.

python scripts/make_smoothing_picture.py
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from _picture import BLUE, GREEN, ORANGE, RED, Curve, below_each, drawn, save

from holdfast.evaluate.smoothed_tables import radii_of
from holdfast.rows import read_rows

ROOT = Path(__file__).resolve().parents[1]
ROWS = ROOT / "reproduce" / "retrievalguard" / "rows" / "laptop" / "fashion-mnist-small-gdml-0.1-100k-s0"
KINDS = {"cdf": ("ours", GREEN), "half-space": ("half-space", ORANGE), "paper": ("as printed", RED)}


def main() -> None:
    """Both parts."""
    rows = read_rows(ROWS / "smoothed-0.1.csv.gz")
    config = rows.header["config"]
    counts = np.array([*config["marks"], config["noise"]["n"]])
    grown = [
        Curve(shown, colour, counts, np.array([radii_of(rows, rule, 1, int(n))[1].mean() for n in counts]))
        for rule, (shown, colour) in KINDS.items()
    ]
    top = 0.05 * math.ceil(max(float(curve.y.max()) for curve in grown) / 0.05)
    halves = [drawn(grown, "samples a query; up: mean certified radius (l2)", top=top, logarithmic=True)]
    shown = {
        "ours, n = 1,000": ("cdf", 1000, BLUE),
        "ours, n = 100,000": ("cdf", 100000, GREEN),
        "as printed, n = 100,000": ("paper", 100000, RED),
    }
    steps = np.linspace(0, 2.2 * config["noise"]["sigma"], 400)
    curves = [
        Curve(name, colour, steps, (radii_of(rows, rule, 1, n)[1][:, None] > steps).mean(0))
        for name, (rule, n, colour) in shown.items()
    ]
    halves.append(drawn(curves, "r (l2); up: Recall@1(r)"))
    save(below_each(halves), ROOT / "docs" / "smoothing.png")


if __name__ == "__main__":
    main()
