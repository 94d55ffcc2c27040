"""`holdfast metric`: learn a metric on feature vectors, and certify its neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.output import (
    Channels,
    ImageSize,
    Json,
    Model,
    SplitOption,
    note,
    print_json,
    print_table,
)

if TYPE_CHECKING:
    from holdfast.neighbours.certification import RobustError

app = typer.Typer(help="Metrics on feature vectors: features, learn, certify.", no_args_is_help=True)


@app.command("features")
def export(
    model: Model,
    out: Annotated[Path, typer.Option(help="The .npz, for 'holdfast metric learn'.")],
    data: Annotated[
        str | None,
        typer.Option(help="A data set's name, NAME:PATH, or a folder or tar; the run's own if left out."),
    ] = None,
    split: SplitOption = None,
    image_size: ImageSize = None,
    channels: Channels = 3,
    json: Json = False,
) -> None:
    """Write a model's vectors of a data set as features, to learn a metric on them.

    A metric learned from them is used by 'holdfast index --metric'. FILE.py is run to get NAME.
    """
    from holdfast import models
    from holdfast.data import reading_lines
    from holdfast.evaluation.subject import dataset_of, home_of
    from holdfast.neighbours import export_features
    from holdfast.spec import square

    embedder = models.find(model, square(image_size, channels))
    dataset = dataset_of(embedder, home_of(model), data, split)
    for line in reading_lines(dataset.read, dataset.skipped):
        note(line)
    written = export_features(embedder, dataset, out)
    if not written.test:
        note("test images are of other classes than training images: a quarter of the latter is for testing")
    if json:
        print_json({"features": out, "train": written.train, "test": written.test, "dim": embedder.dim})
        return
    print(
        f"{out}: {written.train:,} vectors to learn from, {written.test:,} to test on, of {embedder.dim} features"
    )


@app.command()
def learn(
    features: Annotated[
        Path, typer.Argument(help="An .npz with X_train, y_train, X_test, y_test, or with X and y.")
    ],
    out: Annotated[Path, typer.Option(help="The metric's file.")],
    method: Annotated[
        str, typer.Option(help="arml, euclidean, or through metric-learn nca, lmnn, itml, lfda.")
    ] = "arml",
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="A setting of the method, as key=value: iterations=100, lr=0.003, rank=32."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Learn a Mahalanobis metric from labelled feature vectors."""
    from holdfast.cli.settings import assignments
    from holdfast.neighbours import learn_from, load_features

    found = load_features(features, seed)
    note(f"{len(found.train):,} vectors of {found.train.shape[1]} features, {len(found.classes)} classes")
    made = learn_from(found, method, seed=seed, **assignments(set_ or []))
    made.save(out)
    if json:
        print_json(
            {"metric": out, "rank": made.transform.shape[0], "features": made.features, "about": made.about}
        )
        return
    print(f"{out}: {method}, {made.transform.shape[0]} × {made.features}")


@app.command()
def certify(
    metrics: Annotated[
        list[Path], typer.Argument(help="Metrics made by 'holdfast metric learn'; several are compared.")
    ],
    k: Annotated[int, typer.Option(min=1, help="How many neighbours vote; odd.")] = 1,
    exact: Annotated[
        bool, typer.Option("--exact", help="For K = 1: the smallest move itself, from below and above.")
    ] = False,
    attack: Annotated[
        bool, typer.Option(help="Also search for the shortest move that makes each vote wrong.")
    ] = True,
    box: Annotated[
        str | None,
        typer.Option(
            metavar="LOW,HIGH",
            help="An attacker keeps scaled features in here: 0,1 is the range of the training part.",
        ),
    ] = None,
    points: Annotated[int, typer.Option(min=1, help="How many test points, drawn at random.")] = 1000,
    radius: Annotated[
        list[float] | None,
        typer.Option(help="A radius of the table; may be given several times. Quantiles if left out."),
    ] = None,
    features: Annotated[
        Path | None,
        typer.Option(help="Path to the features, if they have moved since the metric was learned."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The certification's folder; beside the metric if left out.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="The page; in the first certification's folder if left out.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the draw.")] = 0,
    json: Json = False,
) -> None:
    """Prove how far feature vectors may move, in l2, before their neighbours outvote them; and attack them.

    Writes rows, the moves that were found, and a page with both robust errors against the radius. Exit code 1 if
    a move is shorter than what is certified.
    """
    from dataclasses import asdict

    from holdfast.errors import ConfigError
    from holdfast.evaluation import ROWS
    from holdfast.neighbours import certify_learned, contradictions, robust_error
    from holdfast.neighbours.certification import MOVES
    from holdfast.reports.neighbours import write_neighbours

    if out is not None and len(metrics) > 1:
        raise ConfigError("--out is for a single metric; several go into folders beside each of them")
    inside = None if box is None else _box(box)
    done = {
        str(metric): certify_learned(
            metric,
            features,
            out,
            k=k,
            exact=exact,
            attack=attack,
            box=inside,
            points=points,
            seed=seed,
            radii=radius or (),
            say=note,
        )
        for metric in metrics
    }
    first = next(iter(done.values()))
    at = [line.radius for line in first.table]
    tables = {name: [robust_error(entry.rows, r) for r in at] for name, entry in done.items()}
    page = write_neighbours(done, html or first.folder / "neighbours.html", at)
    findings = {name: contradictions(entry.rows) for name, entry in done.items()}
    if json:
        documents = [
            {
                "metric": name,
                "rows": entry.folder / ROWS,
                "moves": entry.folder / MOVES if (entry.folder / MOVES).exists() else None,
                "page": page,
                "table": [asdict(line) for line in tables[name]],
                "errors": [finding.text for finding in findings[name]],
            }
            for name, entry in done.items()
        ]
        print_json(documents[0] if len(documents) == 1 else documents)
    else:
        for name, entry in done.items():
            _print_errors(name, entry.rows.header["config"], tables[name])
            for finding in findings[name]:
                print(finding)
            print(f"rows: {entry.folder / ROWS}")
        if not radius:
            print(
                f"these radii are quantiles of {metrics[0]}; to compare with others, give the same with --radius"
            )
        print(f"page: {page}")
    if any(findings.values()):
        raise typer.Exit(1)


def _print_errors(name: str, config: dict[str, Any], table: Sequence[RobustError]) -> None:
    attacked = table[0].attacked is not None
    print_table(
        ["radius", "certified robust error", "95 %", *(["attacked"] if attacked else [])],
        [
            [
                f"{line.radius:g}",
                f"{line.certified:.3f}",
                f"{line.interval[0]:.3f}–{line.interval[1]:.3f}",
                *([f"{line.attacked:.3f}"] if line.attacked is not None else []),
            ]
            for line in table
        ],
        title=f"{name}, {config['k']}-NN, {config['points']:,} test points, features scaled to [0, 1]",
    )


def _box(text: str) -> tuple[float, float]:
    from holdfast.errors import ConfigError
    from holdfast.numbers import parse_number

    try:
        low, high = (parse_number(part.strip()) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--box takes LOW,HIGH, for example 0,1, not '{text}'") from None
    return low, high
