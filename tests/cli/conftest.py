"""A small run, a folder of pictures and a gallery, made once with the command itself."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest


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
