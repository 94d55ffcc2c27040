"""`holdfast demo`: the main job on real images, from training to proofs and a report."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.output import Json, note, number, print_hits, print_json, print_table

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from holdfast.data import ImageSet
    from holdfast.models import Embedder

DATA = "fashion-mnist-mini"
STEPS = 800
EPS = "0.02"
QUERIES, CANDIDATES = 200, 1000


def demo(
    out: Annotated[Path, typer.Option(help="The folder to work in.")] = Path("demo"),
    fresh: Annotated[bool, typer.Option(help="Remove what an earlier demo left there first.")] = False,
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = STEPS,
    queries: Annotated[int, typer.Option(min=1, help="Queries to certify.")] = QUERIES,
    json: Json = False,
) -> None:
    """Train on 8,000 real images that come with Holdfast, index, search with proofs, measure, report."""
    from dataclasses import asdict

    import numpy as np

    from holdfast import data
    from holdfast.cli.certify import print_curve
    from holdfast.data.export import export_images
    from holdfast.evaluation import evaluate
    from holdfast.evaluation.certify import certify
    from holdfast.evaluation.curve import certified_curve
    from holdfast.files import atomic_write
    from holdfast.gallery.building import open_and_index
    from holdfast.gallery.indexing import stored_image
    from holdfast.gallery.provers import Provers
    from holdfast.gallery.searching import search
    from holdfast.reports import hits_page, thumbnail, write_report
    from holdfast.threat import Threat

    started = time.monotonic()
    run, pictures, photos, shop = (out / name for name in ("run", "pictures", "queries", "shop.gallery"))
    if fresh:
        for folder in (run, pictures, photos):
            shutil.rmtree(folder, ignore_errors=True)
        shop.unlink(missing_ok=True)

    note(f"1/6 train: the network 'small' on {DATA}, defence certified-rank, {steps} steps")
    embedder = _train(run, steps)

    dataset = data.load(DATA)
    asked = _one_of_each_class(dataset.test)
    rest = np.setdiff1d(np.arange(len(dataset.test)), asked)
    note(f"2/6 index: {len(rest):,} pictures that training has not seen, as files in {pictures}")
    for folder, chosen in ((pictures, rest), (photos, asked)):
        if not folder.exists():
            partial = folder.with_name(f".{folder.name}")
            shutil.rmtree(partial, ignore_errors=True)
            export_images(dataset.test.take(chosen), partial)
            partial.rename(folder)
    gallery, _ = open_and_index(embedder, pictures, shop)

    files, threat = sorted(photos.rglob("*.png")), Threat.parse(f"linf:{EPS}")
    note(f"3/6 search: {len(files)} other pictures, the first of each class, with proofs at {threat}")
    with gallery:
        provers = Provers(embedder)
        results = [search(gallery, embedder, file, 10, certify=threat, provers=provers) for file in files]
    shown = [thumbnail(file.read_bytes()) for file in files]
    page = out / "hits.html"
    atomic_write(page, hits_page(results, shown, lambda path: thumbnail(stored_image(path)), str(shop)))

    note("4/6 evaluate: every test picture asked against all others")
    done = evaluate(embedder, dataset.test, run / "evaluations" / "demo")
    note(f"5/6 certify: {queries} queries against {CANDIDATES:,} candidates, at {EPS} and as far as it goes")
    threats = [Threat.parse(f"query:linf:{EPS}"), Threat.parse(f"candidates:linf:{EPS}:m=5")]
    drawn: dict[str, Any] = {"queries": queries, "candidates": CANDIDATES}
    certified = certify(embedder, dataset.test, run / "certifications" / f"demo-{queries}", threats, **drawn)
    curve = certified_curve(embedder, dataset.test, run / "certifications" / f"demo-auto-{queries}", **drawn)
    note("6/6 report")
    report = write_report(run)
    seconds = time.monotonic() - started
    if json:
        print_json(
            {
                "report": report,
                "hits": page,
                "seconds": seconds,
                **done.summary.to_json(),
                "certified": [asdict(line) for line in certified.table],
                "curve": [asdict(line) for line in curve.table],
            }
        )
        return
    # Python's sort is stable: equal counts stay in the order of the classes' names.
    order = sorted(results, key=lambda found: -found.certified)
    print("of the ten searches, the one with the most certified hits and the one with the fewest")
    print_hits(order[0])
    print_hits(order[-1])
    rates = done.summary.hit_rate
    print_table(
        ["", *(f"@{k}" for k in rates)],
        [["hit rate", *(number(v) for v in rates.values())]],
        title=f"\nwithout an attack: {done.summary.queries:,} queries",
    )
    print_curve(
        curve,
        f"\nhit rate that no attacker who alters each pixel of the query by up to eps can push below: "
        f"{queries} queries, {CANDIDATES:,} candidates",
    )
    print(f"\npictures of the hits, with their rank intervals: {page}")
    print(f"report: {report}  ({seconds:.0f} s)")
    print(f"try it in a browser: holdfast serve {shop}")


def _train(run: Path, steps: int) -> Embedder:
    """The demo's embedder: trained, gone on with, or loaded where this very training is done."""
    from holdfast import models, training
    from holdfast.errors import RunError
    from holdfast.training.config import differences

    config = training.parse(
        {
            "data": {"name": DATA},
            # In so few steps eps has to grow from the first one on, or the boxes outgrow the loss.
            "defence": {
                "name": "certified-rank",
                "eps": 0.06,
                "boxes": 64,
                "clean": 0.3,
                "ramp_start": 0,
                "ramp_end": 0.8,
            },
            "train": {"steps": steps, "batch": 160, "lr": 0.003, "clip": 10},
        }
    )
    if not (run / models.CARD).exists():
        if not training.train(config, run, say=note).outcome.finished:
            note("stopped; the same command goes on from there")
            raise typer.Exit(130)
    elif differences(training.read_config(run), config):
        raise RunError(f"{run} was trained otherwise; start anew with --fresh, or choose another --out")
    return models.load(run)


def _one_of_each_class(images: ImageSet) -> NDArray[np.int64]:
    import numpy as np

    labels = images.require_labels("the demo")
    first: NDArray[np.int64] = np.unique(labels, return_index=True)[1]
    return first
