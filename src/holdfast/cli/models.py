"""`holdfast models`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from holdfast.cli.output import Json, print_json, print_table


def models(
    speed: Annotated[bool, typer.Option("--speed/--no-speed", help="Measure how fast each is here.")] = True,
    json: Json = False,
) -> None:
    """List the pretrained networks that have names, and the other kinds of models that can be used."""
    from holdfast.models.catalogue import kinds, pretrained

    entries, others = pretrained(measure=speed), kinds()
    if json:
        print_json(
            {"pretrained": [asdict(entry) for entry in entries], "others": [asdict(kind) for kind in others]}
        )
        return
    rows = [
        [
            e.name,
            str(e.side),
            str(e.dim),
            f"{e.parameters / 1e6:.1f} M",
            "" if e.speed is None else f"{e.speed:.0f}",
            e.trained_on,
            e.licence,
            "yes" if e.installed else e.command,
        ]
        for e in entries
    ]
    columns = ["name", "pixels", "dims", "parameters", "images/s here", "trained on", "licence", "installed"]
    print_table(
        columns, rows, title="Pretrained networks, usable without training (NAME@SIZE for another size)"
    )
    print()
    print_table(
        ["model", "what it is", "installed"],
        [[kind.form, kind.says, "yes" if kind.installed else kind.command] for kind in others],
        title="Your own",
    )
