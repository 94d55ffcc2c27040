"""Builders of small image files and data sets."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image


@pytest.fixture(autouse=True)
def own_places(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test sees or changes this machine's data folders; the value is the cache folder."""
    place = tmp_path_factory.mktemp("places")
    monkeypatch.setenv("HOLDFAST_CACHE", str(place / "cache"))
    monkeypatch.setenv("HOLDFAST_DATA", "")
    monkeypatch.delenv("HOLDFAST_MEMORY", raising=False)
    monkeypatch.setattr("holdfast.data.settings.DEBIAN", place / "debian")
    return place / "cache"


class Make:
    """Makes files; the pictures are smooth, so that lossy formats keep them."""

    @staticmethod
    def picture(width: int = 24, height: int = 16, seed: int = 0) -> NDArray[np.uint8]:
        random = np.random.default_rng(seed)
        coarse = random.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))

    @staticmethod
    def encoded(image: Image.Image | NDArray[Any], kind: str = "PNG", **options: Any) -> bytes:
        picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
        buffer = io.BytesIO()
        picture.save(buffer, kind, **options)
        return buffer.getvalue()

    @classmethod
    def file(cls, path: Path, seed: int = 0, kind: str = "PNG", size: tuple[int, int] = (24, 16)) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(cls.encoded(cls.picture(*size, seed=seed), kind))
        return path

    @staticmethod
    def idx(array: NDArray[np.uint8], packed: bool = True) -> bytes:
        content = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()
        return gzip.compress(content, mtime=0) if packed else content

    @classmethod
    def idx_set(cls, folder: Path, train: int = 30, test: int = 20, size: int = 28) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        random = np.random.default_rng(1)
        for part, count in (("train", train), ("t10k", test)):
            images = random.integers(0, 256, (count, size, size), dtype=np.uint8)
            labels = (np.arange(count) % 10).astype(np.uint8)
            (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(cls.idx(images))
            (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(cls.idx(labels))
        return folder

    @staticmethod
    def tar(folder: Path, path: Path, inside: str = "") -> Path:
        with tarfile.open(path, "w:") as archive:
            archive.add(folder, arcname=inside or ".")
        return path


@pytest.fixture(scope="session")
def make() -> type[Make]:
    return Make
