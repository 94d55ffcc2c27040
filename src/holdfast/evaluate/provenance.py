"""Where a number came from: versions and commit, for the header of every file of rows."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from pathlib import Path


def versions() -> dict[str, str]:
    """Versions of what computes the numbers."""
    names = ("holdfast", "torch", "numpy", "faiss-cpu")
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in names}}


def commit() -> str | None:
    """The commit of the source tree that is running, or None where it is not a checkout."""
    folder = Path(__file__).resolve().parent
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
