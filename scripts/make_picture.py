"""Draw the README's picture from what `make demo` left: queries, their hits, right and wrong.

python scripts/make_picture.py demo docs/search.png
"""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from holdfast import models
from holdfast.gallery import Gallery
from holdfast.workflow import search

SIDE, GAP, FRAME, HITS, ROWS = 84, 10, 4, 8, 5
INK, RIGHT, WRONG, PAPER = "#1d2733", "#2a9d6f", "#d1605e", "#ffffff"


def main(demo: Path, out: Path) -> None:
    """Draw the first few queries of a demo folder with their hits."""
    embedder = models.load(demo / "run")
    files = sorted((demo / "queries").rglob("*.png"))[:ROWS]
    step = SIDE + 2 * FRAME + GAP
    picture = Image.new("RGB", (GAP + step * (HITS + 1) + 2 * GAP, GAP + 22 + step * ROWS), PAPER)
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(14)
    pen.text((GAP, GAP), "query", INK, font)
    pen.text((3 * GAP + step, GAP), "hits, nearest first", INK, font)
    with Gallery.open(demo / "shop.gallery", readonly=True) as gallery:
        for row, file in enumerate(files):
            hits = search(gallery, embedder, file, k=HITS).hits
            shown = [(file, INK)]
            shown += [(Path(h.path or ""), RIGHT if h.label == file.parent.name else WRONG) for h in hits]
            for column, (path, colour) in enumerate(shown):
                x = GAP + step * column + (2 * GAP if column else 0)
                y = GAP + 22 + step * row
                pen.rectangle((x, y, x + SIDE + 2 * FRAME - 1, y + SIDE + 2 * FRAME - 1), fill=colour)
                with Image.open(path) as image:
                    picture.paste(image.convert("RGB").resize((SIDE, SIDE)), (x + FRAME, y + FRAME))
    out.parent.mkdir(parents=True, exist_ok=True)
    picture.quantize(64).save(out, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
