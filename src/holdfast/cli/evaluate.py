"""`holdfast evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.output import (
    Channels,
    ImageSize,
    Json,
    LabelsOption,
    Model,
    On,
    SplitOption,
    Workers,
    note,
    note_reading,
    number,
    print_json,
    print_table,
    said_of,
)

if TYPE_CHECKING:
    from holdfast.data import Dataset, Labels, Split
    from holdfast.models import AnyEmbedder
    from holdfast.spec import ImageSpec


MOST_COMPARED = 20_000
"""Images among which copies are looked for without being asked: each is compared with all."""


def evaluate(
    context: typer.Context,
    model: Model,
    data: Annotated[
        str | None,
        typer.Option(help="A data set's name, NAME:PATH, or a folder or tar; the run's own if left out."),
    ] = None,
    split: SplitOption = None,
    labels: LabelsOption = None,
    queries: Annotated[
        str | None,
        typer.Option(
            metavar="N|FOLDER",
            help="Draw this many queries (all images if left out), or a folder of them, with --gallery.",
        ),
    ] = None,
    gallery: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="The candidates, where --queries is a folder.")
    ] = None,
    without_duplicates: Annotated[
        bool,
        typer.Option("--without-duplicates", help="Leave out pictures that are nearly copies of another."),
    ] = False,
    candidates: Annotated[
        int | None,
        typer.Option(
            min=1, help="Draw this many candidates, none of them a query; all the rest if left out."
        ),
    ] = None,
    k: Annotated[str | None, typer.Option(help="The Ks of the table, for example 1,10,20,40.")] = None,
    attacks: Annotated[
        str | None,
        typer.Option(help="Attack it: ers (all of ERS and ARS), er-recall, or some, for example qa+,gtm."),
    ] = None,
    threat: Annotated[
        str | None,
        typer.Option(help="What the attacks may do: [query|candidates:]NORM:EPS.  [default: linf:8/255]"),
    ] = None,
    optimiser: Annotated[
        str | None,
        typer.Option(
            help="pgd, pgd-plain, nes or spsa; or a printed search: paper (Kakizaki et al.), published (ERS tables). "
            "pgd if there are gradients, else nes."
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Gradient steps.  [default: 32; er-recall: 100]")
    ] = None,
    step: Annotated[float | None, typer.Option(help="Size of a step, in pixel values.")] = None,
    restarts: Annotated[int, typer.Option(min=1, help="Starts; all but the first are random.")] = 1,
    budget: Annotated[
        int, typer.Option(min=1, help="Images that nes and spsa may show to the model for each attacked one.")
    ] = 1000,
    ca_queries: Annotated[
        int, typer.Option(min=1, help="Queries whose candidates er-recall alters, 100 for each.")
    ] = 100,
    check_black_box: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Repeat this many trials of each attack with nes, to see whether gradients mislead.  "
            "[default: 10; er-recall: 0]",
        ),
    ] = None,
    images: Annotated[
        Path | None, typer.Option(help="All images of a folder or tar instead of a data set's test part.")
    ] = None,
    image_size: ImageSize = None,
    channels: Channels = 3,
    seed: Annotated[int, typer.Option(help="Seed of the draw.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="The evaluation's folder; below the run's if left out.")
    ] = None,
    on: On = "local",
    workers: Workers = None,
    json: Json = False,
) -> None:
    """Measure retrieval on a data set's test part: Recall@K, mAP, NMI, one row per query.

    With --attacks: what an attacker can do to it, as ERS, ARS or ER-Recall; exit code 1 if an attack
    removes a hit that is certified. FILE.py is run to get NAME.
    """
    from holdfast import models
    from holdfast.errors import ConfigError
    from holdfast.evaluate import KS, ROWS, folder_for
    from holdfast.evaluate import evaluate as run
    from holdfast.evaluate.spread import spread_over

    ks = parse_ks(k) if k else KS
    if attacks is None and threat is not None:
        raise ConfigError("--threat is for --attacks, for example --attacks ers --threat linf:8/255")
    spread = context.with_resource(spread_over(on, workers))
    drawn = None if gallery is not None or queries is None else _count(queries)
    if gallery is not None and (queries is None or data is not None or images is not None):
        raise ConfigError("--gallery FOLDER goes with --queries FOLDER, and without --data and --images")
    embedder = models.find(model, spec_of(image_size, channels))
    home = models.results_folder(model)
    if gallery is not None and queries is not None:
        dataset = two_folders(embedder, queries, gallery, labels)
    elif images is not None:
        if data is not None:
            raise ConfigError("give --data or --images, not both")
        dataset = folder_part(embedder, images, labels)
    else:
        dataset = test_part(embedder, home, data, split, labels)
    note_reading(dataset.read, dataset.skipped)
    dataset = looked_through(dataset, without_duplicates)
    if attacks is not None:
        from holdfast.cli.attacked import run_attacks
        from holdfast.evaluate.attacked import Settings

        usual = 100 if attacks == "er-recall" else 32
        run_attacks(
            embedder,
            dataset.test,
            home,
            attacks,
            threat or "linf:8/255",
            out=out,
            queries=drawn,
            candidates=candidates,
            ca_queries=ca_queries,
            seed=seed,
            ks=ks if k else None,
            settings=Settings(optimiser, steps or usual, step, restarts, budget),
            check_black_box=(0 if attacks == "er-recall" else 10)
            if check_black_box is None
            else check_black_box,
            spread=spread,
            json=json,
        )
        return
    available = candidates or len(dataset.test) - 1
    if k and max(ks) > available:
        raise ConfigError(f"--k {max(ks)} is more than the {available} candidates of a query; ask for fewer")
    done = run(
        embedder,
        dataset.test,
        out or home / folder_for(dataset, drawn, candidates, seed),
        queries=drawn,
        candidates=candidates,
        seed=seed,
        ks=ks,
        spread=spread,
    )
    summary = done.summary
    if len(set(done.rows.columns["label"].tolist())) == 1:
        note("all queries are of one class: every hit is right, and the numbers say nothing")
    if json:
        print_json(
            {"rows": done.folder / ROWS, "data": dataset.name, "split": dataset.split, **summary.to_json()}
        )
        return
    columns = ["", *(f"@{k}" for k in summary.hit_rate)]
    print_table(
        columns,
        [
            ["hit rate", *(number(v) for v in summary.hit_rate.values())],
            ["by chance", *(number(v) for v in summary.chance.values())],
            ["true recall", *(number(v) for v in summary.recall.values())],
        ],
        title=f"{dataset.name}, {dataset.split} split: {summary.queries:,} queries{said_of(embedder)}",
    )
    print(
        f"mAP {number(summary.map)}  mAP@R {number(summary.map_at_r)}  "
        f"R-precision {number(summary.r_precision)}  NMI {number(summary.nmi)}"
    )
    if summary.unanswerable:
        print(f"{summary.unanswerable} queries have nothing to find and are in no mean")
    print(f"rows: {done.folder / ROWS}")


def spec_of(image_size: int | None, channels: int) -> ImageSpec | None:
    """The images that a model takes, where the user says so."""
    from holdfast.spec import ImageSpec

    return None if image_size is None else ImageSpec(channels, image_size, image_size)


def folder_part(embedder: AnyEmbedder, images: Path, labels: Labels | None = None) -> Dataset:
    """All images of a folder, as something to test on."""
    from holdfast import data as data_sets

    found, skipped = data_sets.load_images(images, spec=embedder.spec, labels=labels or "deepest")
    return data_sets.Dataset(found.name, found.take([]), found, "given", skipped, len(found))


def two_folders(embedder: AnyEmbedder, queries: str, gallery: str, labels: Labels | None = None) -> Dataset:
    """The images of two folders, as something to test on."""
    from holdfast import data as data_sets

    found, skipped = data_sets.load_pair(queries, gallery, spec=embedder.spec, labels=labels or "deepest")
    return data_sets.Dataset(found.name, found.take([]), found, "given", skipped, len(found))


def looked_through(dataset: Dataset, without_duplicates: bool) -> Dataset:
    """The data set, with what to know of it said before the work begins: its classes, and copies in it."""
    from dataclasses import replace

    from holdfast import data as data_sets

    test = dataset.test
    if test.labels is not None:
        present = sorted({test.classes[label] for label in test.labels.tolist()})
        note(f"{len(test):,} images, {data_sets.classes_line(present)}")
    if len(test) > MOST_COMPARED and not without_duplicates:
        return dataset
    copies = data_sets.count_near_duplicates(test)
    if copies and without_duplicates:
        note(f"left out {copies:,} near-duplicates")
        return replace(dataset, test=data_sets.without_near_duplicates(test))
    if copies:
        note(f"{copies:,} images are near-duplicates of another; --without-duplicates leaves them out")
    return dataset


def _count(queries: str) -> int:
    from holdfast.errors import ConfigError

    if not queries.isdecimal() or int(queries) < 1:
        raise ConfigError(
            f"--queries is a number from 1 on, or a folder beside --gallery FOLDER, not '{queries}'"
        )
    return int(queries)


def test_part(
    embedder: AnyEmbedder, run: Path, data: str | None, split: Split | None, labels: Labels | None
) -> Dataset:
    """The data set asked for, or the run's own, in the embedder's shape.

    The split and the class folders are the run's where it is the run's set.
    """
    from holdfast import data as data_sets
    from holdfast.errors import ConfigError
    from holdfast.training import CONFIG, read_config

    if data is None and not (run / CONFIG).exists():
        raise ConfigError(f"{run} does not say what it was trained on; give --data, or --images FOLDER")
    if data is None or (run / CONFIG).exists():
        stored = read_config(run).data
        if data is None or stored.name == data_sets.absolute(data):
            data, split, labels = stored.name, split or stored.split, labels or stored.labels
    return data_sets.load(data, spec=embedder.spec, split=split, labels=labels or "deepest")


def parse_ks(text: str, option: str = "--k") -> list[int]:
    """The numbers of a list such as 1,10,20."""
    from holdfast.errors import ConfigError
    from holdfast.numbers import parse_whole

    try:
        ks = [parse_whole(part.strip()) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option} takes whole numbers such as 1,10,20, not '{text}'") from None
    if min(ks) < 1:
        raise ConfigError(f"{option} takes numbers from 1 on, not {min(ks)}")
    return ks
