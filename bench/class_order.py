"""Whether the order within a class stays meaningful behind a class code: overlap with an undefended network.

    bench/class_order.py RUN UNDEFENDED [--held-out]

RUN and UNDEFENDED are runs of one data set, a class code and a plain `triplet` say; without them both are trained
here, shortly, on the bundled images. 1,000 queries against 1,000 candidates of the test part (or of the images that
RUN held out): of the ten nearest candidates of the query's class by RUN, the share that are among the ten nearest of
its class by UNDEFENDED, beside chance. The value is the ratio of the two.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from _common import report

# isort: split
import torch

from holdfast import data, models
from holdfast.metrics import chance_overlap, class_overlap
from holdfast.models import Embedder, to_unit
from holdfast.training import held_out, load_data, parse, read_config, train

DRAWN, K, GOAL = 1000, 10, 2.0
TRAINED = {"class-code": {"eps": 0.05}, "triplet": {}}


def trained(folder: Path) -> list[Path]:
    for name, options in TRAINED.items():
        config = {
            "data": {"name": "fashion-mnist-mini"},
            "defence": {"name": name, **options},
            "train": {"steps": 400, "batch": 100},
        }
        train(parse(config), folder / name, say=lambda line: None)
    return [folder / name for name in TRAINED]


def measured(run: Path, undefended: Path, held: bool) -> tuple[float, float]:
    """The mean overlap, and what a random order would have."""
    images = held_out(run) if held else load_data(read_config(run)).test
    count = min(DRAWN, len(images) // 2)
    asked, found = data.draw(images, count, count, 0)
    labels = torch.from_numpy(images.require_labels("the order within a class"))
    same = labels[asked][:, None] == labels[found][None]
    queries, candidates = (to_unit(images.batch(part)) for part in (asked, found))

    def distances(embedder: Embedder) -> torch.Tensor:
        return torch.cdist(embedder.embed(queries).double(), embedder.embed_candidates(candidates).double())

    overlap = class_overlap(distances(models.load(run)), distances(models.load(undefended)), same, K)
    return overlap.nanmean().item(), chance_overlap(same, K).nanmean().item()


def main() -> int:
    asked = argparse.ArgumentParser()
    asked.add_argument("runs", nargs="*", type=Path)
    asked.add_argument("--held-out", action="store_true")
    given = asked.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        run, undefended = given.runs or trained(Path(folder))
        overlap, chance = measured(run, undefended, given.held_out)
    print(f"overlap of the {K} nearest of the class {overlap:.3f}, by chance {chance:.3f}")
    against = "a random order within the class"
    return 0 if report("class_order", overlap / chance, GOAL, "higher", against) else 1


if __name__ == "__main__":
    sys.exit(main())
