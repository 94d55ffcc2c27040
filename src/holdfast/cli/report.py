"""`holdfast report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.output import Json, print_json


def report(
    folder: Annotated[Path, typer.Argument(help="A run's folder, or an evaluation's.")],
    out: Annotated[Path | None, typer.Option(help="The page; report.html in the folder if left out.")] = None,
    json: Json = False,
) -> None:
    """Make one offline HTML page from a run's rows."""
    from holdfast.reports import write_report

    path = write_report(folder, out)
    if json:
        print_json({"report": path})
        return
    print(f"report: {path}")
