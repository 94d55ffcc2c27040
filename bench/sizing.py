"""What a candidate and a search cost on this machine: the figures from which docs/production.md is computed.

`--write docs/sizing.json` keeps them; `scripts/make_sizing_table.py` makes the table. The last line is what a search of
16 pictures together costs for each, against 16 searches by themselves.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from _common import alternate, report

# isort: split
import numpy as np
import torch

import _gallery
from holdfast import models
from holdfast.gallery import Boxes, Gallery
from holdfast.gallery.stores.sqlite.cache import folder_of
from holdfast.provenance import commit, versions

TOGETHER = 16
EPS = 0.1


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--write", type=Path, help="keep the figures in this file")
    options.add_argument("--repeats", type=int, default=7)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        base = _gallery.vectors(_gallery.COUNT, 0)
        asked = _gallery.vectors(TOGETHER, 1)
        sizes = {}
        for name in ("plain", "boxes"):
            path = Path(folder) / name
            with _gallery.filled(path, base) as gallery:
                if name == "boxes":
                    gallery.add_boxes(EPS, lambda _, rows: Boxes(rows, np.full_like(rows, EPS)))
                gallery.write_cache()
            sizes[name] = path.stat().st_size / _gallery.COUNT
            cached = sum(file.stat().st_size for file in folder_of(path).iterdir())
            sizes[f"{name} cache"] = cached / _gallery.COUNT
        found["bytes a candidate besides its numbers"] = sizes["plain"] - 4 * _gallery.DIM
        found["bytes of a cache for a number"] = sizes["plain cache"] / _gallery.DIM
        found["bytes of boxes for a number"] = (sizes["boxes"] - sizes["plain"]) / _gallery.DIM
        with Gallery.open(Path(folder) / "plain", readonly=True) as gallery:
            seconds = alternate(
                {
                    "one": lambda: gallery.nearest(asked[:1], 10),
                    "together": lambda: gallery.nearest(asked, 10),
                },
                chosen.repeats,
            )
    numbers = _gallery.COUNT * _gallery.DIM
    found["nanoseconds a number, one search"] = seconds["one"] / numbers * 1e9
    found["nanoseconds a number, sixteen together"] = seconds["together"] / TOGETHER / numbers * 1e9
    for name, side, channels in (("small", 28, 1), ("efficientnet-lite0", 128, 3)):
        network = models.build(name, spec=(channels, side, side), dim=128)
        images = torch.rand(TOGETHER, channels, side, side)
        timed = alternate({name: lambda n=network, i=images: n.embed(i)}, chosen.repeats)  # type: ignore[misc]
        found[f"milliseconds a picture, {name}"] = timed[name] / TOGETHER * 1e3
    for name, value in found.items():
        print(f"{name}: {value:.4g}")
    if chosen.write is not None:
        document = {"figures": {key: round(value, 6) for key, value in found.items()}}
        document |= {"threads": 1, "commit": commit(), "versions": versions()}  # type: ignore[dict-item]
        chosen.write.write_text(json.dumps(document, indent=2) + "\n")
    value = seconds["together"] / TOGETHER / seconds["one"]
    return 0 if report("sizing", value, 1.0, "lower", "the same searches one by one") else 1


if __name__ == "__main__":
    sys.exit(main())
