"""A gallery to work on, and what made its vectors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from gallery_reference import DIM, EMBEDDER

from holdfast.gallery import Gallery
from holdfast.gallery.stores.sqlite import columns


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Galleries made in this test hold four vectors of DIM numbers in a block."""
    monkeypatch.setattr(columns, "_BLOCK_BYTES", 16 * DIM)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.gallery"


@pytest.fixture
def gallery(path: Path, small_blocks: None) -> Iterator[Gallery]:
    with Gallery.create(path, dim=DIM, embedder=EMBEDDER) as made:
        yield made
