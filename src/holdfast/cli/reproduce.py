"""`holdfast reproduce`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.output import Json, note, print_json, print_table

LIBRARY = "reproduction"
"""What makes and reads the rows: it lies beside them in a checkout, and is no part of the package."""


def reproduce(
    paper: Annotated[str, typer.Argument(help="A folder below reproduce/, for example kakizaki.")],
    table: Annotated[str | None, typer.Option(help="Only the runs of this table of the paper.")] = None,
    figure: Annotated[str | None, typer.Option(help="Only the runs of this figure of the paper.")] = None,
    preset: Annotated[
        str,
        typer.Option(
            help="A plan of the folder: laptop (two cores), paper (full schedules), or another one of its TOML files."
        ),
    ] = "laptop",
    only: Annotated[
        str | None, typer.Option(help="Only runs whose name matches, for example 'mnist-small-tbt-*'.")
    ] = None,
    folder: Annotated[
        Path, typer.Option(help="The folder reproduce/ of a checkout; its library is run.")
    ] = Path("reproduce"),
    work: Annotated[
        Path, typer.Option(help="Where networks are trained; a stopped run goes on there.")
    ] = Path("runs/reproduce"),
    list_runs: Annotated[
        bool, typer.Option("--list", help="List the runs and what is done, and stop.")
    ] = False,
    page_only: Annotated[
        bool, typer.Option("--page", help="Train nothing; write cells and page from the rows there are.")
    ] = False,
    json: Json = False,
) -> None:
    """Train and test what stands in a paper's tables, and put its numbers beside ours."""
    from dataclasses import asdict

    from holdfast.errors import ConfigError

    if table is not None and figure is not None:
        raise ConfigError("give --table or --figure, not both")
    if not (folder / LIBRARY / "__init__.py").is_file():
        raise ConfigError(
            f"reproductions come with the source, not with the package: there is no {folder / LIBRARY}; run this in a "
            "checkout of Holdfast, or name the folder reproduce/ of one",
            option="folder",
        )
    sys.path.insert(0, str(folder.resolve()))
    from reproduction import open_reproduction

    place = table if figure is None else f"figure {figure}"
    home = folder / paper
    if not home.is_dir():
        known = sorted(entry.parent.name for entry in folder.glob("*/targets.json"))
        raise ConfigError(
            f"there is no reproduction '{paper}' in {folder}; known: {', '.join(known) or 'none'}",
            option="folder",
        )
    found = open_reproduction(home, preset)
    jobs = found.jobs(place, only)
    if not jobs:
        raise ConfigError(
            f"the preset '{preset}' has no runs for "
            f"{f'table {table}' if table else place or 'all tables'}"
            f"{f' that match {only}' if only else ''}; see --list, or take another --preset"
        )
    lacks = {job.name: found.missing(job) for job in jobs}
    if list_runs:
        rows = [[name, "missing: " + ", ".join(parts) if parts else "done"] for name, parts in lacks.items()]
        print_table(["run", "rows"], rows)
        return
    missing = [job for job in jobs if lacks[job.name]]
    note(f"{len(jobs)} runs, {len(jobs) - len(missing)} of them done already")
    for job in [] if page_only else missing:
        if not found.run(job, work / paper, note):
            note("stopped; the same command goes on from there")
            raise typer.Exit(130)
    cells, page = found.write()
    wanted = [cell for cell in cells if place is None or cell.table == place]
    if json:
        print_json({"page": page, "cells": [asdict(cell) for cell in wanted]})
        return
    ours = sum(cell.ours is not None for cell in wanted)
    print(f"{ours:,} cells computed, {sum(cell.paper is not None for cell in wanted):,} printed in the paper")
    print(f"page: {page}")
