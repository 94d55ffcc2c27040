"""The command, run as a user would."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


def holdfast(*words: object, cwd: Path | None = None, **environment: str) -> Outcome:
    """Run the command as a user would."""
    command = [sys.executable, "-c", "from holdfast.cli import main; main()", *map(str, words)]
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HOLDFAST_PROGRESS": "0", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)
