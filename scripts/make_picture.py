"""Draw the README's picture from what `make demo` left: queries, their hits, right and wrong, and proofs.

python scripts/make_picture.py demo docs/search.png
"""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from holdfast import models
from holdfast.gallery import Gallery
from holdfast.gallery.searching import search
from holdfast.threat import Threat

SIDE, GAP, FRAME, HITS, ROWS, LINE = 76, 10, 4, 5, 5, 18
INK, SOFT, RIGHT, WRONG, PAPER = "#1d2733", "#8a94a0", "#2a9d6f", "#d1605e", "#ffffff"
THREAT = Threat.parse("query:linf:0.02")


def main(demo: Path, out: Path) -> None:
    """Draw the queries of a demo folder, one of each class, with their hits and rank intervals."""
    embedder = models.load(demo / "run")
    files = sorted((demo / "queries").rglob("*.png"))[: 2 * ROWS]
    across, down = SIDE + 2 * FRAME + GAP, SIDE + 2 * FRAME + LINE + GAP
    block = across * (HITS + 1) + 4 * GAP
    picture = Image.new("RGB", (GAP + 2 * block, GAP + LINE + down * ROWS), PAPER)
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(13)
    for side in (0, block):
        pen.text((GAP + side, 2), "query", INK, font)
        pen.text((3 * GAP + side + across, 2), "hits; ranks under any change of 0.02 a pixel", INK, font)
    with Gallery.open(demo / "shop.gallery", readonly=True) as gallery:
        for number, file in enumerate(files):
            found = search(gallery, embedder, file, HITS, certify=THREAT)
            shown = [(file, INK, "", SOFT)]
            for entry in found.hits:
                colour = RIGHT if entry.label == file.parent.name else WRONG
                sure = entry.certificate.verdict == "CERTIFIED"
                text = f"{entry.certificate.best} to {entry.certificate.worst}" + (", sure" if sure else "")
                shown.append((Path(entry.path or ""), colour, text, INK if sure else SOFT))
            for column, (path, colour, text, ink) in enumerate(shown):
                x = GAP + block * (number // ROWS) + across * column + (2 * GAP if column else 0)
                y = GAP + LINE + down * (number % ROWS)
                pen.rectangle((x, y, x + SIDE + 2 * FRAME - 1, y + SIDE + 2 * FRAME - 1), fill=colour)
                with Image.open(path) as image:
                    picture.paste(image.convert("RGB").resize((SIDE, SIDE)), (x + FRAME, y + FRAME))
                pen.text((x + FRAME, y + SIDE + 2 * FRAME + 1), text, ink, font)
    out.parent.mkdir(parents=True, exist_ok=True)
    picture.quantize(64).save(out, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
