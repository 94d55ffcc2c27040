"""The folder of an evaluation: a config that names it, rows that grow block by block, a summary.

Every evaluation goes the same way: one of the same config that is finished is read back, one of another
config is refused, a stopped one goes on after its last whole block.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from holdfast.data import ImageSet
from holdfast.evaluate.cases import Cases, Worst
from holdfast.evaluate.spread import HERE, Spread, Work, compute
from holdfast.evaluate.vectors import embed_resumably
from holdfast.files import atomic_write
from holdfast.models import AnyEmbedder
from holdfast.models.card import IN_FLOAT32
from holdfast.progress import bar
from holdfast.rows import SUMMARY, RowWriter, config_hash, is_finished, pending, writing

RETRIEVAL, CERTIFICATION, CURVE = "retrieval", "certification", "certified curve"
SUITE, ER_RECALL = "attack suite", "er-recall"
SMOOTHED = "smoothed retrieval"

What = TypeVar("What")


@dataclass(frozen=True)
class Block:
    """What was computed of one block: its rows, and the worst of them as pictures where there are such."""

    rows: list[dict[str, Any]]
    note: str = ""
    """Shown beside the bar."""
    worst: Worst | None = None


@dataclass(frozen=True)
class Task:
    """One evaluation of an embedder on images: its folder, and the settings that tell it from others."""

    folder: Path
    kind: str
    embedder: AnyEmbedder
    images: ImageSet
    settings: Mapping[str, Any]
    """With `seed` among them."""
    spread: Spread = field(default=HERE, compare=False)
    """Who computes its blocks; the rows are the same."""

    @cached_property
    def config(self) -> dict[str, Any]:
        return self._config(self.embedder.fingerprint())

    def _config(self, fingerprint: str) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "embedder": fingerprint,
            "data": self.images.name,
            "images": self.images.digest(),
            **self.settings,
        }

    def finished(self) -> bool:
        """Whether this evaluation is there already; an error if the folder holds another one."""
        # Rows of before name the embedder by the rule of their time.
        return is_finished(self.folder, *map(self._config, self.embedder.fingerprints()))

    @contextmanager
    def writing(self, n: int, columns: Mapping[str, str]) -> Iterator[RowWriter]:
        """A writer for the rows, about `n` queries, that no other process shares."""
        self.spread.ready()
        about: dict[str, Any] = {"n": n, "classes": list(self.images.classes)}
        if (trained_in := (self.embedder.card or {}).get("precision")) not in (None, IN_FLOAT32):
            about["trained_in"] = trained_in
        if self.embedder.says:
            about["says"] = self.embedder.says
        with writing(self.folder, self.config, columns, **about) as writer:
            yield writer

    def fill(
        self,
        writer: RowWriter,
        doing: str,
        work: Work[What, Block],
        parts: Sequence[tuple[What, int, int]],
        cases: Cases | None = None,
    ) -> None:
        """Compute the blocks that are missing and append them, each when all before it are there.

        `parts` are those of `pending`.
        """
        blocks = list(pending(parts, writer.done))

        def keep(block: Block) -> None:
            if cases is not None and block.worst is not None:
                cases.keep(block.worst)
            writer.append(block.rows)

        with bar(doing, sum(rows for _, rows, _ in parts), writer.done) as advance:
            compute(
                self.spread,
                work,
                blocks,
                keep,
                lambda number, block: advance(len(block.rows), note=block.note),
            )

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
        place = self.folder / f"vectors-{key}.part"
        return embed_resumably(embedder, images.take(numbers), place, self.spread)
