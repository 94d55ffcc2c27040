"""Where a number came from: versions and commit, for every card and every file of rows."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from pathlib import Path


def versions() -> dict[str, str]:
    """Versions of what computes the numbers."""
    return {
        "python": platform.python_version(),
        **{name: _version(name) for name in ("holdfast", "torch", "numpy", "faiss-cpu")},
    }


def commit() -> str | None:
    """The commit of the source tree that is running, or None where this file is in no checkout of ours.

    `-dirty` says that the package itself differs from the commit; rows and pages beside it do not count.
    """
    here = Path(__file__).resolve()
    try:
        # A package installed inside somebody else's repository must not report that repository.
        _git(here, "ls-files", "--error-unmatch", here.name)
        changed = _git(here, "status", "--porcelain", "--", ".")
        return _git(here, "describe", "--always", "--abbrev=12") + ("-dirty" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(file: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=file.parent, capture_output=True, text=True, timeout=10, check=True
    )
    return done.stdout.strip()


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "unknown"
