"""`holdfast certify`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    method_option,
    number,
    print_json,
    print_table,
    said_of,
)
from holdfast.methods import METHODS, in_words

if TYPE_CHECKING:
    from holdfast.evaluation.certify import Certification
    from holdfast.evaluation.curve import Curve
    from holdfast.evaluation.smoothing import SmoothedCertification


def certify(
    model: Model,
    threat: Annotated[
        list[str] | None,
        typer.Option(
            help="[query|candidates|both:]linf:EPS[:m=M]; may be given several times. query:linf:auto "
            "finds the largest EPS of each query and prints the certified hit rate against EPS."
        ),
    ] = None,
    smooth: Annotated[
        str | None,
        typer.Option(
            help="Instead of a threat: certify the smoothed search in l2, by sigma=0.1,n=1000,alpha=0.01 (also "
            "first, gallery, seed, bound, backend, and rule, mean or votes: whose abstentions and attacks are counted)."
        ),
    ] = None,
    marks: Annotated[
        str | None,
        typer.Option(help="With --smooth: also write down what fewer samples say, such as 100,1000."),
    ] = None,
    attack: Annotated[
        list[str] | None,
        typer.Option(help="With --smooth: also attack each query within l2:EPS; may be given several times."),
    ] = None,
    image_size: ImageSize = None,
    channels: Channels = 3,
    data: Annotated[
        str | None,
        typer.Option(help="A data set's name, NAME:PATH, or a folder or tar; the run's own if left out."),
    ] = None,
    images_folder: Annotated[
        Path | None,
        typer.Option("--images", help="All images of a folder or tar instead of a data set's test part."),
    ] = None,
    split: SplitOption = None,
    labels: LabelsOption = None,
    k: Annotated[str, typer.Option(help="The Ks of the table.")] = "1,10,20,40",
    queries: Annotated[int, typer.Option(min=1, help="Draw this many queries.")] = 1000,
    candidates: Annotated[
        int, typer.Option(min=1, help="Draw this many candidates, none of them a query.")
    ] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the draw.")] = 0,
    method: Annotated[str, method_option(tuple(METHODS), f"{in_words(tuple(METHODS))}.")] = "interval",
    clip: Annotated[bool, typer.Option(help="Keep altered images inside [0, 1]; the paper does not.")] = True,
    held_out: Annotated[
        bool,
        typer.Option(
            "--held-out", help="The images that the run held out of training, to choose settings on."
        ),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="The certification's folder; below the run's if left out.")
    ] = None,
    on: On = "local",
    workers: Workers = None,
    json: Json = False,
) -> None:
    """Prove, for a data set's test part, which hits no attacker within a threat can move."""
    from holdfast import api
    from holdfast.cli.evaluate import parse_ks
    from holdfast.evaluation import ROWS
    from holdfast.evaluation.folder import CERTIFICATION, CURVE, SMOOTHED
    from holdfast.evaluation.subject import subject
    from holdfast.spec import CLAIM, square

    ks, fewer = parse_ks(k), [] if marks is None else parse_ks(marks, "--marks")
    sizes = [_size(text) for text in attack or ()]
    about = cache(
        partial(
            subject,
            model,
            data,
            images=images_folder,
            held_out_images=held_out,
            split=split,
            labels=labels,
            spec=square(image_size, channels),
        )
    )
    done = api.certify(
        about,
        threat or (),
        smooth=smooth,
        queries=queries,
        candidates=candidates,
        k=ks,
        seed=seed,
        method=method,
        clip=clip,
        marks=fewer,
        attacks=sizes,
        out=out,
        on=on,
        workers=workers,
    )
    if json:
        print_json({"rows": done.folder / ROWS, **_tables(done)})
        return
    drawn = f"{queries:,} queries, {candidates:,} candidates"
    if smooth is None:
        title = f"{about().name}: {drawn}, method {method}{said_of(about().embedder)}"
    else:
        title = f"{about().name}, smoothed by {smooth}: {drawn}"
    printers: dict[str, Callable[[Any, str], None]] = {
        CERTIFICATION: print_certified,
        CURVE: print_curve,
        SMOOTHED: print_smoothed,
    }
    printers[done.rows.header["config"]["kind"]](done, title)
    print(CLAIM["network input"])
    print(f"rows: {done.folder / ROWS}")


def _tables(done: Any) -> dict[str, Any]:
    """The tables that an outcome has, line by line."""
    from dataclasses import asdict

    found = {name: getattr(done, name) for name in ("table", "attacks") if hasattr(done, name)}
    return {name: [asdict(line) for line in table] for name, table in found.items()}


def _size(text: str) -> float:
    from holdfast.errors import ConfigError
    from holdfast.threat import Threat

    threat = Threat.parse(text)
    if threat.norm != "l2" or not threat.eps or threat.who != "query":
        raise ConfigError(f"a smoothed search is attacked within l2:EPS, not '{text}'")
    return threat.eps


def print_certified(done: Certification, title: str) -> None:
    """The three certified numbers for each threat and K, beside the clean one."""
    print_table(
        ["threat", "K", "chance", "recall", "cr_recall", "one-sided", "certified hit rate"],
        [
            [
                line.threat,
                str(line.k),
                number(line.chance),
                number(line.recall),
                number(line.cr_recall),
                number(line.cr_recall_one_sided),
                number(line.certified_hit_rate),
            ]
            for line in done.table
        ],
        title=title,
    )


def print_smoothed(done: SmoothedCertification, title: str) -> None:
    """Recall@K(r) of each rule, and the mean radius."""
    alpha = done.rows.header["config"]["noise"]["alpha"]
    table = [line for line in done.table if line.alpha == alpha]
    for k, n in dict.fromkeys((line.k, line.n) for line in table):
        lines = [line for line in table if (line.k, line.n) == (k, n)]
        print_table(
            ["rule", "recall", *(f"r > {r:g}" for r in lines[0].radii), "rejected", "mean radius"],
            [
                [
                    line.rule,
                    "" if line.rule == "item" else number(line.recall),
                    *(number(rate) for rate in line.recall_at),
                    number(line.rejected),
                    f"{line.mean_radius:.4f}",
                ]
                for line in lines
            ],
            title=f"{title}, K = {k}, {n:,} samples",
        )
    if done.attacks:
        print_table(
            ["attack", "recall@1", "attacked", "certified", "abstention forced", "contradicted"],
            [
                [
                    f"l2:{line.eps:g}",
                    number(line.recall),
                    number(line.attacked),
                    number(line.certified),
                    number(line.forced),
                    str(line.contradicted),
                ]
                for line in done.attacks
            ],
            title=f"{title}, attacked",
        )
    abstains = done.rows.columns["abstains"] > 0
    print(f"about the class of its first hit the search abstains on {abstains.mean():.1%} of the queries")
    together = f"{alpha / len(abstains):.2g}"
    print(
        f"each radius is too large with probability at most {alpha:g}; for all {len(abstains):,} queries at once, take "
        f"alpha={together}"
    )


def print_curve(curve: Curve, title: str) -> None:
    """Certified hit rate against eps for each K, beside the clean one, and how far half of the proofs reach."""
    from holdfast.threat import floored

    sizes = curve.table[0].eps
    print_table(
        ["K", "clean", *(f"eps {eps:g}" for eps in sizes), "median largest eps"],
        [
            [
                str(line.k),
                number(line.clean),
                *(number(rate) for rate in line.certified),
                "none" if line.median < 0 else floored(line.median),
            ]
            for line in curve.table
        ],
        title=title,
    )
