"""`holdfast evaluate`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.attacked import print_attacked
from holdfast.cli.output import (
    Channels,
    ImageSize,
    Json,
    LabelsOption,
    Model,
    On,
    SplitOption,
    Workers,
    number,
    print_json,
    print_table,
    said_of,
)

if TYPE_CHECKING:
    from holdfast.evaluation import Evaluation
    from holdfast.evaluation.subject import Subject


def evaluate(
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
    from holdfast import api
    from holdfast.evaluation.folder import ER_RECALL, RETRIEVAL, SUITE
    from holdfast.evaluation.subject import subject
    from holdfast.spec import square

    about = cache(
        partial(
            subject,
            model,
            data,
            images=images,
            queries=None if gallery is None else queries,
            gallery=gallery,
            split=split,
            labels=labels,
            without_duplicates=without_duplicates,
            spec=square(image_size, channels),
        )
    )
    done = api.evaluate(
        about,
        attacks=attacks,
        threat=threat,
        queries=None if gallery is not None or queries is None else _count(queries),
        candidates=candidates,
        k=parse_ks(k) if k else None,
        seed=seed,
        optimiser=optimiser,
        steps=steps,
        step=step,
        restarts=restarts,
        budget=budget,
        ca_queries=ca_queries,
        check_black_box=check_black_box,
        out=out,
        on=on,
        workers=workers,
    )
    printers: dict[str, Callable[[Any, Subject, bool], None]] = {
        RETRIEVAL: print_retrieval,
        SUITE: print_attacked,
        ER_RECALL: print_attacked,
    }
    printers[done.rows.header["config"]["kind"]](done, about(), json)


def print_retrieval(done: Evaluation, about: Subject, json: bool) -> None:
    """The rates at each K beside chance, and the numbers of the whole."""
    from holdfast.evaluation import ROWS

    summary, rows = done.summary, done.folder / ROWS
    if json:
        print_json({"rows": rows, "data": about.name, "split": about.split, **summary.to_json()})
        return
    print_table(
        ["", *(f"@{k}" for k in summary.hit_rate)],
        [
            ["hit rate", *(number(v) for v in summary.hit_rate.values())],
            ["by chance", *(number(v) for v in summary.chance.values())],
            ["true recall", *(number(v) for v in summary.recall.values())],
        ],
        title=f"{about.name}, {about.split} split: {summary.queries:,} queries{said_of(about.embedder)}",
    )
    print(
        f"mAP {number(summary.map)}  mAP@R {number(summary.map_at_r)}  "
        f"R-precision {number(summary.r_precision)}  NMI {number(summary.nmi)}"
    )
    if summary.unanswerable:
        print(f"{summary.unanswerable} queries have nothing to find and are in no mean")
    print(f"rows: {rows}")


def _count(queries: str) -> int:
    from holdfast.errors import ConfigError

    if not queries.isdecimal() or int(queries) < 1:
        raise ConfigError(
            f"--queries is a number from 1 on, or a folder beside --gallery FOLDER, not '{queries}'"
        )
    return int(queries)


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
