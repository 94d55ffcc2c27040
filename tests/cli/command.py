"""The command, run as a user would."""

from __future__ import annotations

import contextlib
import io
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


def here(*words: object, cwd: Path | None = None) -> Outcome:
    """The same in this process, which has its imports already: for tests of many commands."""
    from holdfast.cli import main

    out, err = io.StringIO(), io.StringIO()
    before = sys.argv, Path.cwd()
    try:
        sys.argv = ["holdfast", *map(str, words)]
        os.chdir(cwd or before[1])
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as end:
        return Outcome(int(end.code or 0), out.getvalue(), err.getvalue())
    finally:
        sys.argv = before[0]
        os.chdir(before[1])
    raise AssertionError("the command did not exit")
