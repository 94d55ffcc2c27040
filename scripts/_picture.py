"""Curves as a small PNG, with nothing but Pillow; what the scripts share that draw from rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

BLUE, GREEN, RED, ORANGE, VIOLET = "#4c78a8", "#2a9d6f", "#c8553d", "#d9902f", "#7d5ba6"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM, FINE = 760, 400, 62, 16, 34, 48, 2
INK, SOFT, LINE, PAPER = "#1d2733", "#5d6b7a", "#d9dfe6", "#ffffff"
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """A line through points."""

    name: str
    colour: str
    x: Array
    y: Array
    dotted: bool = False


def drawn(curves: Sequence[Curve], axis: str, *, top: float = 1.0, logarithmic: bool = False) -> Image.Image:
    """One picture at twice its size: made smaller when it is saved, its lines are smooth. Lines begin at 0."""
    place = np.log10 if logarithmic else np.asarray
    low = float(min(place(curve.x).min() for curve in curves)) if logarithmic else 0.0
    high = float(max(place(curve.x).max() for curve in curves))
    picture = Image.new("RGB", (FINE * WIDTH, FINE * HEIGHT), PAPER)
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(13 * FINE)

    def at(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (WIDTH - LEFT - RIGHT) * (x - low) / (high - low)
        return FINE * across, FINE * (HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * y / top)

    for y in np.linspace(0, top, 6):
        pen.line([at(low, y), at(high, y)], LINE, FINE)
        left, middle = at(low, y)
        pen.text((left - 44 * FINE, middle - 8 * FINE), f"{y:.{1 if top >= 1 else 2}f}", SOFT, font)
    for x in np.arange(math.ceil(low), high + 1e-9) if logarithmic else _ticks(high):
        left, bottom = at(float(x), 0)
        shown = f"{10**x:,.0f}" if logarithmic else f"{x:g}"
        pen.text((left, bottom + 6 * FINE), shown, SOFT, font, anchor="ra" if x == high else "ma")
    pen.text((FINE * (WIDTH - RIGHT), FINE * (HEIGHT - 22)), axis, SOFT, font, anchor="ra")
    for number, curve in enumerate(curves):
        points = [at(float(x), float(y)) for x, y in zip(place(curve.x), curve.y, strict=True)]
        for i in range(0, len(points) - 2, 5) if curve.dotted else range(len(points) - 1):
            pen.line(points[i : i + (4 if curve.dotted else 2)], curve.colour, 2 * FINE)
        x, y = FINE * (LEFT + (WIDTH - LEFT - RIGHT) / len(curves) * number), FINE * 14
        pen.line([(x, y), (x + (8 if curve.dotted else 24) * FINE, y)], curve.colour, 2 * FINE)
        if curve.dotted:
            pen.line([(x + 14 * FINE, y), (x + 24 * FINE, y)], curve.colour, 2 * FINE)
        pen.text((x + 30 * FINE, y - 8 * FINE), curve.name, INK, font)
    return picture


def below_each(pictures: Sequence[Image.Image]) -> Image.Image:
    """Several pictures of one width in one."""
    both = Image.new("RGB", (pictures[0].width, sum(picture.height for picture in pictures)), PAPER)
    for number, picture in enumerate(pictures):
        both.paste(picture, (0, number * picture.height))
    return both


def save(picture: Image.Image, path: Path) -> None:
    """The picture at its size, with few colours."""
    small = picture.resize((picture.width // FINE, picture.height // FINE), Image.Resampling.LANCZOS)
    small.quantize(64).save(path, optimize=True)


def _ticks(high: float) -> Array:
    """Round numbers from 0 to `high`, five or so."""
    step = 10 ** math.floor(math.log10(high / 4))
    step *= next(size for size in (1, 2, 5, 10) if high / (size * step) <= 6)
    return np.arange(0, high, step)
