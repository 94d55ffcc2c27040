"""What all tests share: threads, and where real data sets are."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest

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
