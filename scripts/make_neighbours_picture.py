"""Draw robust error against the radius from the rows of `holdfast reproduce arml`.

docs/neighbours.png: two metrics on USPS, what is certified and what an attack reaches. reproduce/arml/figure-i.png:
1-NN by two metrics beside small networks on MNIST and Fashion-MNIST (the rebuttal's Figure i).

python scripts/make_neighbours_picture.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from holdfast.evaluate.neighbours import attacked_radii
from holdfast.evaluate.rows import read_rows

ROOT = Path(__file__).resolve().parents[1]
ROWS = ROOT / "reproduce" / "arml" / "rows" / "laptop"
BLUE, GREEN, RED, ORANGE, VIOLET = "#4c78a8", "#2a9d6f", "#c8553d", "#d9902f", "#7d5ba6"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM, FINE = 760, 400, 62, 16, 34, 48, 2
INK, SOFT, LINE, PAPER = "#1d2733", "#5d6b7a", "#d9dfe6", "#ffffff"


@dataclass(frozen=True)
class Curve:
    """The share of points with a radius of at most r, against r."""

    name: str
    colour: str
    radii: NDArray[np.float64]
    dotted: bool = False


def main() -> None:
    """Both pictures."""
    two = []
    for name, colour in (("euclidean", BLUE), ("arml", GREEN)):
        rows = read_rows(ROWS / f"usps-{name}-s0" / "k11.csv.gz")
        attacked = attacked_radii(rows)
        assert attacked is not None
        two.append(Curve(f"{name}, certified", colour, rows.columns["lower"]))
        two.append(Curve(f"{name}, attacked", colour, attacked, dotted=True))
    save(drawn(two, "radius (l2, features scaled to [0, 1])"), ROOT / "docs" / "neighbours.png")
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
            curves.append(Curve(shown, colour, rows.columns["lower"]))
        halves.append(drawn(curves, f"{dataset}: radius (l2, pixels in [0, 1])"))
    both = Image.new("RGB", (halves[0].width, sum(half.height for half in halves)), PAPER)
    for number, half in enumerate(halves):
        both.paste(half, (0, number * half.height))
    save(both, ROOT / "reproduce" / "arml" / "figure-i.png")


def drawn(curves: Sequence[Curve], axis: str) -> Image.Image:
    """One picture at twice its size: made smaller when it is saved, its lines are smooth."""
    furthest = max(float(np.quantile(curve.radii, 0.98)) for curve in curves)
    picture = Image.new("RGB", (FINE * WIDTH, FINE * HEIGHT), PAPER)
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(13 * FINE)

    def at(radius: float, error: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - RIGHT) * radius / furthest
        return FINE * x, FINE * (HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * error)

    for share in np.linspace(0, 1, 6):
        pen.line([at(0, share), at(furthest, share)], LINE, FINE)
        x, y = at(0, share)
        pen.text((x - 34 * FINE, y - 8 * FINE), f"{share:.1f}", SOFT, font)
    for radius in np.arange(0, furthest, 0.5):
        x, y = at(float(radius), 0)
        pen.text((x - 9 * FINE, y + 6 * FINE), f"{radius:.1f}", SOFT, font)
    pen.text((FINE * (WIDTH - RIGHT), FINE * (HEIGHT - 22)), axis, SOFT, font, anchor="ra")
    for number, curve in enumerate(curves):
        steps = np.linspace(0, furthest, 400)
        errors = [float((curve.radii <= radius).mean()) for radius in steps]
        points = [at(float(radius), error) for radius, error in zip(steps, errors, strict=True)]
        for i in range(0, len(points) - 2, 5) if curve.dotted else range(len(points) - 1):
            pen.line(points[i : i + (4 if curve.dotted else 2)], curve.colour, 2 * FINE)
        x, y = FINE * (LEFT + (WIDTH - LEFT - RIGHT) / len(curves) * number), FINE * 14
        pen.line([(x, y), (x + (8 if curve.dotted else 24) * FINE, y)], curve.colour, 2 * FINE)
        if curve.dotted:
            pen.line([(x + 14 * FINE, y), (x + 24 * FINE, y)], curve.colour, 2 * FINE)
        pen.text((x + 30 * FINE, y - 8 * FINE), curve.name, INK, font)
    return picture


def save(picture: Image.Image, path: Path) -> None:
    """The picture at its size, with few colours."""
    small = picture.resize((picture.width // FINE, picture.height // FINE), Image.Resampling.LANCZOS)
    small.quantize(64).save(path, optimize=True)


if __name__ == "__main__":
    main()
