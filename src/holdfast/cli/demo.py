"""`holdfast demo`: the main job on real images, from training to a report."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.output import Json, note, number, print_json, print_table

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from holdfast.data import ImageSet

DATA = "fashion-mnist-mini"
EPOCHS = 20


def demo(
    out: Annotated[Path, typer.Option(help="The folder to work in.")] = Path("demo"),
    fresh: Annotated[bool, typer.Option(help="Remove what an earlier demo left there first.")] = False,
    epochs: Annotated[float, typer.Option(help="Passes over the training images.")] = EPOCHS,
    json: Json = False,
) -> None:
    """Train on 8,000 real images that come with Holdfast, index, search, measure, report."""
    import numpy as np

    from holdfast import data, models, training
    from holdfast.data.export import export_images
    from holdfast.evaluate import evaluate
    from holdfast.files import atomic_write
    from holdfast.gallery.indexing import stored_image
    from holdfast.report import hits_page, thumbnail, write_report
    from holdfast.workflow import open_and_index, search

    started = time.monotonic()
    run, pictures, queries, shop = out / "run", out / "pictures", out / "queries", out / "shop.gallery"
    if fresh:
        for folder in (run, pictures, queries):
            shutil.rmtree(folder, ignore_errors=True)
        shop.unlink(missing_ok=True)

    note(f"1/5 train: the network 'small' on {DATA}, triplet loss, {epochs:g} epochs")
    if not (run / models.CARD).exists():
        config = training.parse({"data": {"name": DATA}, "train": {"epochs": epochs}})
        outcome = training.train(config, run, say=note).outcome
        if not outcome.finished:
            note("stopped; the same command goes on from there")
            raise typer.Exit(130)
    embedder = models.load(run)

    dataset = data.load(DATA)
    asked = _one_of_each_class(dataset.test)
    rest = np.setdiff1d(np.arange(len(dataset.test)), asked)
    note(f"2/5 index: {len(rest):,} pictures that training has not seen, as files in {pictures}")
    for folder, chosen in ((pictures, rest), (queries, asked)):
        if not folder.exists():
            partial = folder.with_name(f".{folder.name}")
            shutil.rmtree(partial, ignore_errors=True)
            export_images(dataset.test.take(chosen), partial)
            partial.rename(folder)
    gallery, _ = open_and_index(embedder, pictures, shop, location=run)

    files = sorted(queries.rglob("*.png"))
    note(f"3/5 search: {len(files)} other pictures, one of each class")
    with gallery:
        results = [search(gallery, embedder, file, k=10) for file in files]
    shown = [thumbnail(file.read_bytes()) for file in files]
    page = out / "hits.html"
    atomic_write(page, hits_page(results, shown, lambda path: thumbnail(stored_image(path)), str(shop)))
    first = results[0]

    note("4/5 evaluate: every test picture asked against all others")
    done = evaluate(embedder, dataset.test, run / "evaluations" / "demo")
    note("5/5 report")
    report = write_report(run)
    seconds = time.monotonic() - started
    if json:
        print_json({"report": report, "hits": page, "seconds": seconds, **done.summary.to_json()})
        return
    print_table(
        ["#", "id", "label", "distance"],
        [[str(h.rank), h.id, h.label or "", f"{h.distance:.4f}"] for h in first.hits],
        title=f"nearest to {first.query}",
    )
    rates = done.summary.hit_rate
    print_table(["", *(f"@{k}" for k in rates)], [["hit rate", *(number(v) for v in rates.values())]])
    print(f"mAP {number(done.summary.map)}  NMI {number(done.summary.nmi)}  ({seconds:.0f} s)")
    print(f"pictures of the hits: {page}")
    print(f"report: {report}")


def _one_of_each_class(images: ImageSet) -> NDArray[np.int64]:
    import numpy as np

    labels = images.require_labels("the demo")
    first: NDArray[np.int64] = np.unique(labels, return_index=True)[1]
    return first
