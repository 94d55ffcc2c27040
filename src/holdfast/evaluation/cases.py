"""The worst cases of an attacked evaluation as pictures: clean, altered, and their difference made visible."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.data import ImageSet
from holdfast.evaluation.pictures import PICTURES, encode
from holdfast.files import atomic_path

EACH = 3
"""Worst cases that are shown of each attack."""


@dataclass(frozen=True, eq=False)
class Worst:
    """The worst of a block of trials from `first` on; every array has an entry for each."""

    attack: str
    first: int
    trial: NDArray[np.int64]
    number: NDArray[np.int64]
    """The altered images'."""
    damage: NDArray[np.float64]
    pixels: NDArray[np.uint8]


def worst_of(
    attack: str, first: int, numbers: Sequence[int], damage: NDArray[np.float64], altered: Tensor
) -> Worst:
    """The few trials of a block that did most damage, if any did."""
    worst = [int(i) for i in np.argsort(-damage, kind="stable")[:EACH] if damage[i] > 0]
    return Worst(
        attack,
        first,
        trial=np.array([first + i for i in worst], dtype=np.int64),
        number=np.array([numbers[i] for i in worst], dtype=np.int64),
        damage=damage[worst],
        pixels=(255 * altered[worst]).round().to(torch.uint8).numpy(),
    )


class Cases:
    """The worst altered images of each block, kept beside the rows until the whole is done.

    What is kept of a block depends on that block alone, so a resumed evaluation shows the same cases.
    """

    def __init__(self, out: Path) -> None:
        self._out, self._folder = out, out / "cases"

    def keep(self, worst: Worst) -> None:
        """Remember the worst of a block of trials."""
        with (
            atomic_path(self._folder / f"{worst.attack}-{worst.first}.npz") as temporary,
            open(temporary, "wb") as handle,
        ):
            np.savez_compressed(
                handle,
                trial=worst.trial,
                number=worst.number,
                damage=worst.damage,
                pixels=worst.pixels,
            )

    def pack(self, attacks: Sequence[str], images: ImageSet) -> None:
        """Write the worst of each attack into the evaluation's pictures."""
        with atomic_path(self._out / PICTURES) as temporary, zipfile.ZipFile(temporary, "w") as archive:
            for attack in attacks:
                for trial, number, pixels in self._worst(attack):
                    clean = images.image(number)
                    shown, factor = difference(clean, pixels)
                    for name, picture in (
                        ("clean", clean),
                        ("altered", pixels),
                        (f"difference ×{factor:.0f}", shown),
                    ):
                        archive.writestr(zipfile.ZipInfo(f"{attack}/{trial}/{name}"), encode(picture))

    def clear(self) -> None:
        """Remove what was kept for the time being."""
        for path in self._folder.glob("*"):
            path.unlink()
        if self._folder.exists():
            self._folder.rmdir()

    def _worst(self, attack: str) -> list[tuple[int, int, NDArray[np.uint8]]]:
        kept = []
        for path in self._folder.glob("*.npz"):
            if path.stem.rpartition("-")[0] != attack:
                continue
            with np.load(path) as block:
                kept += list(
                    zip(-block["damage"], block["trial"], block["number"], block["pixels"], strict=True)
                )
        kept.sort(key=lambda entry: (entry[0], entry[1]))
        return [(int(trial), int(number), pixels) for _, trial, number, pixels in kept[:EACH]]


def difference(clean: NDArray[np.uint8], altered: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], float]:
    """altered − clean around mid-grey, made as strong as can be shown, and how many times that is."""
    change = altered.astype(np.float64) - clean.astype(np.float64)
    factor = 127.0 / max(1.0, float(np.abs(change).max()))
    return np.round(128 + factor * change).astype(np.uint8), factor


def shown_cases(pictures: dict[str, bytes]) -> dict[tuple[str, int], dict[str, bytes]]:
    """The pictures of each case, by attack and trial, in the order they were packed: the worst first."""
    cases: dict[tuple[str, int], dict[str, bytes]] = {}
    for name, content in pictures.items():
        attack, trial, what = name.split("/", 2)
        cases.setdefault((attack, int(trial)), {})[what] = content
    return cases
