"""What commands share for printing: JSON documents, tables, notes."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from holdfast.methods import bound_method
from holdfast.progress import note as note

if TYPE_CHECKING:
    from holdfast.gallery import Hits
    from holdfast.models import AnyEmbedder
    from holdfast.threat import Threat

Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")
]
SplitOption = Annotated[
    Literal["closed", "open", "given"] | None,
    typer.Option(help="closed (by image), open (by class) or given (train and test folders)."),
]
LabelsOption = Annotated[
    str | None,
    typer.Option(
        "--labels",
        metavar="deepest|top|DEPTH|TABLE",
        help="Which of nested folders is an image's class: deepest (the one that holds it), top, or its depth from "
        "the top, such as 2; or a CSV or Parquet file with path,label[,split,is_query,is_gallery,group].  "
        "[default: deepest]",
    ),
]
ImageSize = Annotated[
    int | None,
    typer.Option(
        "--size",
        "--image-size",
        min=1,
        help="Side of the images that the model takes, if it does not say or can take others.",
    ),
]
Model = Annotated[
    Path,
    typer.Argument(
        help="A run's folder, a pretrained network ('holdfast models'), FILE.onnx, FILE.py:NAME, or a model of another "
        "library (hf:FOLDER, timm:NAME, ...). Options can stand behind it: 'model.onnx?mean=0.5&std=0.5'."
    ),
]
Device = Annotated[
    str | None,
    typer.Option(metavar="auto|cpu|cuda[:N]|mps", help="Where the model computes.  [default: cpu]"),
]
Channels = Annotated[int, typer.Option(help="Their channels: 3 (colour) or 1 (grey).")]

On = Annotated[
    str,
    typer.Option(
        help="Where it is computed: local (this process), ray (this machine's processors), or a running cluster: "
        "ray:auto, ray:HOST:PORT, ray://HOST:10001. The rows are the same."
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1, help="With ray: blocks computed at a time, one thread each; all processors if left out."
    ),
]


def print_json(document: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(document, indent=2, default=_plain))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> None:
    """A table on stdout; numbers stand to the right."""
    from rich.console import Console

    from holdfast.tables import WIDE, made

    console = Console()
    if not sys.stdout.isatty():
        console.width = WIDE
    if title is not None:
        print(title)
    console.print(made(columns, rows))


def print_hits(hits: Hits) -> None:
    """The hits of one query as a table, with what is proved of each and of all together."""
    print_table(*hits.cells(), title=hits.title)
    for line in hits.notes:
        print(line)


def method_option(names: tuple[str, ...], help: str) -> Any:
    """The option that says how hard bounds try; names of before are taken too."""

    def parse(name: str) -> str:
        from holdfast.errors import ConfigError, unknown_name

        method = bound_method(name).name
        if method not in names:
            raise ConfigError(unknown_name("method", name, names))
        return method

    return typer.Option(parser=parse, metavar=f"<{'|'.join(names)}>", help=help)


def said_of(embedder: AnyEmbedder) -> str:
    """What a title must say of an embedder."""
    return f" ({embedder.says})" if embedder.says else ""


def note_threats(*threats: Threat) -> None:
    """What a user should know about what was asked for."""
    for line in dict.fromkeys(threat.remark for threat in threats):
        if line is not None:
            note(line)


def number(value: float | None) -> str:
    """A score for a table."""
    return "–" if value is None else f"{value:.3f}"


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} is not JSON")
