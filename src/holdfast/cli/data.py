"""`holdfast data`: which data sets there are, where they lie, and how to get them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.output import Json, LabelsOption, note, print_json, print_table

app = typer.Typer(help="Data sets: list, describe, fetch, export.", no_args_is_help=True)


@app.command("list")
def list_(json: Json = False) -> None:
    """List the data sets that have names, and where each was found."""
    from holdfast.data import describe_all

    entries = describe_all()
    if json:
        print_json(entries)
        return
    rows = [
        [
            e["name"],
            e["title"],
            f"{e['images']:,}",
            f"{e['classes']:,}",
            e["spec"],
            e["split"],
            e["found"] or "missing",
        ]
        for e in entries
    ]
    print_table(["name", "title", "images", "classes", "shape", "split", "found"], rows)


@app.command()
def info(
    name: Annotated[str, typer.Argument(help="A data set's name, NAME:PATH, or a folder or tar of images.")],
    labels: LabelsOption = None,
    json: Json = False,
) -> None:
    """Describe one data set: licence, size, where it was found or how to get it."""
    from holdfast.data import classes_line, describe

    found = describe(name, labels or "deepest")
    if json:
        print_json(found)
        return
    if "class_names" in found:
        found["classes"] = classes_line(found.pop("class_names"))
    print_table(
        ["", ""], [[key.replace("_", " "), str(value)] for key, value in found.items() if value is not None]
    )


@app.command()
def fetch(name: Annotated[str, typer.Argument(help="A data set's name.")], json: Json = False) -> None:
    """Find a data set, or download it with its checksum."""
    from holdfast.data import fetch

    path = fetch(name)
    if json:
        print_json({"name": name, "path": path})
        return
    print(f"{name} is at {path}")


@app.command()
def export(
    name: Annotated[str, typer.Argument(help="A data set's name, NAME:PATH, or a folder or tar of images.")],
    out: Annotated[Path, typer.Argument(help="The folder to write; it must not hold anything yet.")],
    part: Annotated[str, typer.Option(help="Which part: train or test.")] = "test",
    limit: Annotated[int | None, typer.Option(min=1, help="At most this many images of each class.")] = None,
    json: Json = False,
) -> None:
    """Write a data set's images as PNG files, one folder per class."""
    from holdfast.data import load
    from holdfast.data.export import export_images
    from holdfast.errors import ConfigError

    if part not in ("train", "test"):
        raise ConfigError(f"--part is train or test, not '{part}'")
    dataset = load(name)
    count = export_images(dataset.train if part == "train" else dataset.test, out, limit)
    note(dataset.reading)
    if json:
        print_json({"folder": out, "images": count})
        return
    print(f"wrote {count:,} images to {out}")
