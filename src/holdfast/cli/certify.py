"""`holdfast certify`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from holdfast.cli.output import (
    Json,
    LabelsOption,
    On,
    SplitOption,
    Workers,
    note,
    note_reading,
    note_threats,
    number,
    print_json,
    print_table,
    said_of,
)

if TYPE_CHECKING:
    from holdfast.evaluate.certify import Certification
    from holdfast.evaluate.curve import Curve
    from holdfast.evaluate.smoothing import SmoothedCertification


def certify(
    context: typer.Context,
    model: Annotated[
        Path,
        typer.Argument(help="A run's folder, a checkpoint or FILE.py:NAME; with --smooth also FILE.onnx."),
    ],
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
    image_size: Annotated[
        int | None, typer.Option(help="For FILE.py:NAME or FILE.onnx that leave it open: the images' side.")
    ] = None,
    channels: Annotated[int, typer.Option(help="The same: 3 for colour, 1 for grey.")] = 3,
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
    method: Annotated[
        Literal["paper", "interval", "elided", "crown"],
        typer.Option(
            help="paper: Eq. 17, 18; interval: exact over the box; elided: also before the last layer; "
            "crown: also backward through the network, for pairs still open."
        ),
    ] = "interval",
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
    from dataclasses import asdict

    from holdfast import models, training
    from holdfast.attacks.noisy import COPIES, STEPS
    from holdfast.certify.smoothing import check_samples, parse_smoothing
    from holdfast.cli.evaluate import folder_part, parse_ks, spec_of, test_part
    from holdfast.errors import ConfigError, ModelError
    from holdfast.evaluate import ROWS
    from holdfast.evaluate.certify import certify as run
    from holdfast.evaluate.curve import Curve, certified_curve
    from holdfast.evaluate.smoothing import SmoothedCertification, certify_smoothed
    from holdfast.evaluate.spread import spread_over
    from holdfast.models import Embedder, Smoothed
    from holdfast.spec import CLAIM
    from holdfast.threat import Threat

    if bool(threat) == bool(smooth):
        raise ConfigError(
            "give one thing to certify against: --threat query:linf:0.1, or --smooth sigma=0.1,n=1000"
        )
    if smooth and (method != "interval" or not clip):
        raise ConfigError("--method and --clip are for threats; smoothing has neither")
    if not smooth and (marks or attack):
        raise ConfigError("--marks and --attack go with --smooth")
    how = parse_smoothing(smooth) if smooth else None
    threats, ks = [Threat.parse(text) for text in threat or ()], parse_ks(k)
    note_threats(*threats)
    if how is not None:
        check_samples(how, max(ks), max(ks))
    fewer = [] if marks is None else parse_ks(marks, "--marks")
    sizes = [_size(text) for text in attack or ()]
    if images_folder is not None and (data is not None or held_out):
        raise ConfigError("give one of --data, --images and --held-out")
    spread = context.with_resource(spread_over(on, workers))
    layerless = ModelError(f"{model} has no layers that bounds could pass; certify it by --smooth")
    if not smooth and model.suffix == ".onnx":
        raise layerless
    embedder = models.find(model, spec_of(image_size, channels))
    if isinstance(embedder, Smoothed):
        raise ModelError(f"{model} is smoothed already")
    if not smooth and not isinstance(embedder, Embedder):
        raise layerless
    home = models.results_folder(model)
    if held_out:
        images = training.held_out(home)
    else:
        dataset = (
            test_part(embedder, home, data, split, labels)
            if images_folder is None
            else folder_part(embedder, images_folder, labels)
        )
        note_reading(dataset.read, dataset.skipped)
        images = dataset.test
    part = f"{images.name}-held-out" if held_out else images.name
    named = "-".join([part, *(str(t).replace(":", "_").replace("/", "over") for t in threats)])
    box = "" if clip else "-unclipped"
    default = home / "certifications" / f"{named}-{method}{box}-q{queries}-c{candidates}-s{seed}"
    title = f"{part}: {queries:,} queries, {candidates:,} candidates, method {method}{said_of(embedder)}"
    settings: dict[str, Any] = {
        "queries": queries,
        "candidates": candidates,
        "seed": seed,
        "ks": ks,
        "method": method,
        "clip": clip,
        "spread": spread,
    }
    done: Certification | Curve | SmoothedCertification
    if smooth is not None and how is not None:
        more = "".join([*(f"-n{mark}" for mark in fewer), *(f"-l2_{size:g}" for size in sizes)])
        drawn = f"q{queries}-c{candidates}-s{seed}{more}"
        place = home / "certifications" / f"{part}-{smooth.replace(',', '-')}-{drawn}"
        note(
            f"{queries:,} queries of {how.first + how.n:,} samples and {candidates:,} candidates of {how.gallery:,}: "
            f"{queries * (how.first + how.n) + candidates * how.gallery:,} images through the network"
        )
        if sizes:
            each = queries * len(sizes)
            note(
                f"attacks: {each * COPIES * STEPS:,} more with gradients, and {each * (how.first + how.n):,} to search"
            )
        done = certify_smoothed(
            embedder,
            images,
            out or place,
            how,
            queries=queries,
            candidates=candidates,
            seed=seed,
            ks=ks,
            marks=fewer,
            attacks=sizes,
            spread=spread,
        )
    elif not isinstance(embedder, Embedder):
        raise layerless
    elif any(t.eps is None for t in threats):
        if len(threats) > 1:
            raise ConfigError("ask for an auto threat by itself; its table is another one")
        done = certified_curve(embedder, images, out or default, threats[0], **settings)
    else:
        done = run(embedder, images, out or default, threats, **settings)
    if json:
        document = {"rows": done.folder / ROWS, "table": [asdict(line) for line in done.table]}
        if isinstance(done, SmoothedCertification):
            document["attacks"] = [asdict(line) for line in done.attacks]
        print_json(document)
        return
    if isinstance(done, SmoothedCertification):
        print_smoothed(done, f"{part}, smoothed by {smooth}: {queries:,} queries, {candidates:,} candidates")
    elif isinstance(done, Curve):
        print_curve(done, title)
    else:
        print_certified(done, title)
    print(CLAIM["network input"])
    print(f"rows: {done.folder / ROWS}")


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
