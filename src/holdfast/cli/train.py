"""`holdfast train`."""

from __future__ import annotations

import json as json_module
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.output import Device, Json, LabelsOption, SplitOption, note, print_json
from holdfast.presets import in_words

if TYPE_CHECKING:
    from holdfast.data import ImageSet


def train(
    out: Annotated[Path, typer.Option(help="The run's folder: config, log, state, checkpoint.")],
    data: Annotated[
        str | None, typer.Option(help="A data set's name, NAME:PATH, or a folder or tar of images by class.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="A network of ours, for example small, or a model to go on from: my.py:net, hf:FOLDER, a run ..."
        ),
    ] = None,
    defence: Annotated[str | None, typer.Option(help="The way of training, for example triplet.")] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help=f"Settings that go together; what is given by hand goes before them: {in_words()}."
        ),
    ] = None,
    threat: Annotated[
        str | None, typer.Option(help="What to train against, linf:EPS: the same as defence.eps.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A TOML file with settings; options here go before it.")
    ] = None,
    split: SplitOption = None,
    labels: LabelsOption = None,
    image_size: Annotated[int | None, typer.Option(help="Side of the square images, in pixels.")] = None,
    dim: Annotated[int | None, typer.Option(help="Dimension of the embedding.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the data.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps; overrides epochs.")] = None,
    gradients: Annotated[
        int | None,
        typer.Option(help="A budget of image gradients, from which the number of steps follows."),
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Images in a step.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    noise: Annotated[
        float | None,
        typer.Option(
            help="Train on images with Gaussian noise of this standard deviation, for smoothed search."
        ),
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(
            "--train",
            metavar="all|last-blocks|head",
            help="What learns: the whole network, its last blocks, or a head on kept features.",
        ),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            metavar="auto|float32|bfloat16",
            help="Of the products in training; auto measures. Search and proofs are float32 in any case.",
        ),
    ] = None,
    device: Device = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any setting, as key=value: train.clip=10, defence.margin=0.2."),
    ] = None,
    json: Json = False,
) -> None:
    """Train an embedder. Run the same command again to go on after a stop."""
    from holdfast import models
    from holdfast.cli.settings import assignments
    from holdfast.training import merge, parse, read_toml, under
    from holdfast.training import train as run_training

    options: dict[str, Any] = {
        "seed": seed,
        "data": {"name": data, "split": split, "labels": labels, "image_size": image_size},
        "model": {"name": model, "dim": dim},
        "defence": {"name": defence},
        "train": {
            "epochs": epochs,
            "steps": steps,
            "gradients": gradients,
            "batch": batch,
            "lr": lr,
            "noise": noise,
            "part": part,
            "precision": precision,
            "device": device,
        },
    }
    given, assigned = merge(read_toml(config) if config else {}, options), assignments(set_ or [])
    below: dict[str, Any] = {} if preset is None else under(preset, merge(given, assigned))
    if threat is not None:
        named = merge(below, merge(given, assigned)).get("defence", {}).get("name")
        given = merge(given, {"defence": {"eps": _eps(threat, named)}})
    run = run_training(parse(merge(below, merge(given, assigned))), out, say=note)
    outcome = run.outcome
    if int(os.environ.get("RANK", "0")) > 0:
        return  # The first of several processes speaks for all.
    if not outcome.finished:
        note(f"stopped after step {outcome.step} of {outcome.steps}; the same command goes on from there")
        raise typer.Exit(130)
    if json:
        card = json_module.loads((out / models.CARD).read_text())
        print_json(
            {
                "run": out,
                "steps": outcome.steps,
                "seconds": outcome.seconds,
                "metrics": run.metrics,
                "card": card,
            }
        )
        return
    print(f"trained to step {outcome.steps:,} ({outcome.seconds:.0f} s here)")
    if run.validation is not None and (rate := run.metrics.get("hit_rate_1")) is not None:
        count, classes = len(run.validation), len(set(run.validation.require_labels("validation").tolist()))
        print(
            f"validation hit rate {rate:.3f}: the share of {count:,} held-out training images ({classes:,} classes, "
            f"{count / classes:.3g} images each) whose nearest among the others is of their class; by chance "
            f"{_by_chance(run.validation):.3f}"
        )
    print(f"checkpoint: {out / models.WEIGHTS}")


def _by_chance(images: ImageSet) -> float:
    """The hit rate of an order drawn at random."""
    import numpy as np

    sizes = np.unique(images.require_labels("validation"), return_counts=True)[1]
    partners = np.where(sizes > 1, sizes * (sizes - 1), 0)
    return float(partners.sum() / max(1, sizes[sizes > 1].sum() * (sizes.sum() - 1)))


def _eps(threat: str, defence: str | None) -> float:
    """The eps of a threat that training can take."""
    from holdfast.errors import ConfigError
    from holdfast.threat import Threat
    from holdfast.training import parse
    from holdfast.training.defences import defence_class

    name = defence or parse({}).defence.name
    if "eps" not in defence_class(name).Options.model_fields:
        raise ConfigError(
            f"--threat is for defences that train for an eps, and {name} has none"
            + (" of its own: give it to each part" if name == "mixed" else "")
        )
    wanted = Threat.parse(threat)
    if wanted.norm != "linf" or not wanted.eps or wanted.most is not None:
        raise ConfigError(f"training takes linf:EPS with eps above 0, not '{threat}'")
    return wanted.eps
