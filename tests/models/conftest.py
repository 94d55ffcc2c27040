from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.models import Embedder, save


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


Save = Callable[..., Path]


@pytest.fixture
def saved(tmp_path: Path) -> Save:
    """Save an embedder with a plausible card; returns the folder."""

    def write(embedder: Embedder, folder: Path = tmp_path / "run", **changes: Any) -> Path:
        arguments: dict[str, Any] = {
            "config": {"lr": 1e-3, "steps": [1, 2]},
            "data": "fashion-mnist",
            "seed": 7,
            "metrics": {"recall@1": 0.8},
        }
        save(embedder, folder, **(arguments | changes))
        return folder

    return write
