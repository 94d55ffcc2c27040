"""`holdfast certify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from holdfast.cli.output import Json, SplitOption, note_reading, number, print_json, print_table


def certify(
    model: Annotated[Path, typer.Argument(help="A run's folder or a checkpoint.")],
    threat: Annotated[
        list[str], typer.Option(help="[query|candidates|both:]linf:EPS[:m=M]; may be given several times.")
    ],
    data: Annotated[
        str | None,
        typer.Option(help="A data set's name, NAME:PATH, or a folder or tar; the run's own if left out."),
    ] = None,
    split: SplitOption = None,
    k: Annotated[str, typer.Option(help="The Ks of the table.")] = "1,10,20,40",
    queries: Annotated[int, typer.Option(min=1, help="Draw this many queries.")] = 1000,
    candidates: Annotated[
        int, typer.Option(min=1, help="Draw this many candidates, none of them a query.")
    ] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the draw.")] = 0,
    method: Annotated[
        Literal["paper", "interval", "elided", "crown"],
        typer.Option(
            help="paper: Eq. 17, 18; interval: exact over the box; elided: also before the last layer; "
            "crown: also backward through the network, for pairs still open."
        ),
    ] = "interval",
    clip: Annotated[bool, typer.Option(help="Keep altered images inside [0, 1]; the paper does not.")] = True,
    out: Annotated[
        Path | None, typer.Option(help="The certification's folder; below the run's if left out.")
    ] = None,
    json: Json = False,
) -> None:
    """Prove, for a data set's test part, which hits no attacker within a threat can move."""
    from dataclasses import asdict

    from holdfast import models
    from holdfast.cli.evaluate import parse_ks, test_part
    from holdfast.evaluate import ROWS
    from holdfast.evaluate.certify import certify as run
    from holdfast.threat import Threat

    threats, ks = [Threat.parse(text) for text in threat], parse_ks(k)
    embedder = models.load(model)
    home = model if model.is_dir() else model.parent
    dataset = test_part(embedder, home, data, split)
    note_reading(dataset.read, dataset.skipped)
    named = "-".join([dataset.name, *(str(t).replace(":", "_").replace("/", "over") for t in threats)])
    box = "" if clip else "-unclipped"
    default = home / "certifications" / f"{named}-{method}{box}-q{queries}-c{candidates}-s{seed}"
    done = run(
        embedder,
        dataset.test,
        out or default,
        threats,
        queries=queries,
        candidates=candidates,
        seed=seed,
        ks=ks,
        method=method,
        clip=clip,
    )
    if json:
        print_json({"rows": done.folder / ROWS, "table": [asdict(line) for line in done.table]})
        return
    print_table(
        ["threat", "K", "recall", "cr_recall", "one-sided", "certified hit rate"],
        [
            [
                line.threat,
                str(line.k),
                number(line.recall),
                number(line.cr_recall),
                number(line.cr_recall_one_sided),
                number(line.certified_hit_rate),
            ]
            for line in done.table
        ],
        title=f"{dataset.name}: {queries:,} queries, {candidates:,} candidates, method {method}",
    )
    print(f"rows: {done.folder / ROWS}")
