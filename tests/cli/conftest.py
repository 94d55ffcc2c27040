"""A small run, a folder of pictures and a gallery, made once with the command itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from command import holdfast


@dataclass(frozen=True)
class Shop:
    folder: Path
    run: Path
    pictures: Path
    gallery: Path


@pytest.fixture(scope="session")
def shop(tmp_path_factory) -> Shop:
    folder = tmp_path_factory.mktemp("shop")
    made = Shop(folder, folder / "run", folder / "pictures", folder / "shop.gallery")
    steps = [
        ("train", "--data", "fashion-mnist-mini", "--model", "small", "--steps", 20, "--out", made.run),
        ("data", "export", "fashion-mnist-mini", made.pictures, "--limit", 6),
        ("index", made.run, made.pictures, "--out", made.gallery),
    ]
    for words in steps:
        done = holdfast(*words)
        assert done.code == 0, done.err
    return made
