"""Draw robust error against the radius from the rows of `holdfast reproduce arml`.

docs/neighbours.png: two metrics on USPS, what is certified and what an attack reaches. reproduce/arml/figure-i.png:
1-NN by two metrics beside small networks on MNIST and Fashion-MNIST (the rebuttal's Figure i).

python scripts/make_neighbours_picture.py
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from _picture import BLUE, GREEN, ORANGE, RED, VIOLET, Array, Curve, below_each, drawn, save
from PIL import Image

from holdfast.neighbours.certification import attacked_radii
from holdfast.rows import read_rows

ROOT = Path(__file__).resolve().parents[1]
ROWS = ROOT / "reproduce" / "arml" / "rows" / "laptop"


def main() -> None:
    """Both pictures."""
    two = []
    for name, colour in (("euclidean", BLUE), ("arml", GREEN)):
        rows = read_rows(ROWS / f"usps-{name}-s0" / "k11.csv.gz")
        attacked = attacked_radii(rows)
        assert attacked is not None
        two.append((f"{name}, certified", colour, rows.columns["lower"], False))
        two.append((f"{name}, attacked", colour, attacked, True))
    save(errors(two, "radius (l2, features scaled to [0, 1])"), ROOT / "docs" / "neighbours.png")
    kinds = {
        "euclidean": ("1-NN", BLUE),
        "arml": ("1-NN, ARML", GREEN),
        "network-crown": ("CROWN", RED),
        "network-smoothing-0.25": ("smoothed .25", ORANGE),
        "network-smoothing-0.5": ("smoothed .5", VIOLET),
    }
    halves = []
    for dataset in ("mnist", "fashion-mnist"):
        curves = []
        for name, (shown, colour) in kinds.items():
            file = "network.csv.gz" if name.startswith("network") else "k1.csv.gz"
            rows = read_rows(ROWS / f"{dataset}-{name}-s0" / file)
            curves.append((shown, colour, rows.columns["lower"], False))
        halves.append(errors(curves, f"{dataset}: radius (l2, pixels in [0, 1])"))
    save(below_each(halves), ROOT / "reproduce" / "arml" / "figure-i.png")


def errors(kinds: Sequence[tuple[str, str, Array, bool]], axis: str) -> Image.Image:
    """For each kind the share of points with a radius of at most r, against r."""
    steps = np.linspace(0, max(float(np.quantile(radii, 0.98)) for _, _, radii, _ in kinds), 400)
    curves = [
        Curve(name, colour, steps, (radii[:, None] <= steps).mean(0), dotted)
        for name, colour, radii, dotted in kinds
    ]
    return drawn(curves, axis)


if __name__ == "__main__":
    main()
