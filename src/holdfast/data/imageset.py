"""Decoded images with ids and labels; parts of a set share its pixels."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from holdfast.data.splits import Split
from holdfast.errors import DataError
from holdfast.spec import ImageSpec

if TYPE_CHECKING:
    # Imported where it is used: a process that only decodes pictures does without it.
    import torch

    Indices = Sequence[int] | NDArray[Any] | torch.Tensor


@dataclass(frozen=True, eq=False)
class Roles:
    """Which images are asked about, which can be found, and their groups (-1: none).

    A candidate of the query's class and group (the same camera, the same burst) is left out of its ranking.
    """

    query: NDArray[np.bool_]
    gallery: NDArray[np.bool_]
    group: NDArray[np.int64]

    def take(self, indices: NDArray[np.int64]) -> Roles:
        """The roles of some images."""
        return Roles(self.query[indices], self.gallery[indices], self.group[indices])

    def sides(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The places of queries and of candidates; an error where there are none."""
        asked, found = np.flatnonzero(self.query), np.flatnonzero(self.gallery)
        if not len(asked) or not len(found):
            raise DataError(f"{name} has {len(asked)} queries and {len(found)} candidates; mark some of each")
        return asked, found

    def said(self) -> bytes:
        """Everything in it, for a hash."""
        return b"".join(part.tobytes() for part in (self.query, self.gallery, self.group))


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images of one shape. Image `i` is `pixels[rows[i]]`, so that a part never copies the whole.

    `labels` index into `classes`, and are `None` where nothing says what an image shows. `pixels` may be
    mapped from a file.
    """

    name: str
    ids: tuple[str, ...]
    labels: NDArray[np.int64] | None
    classes: tuple[str, ...]
    spec: ImageSpec
    pixels: NDArray[np.uint8]
    rows: NDArray[np.int64]
    roles: Roles | None = None

    def __post_init__(self) -> None:
        if self.pixels.dtype != np.uint8 or self.pixels.shape[1:] != self.spec.shape:
            found = f"{self.pixels.dtype} {self.pixels.shape}"
            raise DataError(f"{self.name}: pixels are uint8 of {self.spec} each, not {found}")
        if len(self.ids) != len(self.rows) or (
            self.labels is not None and len(self.labels) != len(self.rows)
        ):
            raise DataError(f"{self.name}: ids, labels and rows differ in number")
        if self.labels is not None and len(self.labels):
            least, greatest = int(self.labels.min()), int(self.labels.max())
            if least < 0 or greatest >= len(self.classes):
                found = f"{least} to {greatest}"
                raise DataError(
                    f"{self.name}: labels run from {found}, but there are {len(self.classes)} classes"
                )

    def __len__(self) -> int:
        return len(self.rows)

    def __getstate__(self) -> dict[str, Any]:
        """A copy for another process holds the pixels of its own images alone, in memory."""
        used, rows = np.unique(self.rows, return_inverse=True)
        whole = len(used) == len(self.pixels) and not isinstance(self.pixels, np.memmap)
        pixels = (
            self.pixels if whole else np.ascontiguousarray(np.take(np.asarray(self.pixels), used, axis=0))
        )
        return {**self.__dict__, "pixels": pixels, "rows": self.rows if whole else rows}

    def batch(self, indices: Indices) -> torch.Tensor:
        """The images at `indices` (integers, or a mask over all) as a new uint8 N×C×H×W tensor."""
        import torch

        return torch.from_numpy(np.take(self.pixels, self.rows[self._positions(indices)], axis=0))

    def image(self, index: int) -> NDArray[np.uint8]:
        """The image at `index` as C×H×W: a view, not to be written to."""
        view: NDArray[np.uint8] = self.pixels[self.rows[index]]
        view.flags.writeable = False
        return view

    def take(self, indices: Indices) -> ImageSet:
        """The images at `indices` as a set of their own, in that order; the pixels are shared."""
        chosen = self._positions(indices)
        return replace(
            self,
            ids=tuple(self.ids[index] for index in chosen.tolist()),
            labels=None if self.labels is None else self.labels[chosen],
            rows=self.rows[chosen],
            roles=None if self.roles is None else self.roles.take(chosen),
        )

    def require_labels(self, what_for: str) -> NDArray[np.int64]:
        """The labels, or one line that says `what_for` they are needed."""
        if self.labels is None:
            raise DataError(
                f"{what_for} needs labels, and {self.name} has none; put the images into one folder per class, or "
                "give a table of labels"
            )
        return self.labels

    def digest(self) -> str:
        """A hash of everything the set says: ids, labels, classes, shape and pixels."""
        found = hashlib.blake2b(digest_size=16)
        # The filter does not count: what it did is in the pixels. So hashes of before stay.
        shape = ", ".join(f"{name}={value!r}" for name, value in self.spec.before.items())
        said = f"({self.ids!r}, {self.classes!r}, ImageSpec({shape}))"
        found.update(said.encode(errors="surrogateescape"))
        if self.labels is not None:
            found.update(np.ascontiguousarray(self.labels).tobytes())
        if self.roles is not None:
            found.update(self.roles.said())
        for start in range(0, len(self), 1024):
            found.update(np.take(self.pixels, self.rows[start : start + 1024], axis=0).tobytes())
        return found.hexdigest()

    def _positions(self, indices: Indices) -> NDArray[np.int64]:
        import torch

        found = indices.numpy(force=True) if isinstance(indices, torch.Tensor) else np.asarray(indices)
        if found.size == 0:
            return np.zeros(0, dtype=np.int64)
        if found.dtype == np.bool_ and found.shape == (len(self),):
            return np.flatnonzero(found)
        if found.ndim != 1 or found.dtype.kind not in "iu":
            raise TypeError(f"indices are a row of integers, not {found.dtype} of shape {found.shape}")
        return found.astype(np.int64, copy=False)


@dataclass(frozen=True)
class Skipped:
    """An image that was left out, and why."""

    id: str
    reason: str


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set ready for use: what trains, what tests, and what could not be read."""

    name: str
    train: ImageSet
    test: ImageSet
    split: Split
    skipped: tuple[Skipped, ...]
    read: int

    @property
    def reading(self) -> str:
        """One line: how many images were read, how many were not, and the first of those by name."""
        return reading_line(self.read, self.skipped)


def classes_line(classes: Sequence[str], shown: int = 3) -> str:
    """One line: how many classes there are, with some of them as examples, from the first to the last."""
    if not classes:
        return "no classes: the images are in no folders of their own"
    if len(classes) <= shown:
        return f"{len(classes):,} {'class' if len(classes) == 1 else 'classes'}: {', '.join(classes)}"
    chosen = [classes[place * (len(classes) - 1) // (shown - 1)] for place in range(shown)]
    return f"{len(classes):,} classes, for example {', '.join(chosen)}"


def reading_lines(read: int, skipped: Sequence[Skipped], most: int = 50) -> Iterator[str]:
    """How many images were read and how many were not; each of those by name on a line of its own."""
    yield f"read {read:,} images, skipped {len(skipped):,}"
    for entry in skipped[:most]:
        yield f"  skipped {entry.id}: {entry.reason}"
    if len(skipped) > most:
        yield f"  and {len(skipped) - most:,} more"


def reading_line(read: int, skipped: Sequence[Skipped], shown: int = 3) -> str:
    """One line: how many images were read, how many were skipped, and why for the first few."""
    line = f"read {read:,} images, skipped {len(skipped):,}"
    if not skipped:
        return line
    named = ", ".join(f"{entry.id} ({entry.reason})" for entry in skipped[:shown])
    return f"{line}: {named}{', ...' if len(skipped) > shown else ''}"
