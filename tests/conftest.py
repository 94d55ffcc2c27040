"""What all tests share: threads, where real data sets are, and a Milvus server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest

import milvus_server as servers
from holdfast.memory import keep_freed_memory

keep_freed_memory()
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets; the test is skipped where there is none."""
    folder = Path(os.environ.get("HOLDFAST_TEST_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data sets at {folder}; set HOLDFAST_TEST_DATA to their folder")
    return folder


@pytest.fixture(scope="session")
def milvus_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Milvus server as HOST:PORT, one for all workers; the test is skipped where there can be none."""
    if reason := servers.missing():
        pytest.skip(reason)
    base = tmp_path_factory.getbasetemp()
    with servers.shared((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "milvus") as address:
        yield address
