"""`holdfast evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.output import Json, SplitOption, note, note_reading, number, print_json, print_table

if TYPE_CHECKING:
    from holdfast.data import Dataset, Split
    from holdfast.models import Embedder


def evaluate(
    model: Annotated[Path, typer.Argument(help="A run's folder or a checkpoint.")],
    data: Annotated[
        str | None,
        typer.Option(help="A data set's name, NAME:PATH, or a folder or tar; the run's own if left out."),
    ] = None,
    split: SplitOption = None,
    queries: Annotated[
        int | None, typer.Option(min=1, help="Draw this many queries; all images if left out.")
    ] = None,
    candidates: Annotated[
        int | None, typer.Option(min=1, help="Draw this many candidates, none of them a query.")
    ] = None,
    k: Annotated[str | None, typer.Option(help="The Ks of the table, for example 1,10,20,40.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the draw.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="The evaluation's folder; below the run's if left out.")
    ] = None,
    json: Json = False,
) -> None:
    """Measure retrieval on a data set's test part: Recall@K, mAP, NMI, one row per query."""
    from holdfast import models
    from holdfast.errors import ConfigError
    from holdfast.evaluate import KS, ROWS, folder_for
    from holdfast.evaluate import evaluate as run

    ks = parse_ks(k) if k else KS
    embedder = models.load(model)
    home = model if model.is_dir() else model.parent
    dataset = test_part(embedder, home, data, split)
    note_reading(dataset.read, dataset.skipped)
    available = candidates or len(dataset.test) - 1
    if k and max(ks) > available:
        raise ConfigError(f"--k {max(ks)} is more than the {available} candidates of a query; ask for fewer")
    done = run(
        embedder,
        dataset.test,
        out or home / folder_for(dataset, queries, candidates, seed),
        queries=queries,
        candidates=candidates,
        seed=seed,
        ks=ks,
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
            ["true recall", *(number(v) for v in summary.recall.values())],
        ],
        title=f"{dataset.name}, {dataset.split} split: {summary.queries:,} queries",
    )
    print(
        f"mAP {number(summary.map)}  mAP@R {number(summary.map_at_r)}  "
        f"R-precision {number(summary.r_precision)}  NMI {number(summary.nmi)}"
    )
    if summary.unanswerable:
        print(f"{summary.unanswerable} queries have nothing to find and are in no mean")
    print(f"rows: {done.folder / ROWS}")


def test_part(embedder: Embedder, run: Path, data: str | None, split: Split | None) -> Dataset:
    """The data set asked for, or the run's own, in the embedder's shape; the run's split where it is the run's set."""
    from holdfast import data as data_sets
    from holdfast.training import CONFIG, read_config

    if data is None or (run / CONFIG).exists():
        stored = read_config(run).data
        if data is None or stored.name == data_sets.absolute(data):
            data, split = stored.name, split or stored.split
    return data_sets.load(data, spec=embedder.spec, split=split)


def parse_ks(text: str) -> list[int]:
    """The numbers of a list such as 1,10,20."""
    from holdfast.errors import ConfigError

    try:
        ks = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--k takes whole numbers such as 1,10,20, not '{text}'") from None
    if min(ks) < 1:
        raise ConfigError(f"--k takes numbers from 1 on, not {min(ks)}")
    return ks
