"""Shared by every page: templates, and pictures as data so that a page is one file."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from holdfast.data import decode
from holdfast.errors import ImageError
from holdfast.evaluate import encode
from holdfast.spec import ImageSpec

_THUMBNAIL = ImageSpec(3, 160, 160, resample="bicubic")


@dataclass(frozen=True)
class Picture:
    """One picture of a row: `kind` is query, same, other, hit or certified; `mark` is the line that stands out."""

    kind: str
    alt: str
    lines: tuple[str, ...]
    content: bytes | None = None
    mark: str = ""

    @property
    def source(self) -> str | None:
        if self.content is None:
            return None
        kind = "png" if self.content[:4] == b"\x89PNG" else "jpeg"
        return f"data:image/{kind};base64,{base64.b64encode(self.content).decode()}"


def render(template: str, **values: Any) -> str:
    """The page that a template makes of `values`; everything in it is escaped unless marked safe."""
    environment = Environment(
        loader=PackageLoader("holdfast.report"),
        autoescape=select_autoescape(enabled_extensions=("j2",)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**{"plotly": None, **values})


def provenance(header: Mapping[str, Any], rows: Path, folder: Path) -> dict[str, Any]:
    """Where a part's numbers come from, for the line below it."""
    return {
        "rows": rows.relative_to(folder),
        "seed": header["seed"],
        "hash": header["hash"],
        "commit": header["commit"] or "unknown",
        "versions": ", ".join(f"{name} {version}" for name, version in header["versions"].items()),
    }


def thumbnail(content: bytes | None) -> bytes | None:
    """A small picture for a page; None where there is nothing that can be shown."""
    if content is None:
        return None
    try:
        return encode(decode(content, _THUMBNAIL))
    except ImageError:
        return None
