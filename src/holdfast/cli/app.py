"""The commands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast import __version__
from holdfast.cli import (
    attack,
    certify,
    data,
    demo,
    evaluate,
    gallery,
    index,
    metric,
    models,
    report,
    reproduce,
    search,
    serve,
    train,
)

app = typer.Typer(
    name="holdfast",
    help="Image search that holds under attack: train, index, search, attack, certify, measure.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"holdfast {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Image search that holds under attack: train, index, search, attack, certify, measure."""


app.command("demo")(demo.demo)
app.add_typer(data.app, name="data")
app.command("models")(models.models)
app.command("train")(train.train)
app.command("index")(index.index)
app.command("search")(search.search)
app.command("attack")(attack.attack)
app.command("evaluate")(evaluate.evaluate)
app.command("certify")(certify.certify)
app.command("report")(report.report)
app.command("reproduce")(reproduce.reproduce)
app.add_typer(gallery.app, name="gallery")
app.add_typer(metric.app, name="metric")
app.command("serve")(serve.serve)
app.add_typer(serve.key_app, name="key")
