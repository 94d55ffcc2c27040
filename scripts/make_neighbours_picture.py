"""Draw the picture of docs/neighbours.md from rows: certified and attacked robust error of two metrics on USPS.

python scripts/make_neighbours_picture.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from holdfast.evaluate.neighbours import attacked_radii
from holdfast.evaluate.rows import read_rows

ROOT = Path(__file__).resolve().parents[1]
ROWS = ROOT / "reproduce" / "arml" / "rows" / "laptop"
OUT = ROOT / "docs" / "neighbours.png"
COLOURS = {"euclidean": "#4c78a8", "arml": "#2a9d6f"}
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM, FINE = 760, 400, 62, 16, 34, 48, 2
INK, SOFT, LINE, PAPER = "#1d2733", "#5d6b7a", "#d9dfe6", "#ffffff"


def main() -> None:
    """A curve for every metric, solid where it is certified and dotted where an attack was found."""
    rows = {name: read_rows(ROWS / f"usps-{name}-s0" / "k11.csv.gz") for name in COLOURS}
    curves = []
    for name, part in rows.items():
        attacked = attacked_radii(part)
        assert attacked is not None
        curves += [(name, "certified", part.columns["lower"]), (name, "attacked", attacked)]
    furthest = max(float(np.quantile(radii, 0.98)) for _, _, radii in curves)
    # Drawn at twice the size and made smaller, so that lines are smooth.
    picture = Image.new("RGB", (FINE * WIDTH, FINE * HEIGHT), PAPER)
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(13 * FINE)

    def at(radius: float, error: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - RIGHT) * radius / furthest
        return FINE * x, FINE * (HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * error)

    for share in np.linspace(0, 1, 6):
        pen.line([at(0, share), at(furthest, share)], LINE, FINE)
        x, y = at(0, share)
        pen.text((x - 34 * FINE, y - 8 * FINE), f"{share:.1f}", SOFT, font)
    for radius in np.arange(0, furthest, 0.1):
        x, y = at(float(radius), 0)
        pen.text((x - 9 * FINE, y + 6 * FINE), f"{radius:.1f}", SOFT, font)
    pen.text(
        (FINE * (WIDTH - 250), FINE * (HEIGHT - 22)), "radius (l2, features scaled to [0, 1])", SOFT, font
    )
    for number, (name, kind, radii) in enumerate(curves):
        steps = np.linspace(0, furthest, 400)
        errors = [float((radii <= radius).mean()) for radius in steps]
        points = [at(float(radius), error) for radius, error in zip(steps, errors, strict=True)]
        pieces = range(len(points) - 1) if kind == "certified" else range(0, len(points) - 2, 5)
        for i in pieces:
            pen.line(points[i : i + (2 if kind == "certified" else 4)], COLOURS[name], 2 * FINE)
        x, y = FINE * (LEFT + 175 * number), FINE * 14
        pen.line([(x, y), (x + (24 if kind == "certified" else 8) * FINE, y)], COLOURS[name], 2 * FINE)
        if kind == "attacked":
            pen.line([(x + 14 * FINE, y), (x + 24 * FINE, y)], COLOURS[name], 2 * FINE)
        pen.text((x + 30 * FINE, y - 8 * FINE), f"{name}, {kind}", INK, font)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    picture.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS).quantize(64).save(OUT, optimize=True)


if __name__ == "__main__":
    main()
