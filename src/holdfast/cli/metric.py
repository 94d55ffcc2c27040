"""`holdfast metric`: learn a metric on feature vectors, and certify its neighbours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.output import Json, note, print_json, print_table

app = typer.Typer(help="Metrics on feature vectors: learn, certify.", no_args_is_help=True)


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
    from holdfast.data.features import load_features
    from holdfast.training.metrics import learn as run

    options = assignments(set_ or [])
    found = load_features(features, seed)
    note(f"{len(found.train):,} vectors of {found.train.shape[1]} features, {len(found.classes)} classes")
    made = run(found.train, found.train_labels, method, seed=seed, **options)
    made.about.update(features=str(found.path), digest=found.digest, split_seed=seed)
    made.save(out)
    if json:
        print_json(
            {"metric": out, "rank": made.transform.shape[0], "features": made.features, "about": made.about}
        )
        return
    print(f"{out}: {method}, {made.transform.shape[0]} × {made.features}")


@app.command()
def certify(
    metric: Annotated[Path, typer.Argument(help="A metric made by 'holdfast metric learn'.")],
    k: Annotated[int, typer.Option(min=1, help="How many neighbours vote; odd.")] = 1,
    exact: Annotated[
        bool, typer.Option("--exact", help="For K = 1: the smallest move itself, from below and above.")
    ] = False,
    points: Annotated[int, typer.Option(min=1, help="How many test points, drawn at random.")] = 1000,
    radius: Annotated[
        list[float] | None,
        typer.Option(help="A radius of the table; may be given several times. Quantiles if left out."),
    ] = None,
    features: Annotated[
        Path | None, typer.Option(help="The features, where they are no longer where they were.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The certification's folder; beside the metric if left out.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the draw.")] = 0,
    json: Json = False,
) -> None:
    """Prove how far feature vectors may move, in l2, before their neighbours outvote them."""
    from dataclasses import asdict

    from holdfast.data.features import load_features
    from holdfast.errors import DataError
    from holdfast.evaluate import ROWS
    from holdfast.evaluate.neighbours import certify_metric
    from holdfast.models.metric import Metric

    made = Metric.load(metric)
    found = load_features(features or Path(made.about.get("features", "")), made.about.get("split_seed", 0))
    if made.about.get("digest") not in (None, found.digest):
        raise DataError(
            f"{found.path} is not what {metric} was learned from; its certificates would be of another"
        )
    place = metric.with_name(f"{metric.name}-k{k}{'-exact' if exact else ''}-p{points}-s{seed}")
    done = certify_metric(
        made, found, out or place, k=k, exact=exact, points=points, seed=seed, radii=radius or ()
    )
    if json:
        print_json({"rows": done.folder / ROWS, "table": [asdict(line) for line in done.table]})
        return
    print_table(
        ["radius", "certified robust error", "95 %", *(["attacked"] if exact else [])],
        [
            [
                f"{line.radius:g}",
                f"{line.certified:.3f}",
                f"{line.interval[0]:.3f}–{line.interval[1]:.3f}",
                *([f"{line.attacked:.3f}"] if line.attacked is not None else []),
            ]
            for line in done.table
        ],
        title=f"{metric}, {k}-NN, {len(done.rows):,} test points, features scaled to [0, 1]",
    )
    if not radius:
        print(
            "these radii are quantiles of this metric's own; to compare metrics, give the same with --radius"
        )
    print(f"rows: {done.folder / ROWS}")
