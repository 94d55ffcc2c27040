"""The folder of an evaluation: a config that names it, rows that grow block by block, a summary.

Every evaluation goes the same way: one of the same config that is finished is read back, one of another
config is refused, a stopped one goes on after its last whole block.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from holdfast.data import ImageSet
from holdfast.errors import ConfigError
from holdfast.evaluate.rows import RowWriter, config_hash, read_header
from holdfast.evaluate.vectors import embed_resumably
from holdfast.files import atomic_write, exclusive
from holdfast.models import AnyEmbedder
from holdfast.provenance import commit, versions

ROWS = "rows.csv.gz"
SUMMARY = "summary.json"
RETRIEVAL, CERTIFICATION, CURVE = "retrieval", "certification", "certified curve"
SUITE, ER_RECALL = "attack suite", "er-recall"
SMOOTHED = "smoothed retrieval"

T = TypeVar("T")


@dataclass(frozen=True)
class Task:
    """One evaluation of an embedder on images: its folder, and the settings that tell it from others."""

    folder: Path
    kind: str
    embedder: AnyEmbedder
    images: ImageSet
    settings: Mapping[str, Any]
    """With `seed` among them."""

    @cached_property
    def config(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "embedder": self.embedder.fingerprint(),
            "data": self.images.name,
            "images": self.images.digest(),
            **self.settings,
        }

    def finished(self) -> bool:
        """Whether this evaluation is there already; an error if the folder holds another one."""
        rows = self.folder / ROWS
        if not rows.exists():
            return False
        if read_header(rows)["hash"] != config_hash(self.config):
            raise ConfigError(
                f"{self.folder} holds an evaluation of another model or setting; choose another --out "
                "or remove it"
            )
        return True

    @contextmanager
    def writing(self, n: int, columns: Mapping[str, str]) -> Iterator[RowWriter]:
        """A writer for the rows, about `n` queries, that no other process shares."""
        config = self.config
        header = {
            "config": config,
            "hash": config_hash(config),
            "seed": config["seed"],
            "n": n,
            "classes": list(self.images.classes),
            "versions": versions(),
            "commit": commit(),
        }
        with exclusive(self.folder, self.kind):
            yield RowWriter(self.folder / ROWS, header, columns)

    def finish(self, writer: RowWriter, summary: Any) -> None:
        """Write the summary, give the rows their final name, and drop what only a stopped run needs."""
        atomic_write(self.folder / SUMMARY, json.dumps(summary, indent=2) + "\n")
        # Last, because a folder with this file is a finished evaluation.
        writer.finish()
        for part in self.folder.glob("vectors-*.part"):
            part.unlink()

    def vectors(self, numbers: NDArray[np.int64]) -> Tensor:
        """Embeddings of the images with these numbers, kept in the folder until the rows are done."""
        embedder, images = self.embedder, self.images
        key = config_hash(
            {"embedder": embedder.fingerprint(), "images": images.digest(), "rows": numbers.tolist()}
        )
        return embed_resumably(embedder, images.take(numbers), self.folder / f"vectors-{key}.part")


def pending(parts: Iterable[tuple[T, int, int]], done: int) -> Iterator[tuple[T, range]]:
    """The blocks of rows that are not done yet, for parts of (what, how many rows, rows in a block).

    What is in a block depends on its place alone, so that a resumed run makes the same rows.
    """
    start = 0
    for what, rows, size in parts:
        for first in range(0, rows, size):
            block = range(first, min(first + size, rows))
            if start >= done:
                yield what, block
            start += len(block)
