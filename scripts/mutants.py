"""Break the code that proofs rest on, one small way at a time, and see that a test notices (`make mutants`).

Each mutant of `mutants.toml` is applied to a copy of the sources, and the tests that should notice are run on it. It
is killed if a test fails. The run fails if a mutant survives, if its old text is not in its file exactly once, or if
the tests fail on the sources as they are.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("src/holdfast")
LIBRARY = Path("reproduce/reproduction")
"""What makes the rows of reproductions: no part of the package, copied beside it."""
LIMIT = 300.0
"""Seconds after which the tests of one mutant are given up."""
LOADED = ["torch", "numba", "scipy.stats", "faiss", "PIL.Image", "pydantic", "pytest"]
"""Loaded once for all processes that run tests; nothing of ours."""
FORKED = get_context("forkserver")
PYTEST = 100
"""Added to pytest's exit code by a child that ran it: 0 if all tests passed, 1 if one failed."""
FOLDERS, FILES = ("src", "tests", "bench"), ("pyproject.toml",)
"""What the tests that are named need of the project."""

Outcome = Literal["killed", "SURVIVED", "FAULT"]


@dataclass(frozen=True)
class Mutant:
    """A small change that makes a claim unsound, or a guard blind, and the tests that should notice."""

    name: str
    file: str
    """Within the package, or beginning with `reproduction/` within that library."""
    old: str
    new: str
    why: str
    tests: tuple[str, ...]

    def place(self, package: Path) -> Path:
        """Where the file is: the library lies beside the package in a copy, and beside its rows in the checkout."""
        if not self.file.startswith(f"{LIBRARY.name}/"):
            return package / self.file
        beside = package.parent / self.file
        return beside if beside.exists() else ROOT / LIBRARY.parent / self.file

    def applied(self, package: Path) -> str:
        """The text of the mutated file."""
        text = self.place(package).read_text(encoding="utf-8")
        if (found := text.count(self.old)) != 1:
            raise ValueError(
                f"the old text is {found} times in {self.file}, not once; mend scripts/mutants.toml"
            )
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Tried:
    """What became of a mutant; `said` is why, where it was not killed."""

    mutant: Mutant
    outcome: Outcome
    seconds: float
    said: str = ""


def read_mutants() -> list[Mutant]:
    """The committed list."""
    entries = tomllib.loads((ROOT / "scripts/mutants.toml").read_text(encoding="utf-8"))["mutant"]
    return [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def run_tests(project: Path, package: Path, tests: Sequence[str], limit: float) -> tuple[int, str]:
    """Run tests of a copied project on some sources, in a process of their own; its exit code and what it said."""
    with tempfile.TemporaryDirectory(prefix="said-") as folder:
        said = Path(folder) / "said"
        child = FORKED.Process(target=_tests, args=(project, package, tests, said))
        child.start()
        child.join(limit)
        if child.is_alive():
            child.kill()
            child.join()
            return -1, f"no answer within {limit:.0f} s"
        code = child.exitcode
        return -1 if code is None else code, said.read_text(encoding="utf-8") if said.exists() else ""


def _tests(project: Path, package: Path, tests: Sequence[str], said: Path) -> None:
    """In the child: pytest until the first failure, on the sources of `package`."""
    import pytest

    with said.open("w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(project)
    sys.path.insert(0, str(package.parent))
    os.environ["PYTHONPATH"] = str(package.parent)
    import holdfast

    if Path(holdfast.__file__).parent != package:
        print(f"the tests would run on {holdfast.__file__}, not on {package}")
        sys.exit(2)
    # A crash outside of pytest, which also ends with 1, is no failed test.
    sys.exit(PYTEST + int(pytest.main(["-x", "-p", "no:cacheprovider", "--no-header", "--tb=line", *tests])))


def attempt(mutant: Mutant, project: Path) -> Tried:
    """Apply one mutant to a copy of its own and run the tests that should notice."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        package = Path(folder) / "holdfast"
        # With the times of the files, so that what is compiled stays valid for all files but the mutated one.
        for source in (project / PACKAGE, project / PACKAGE.parent / LIBRARY.name):
            shutil.copytree(source, package.parent / source.name)
        try:
            mutant.place(package).write_text(mutant.applied(package), encoding="utf-8")
        except (OSError, ValueError) as cause:
            return Tried(mutant, "FAULT", time.monotonic() - start, str(cause))
        code, said = run_tests(project, package, mutant.tests, LIMIT)
    seconds = time.monotonic() - start
    if code == PYTEST + 1:
        return Tried(mutant, "killed", seconds)
    if code == PYTEST:
        return Tried(mutant, "SURVIVED", seconds, f"{mutant.why}; not noticed by {', '.join(mutant.tests)}")
    return Tried(mutant, "FAULT", seconds, said.strip()[-800:])


def attempts(mutants: Sequence[Mutant], project: Path, jobs: int) -> Iterator[Tried]:
    """All mutants, some at a time, as they are listed."""
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(lambda mutant: attempt(mutant, project), mutants)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="mutants to try; all of them if left out")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time")
    options = parser.parse_args()
    mutants = read_mutants()
    if unknown := set(options.names) - {mutant.name for mutant in mutants}:
        parser.error(f"there is no mutant {', '.join(sorted(unknown))}")
    mutants = [mutant for mutant in mutants if not options.names or mutant.name in options.names]
    os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    FORKED.set_forkserver_preload(LOADED)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        project = Path(folder) / "project"
        for name in FOLDERS:
            shutil.copytree(ROOT / name, project / name)
        shutil.copytree(ROOT / LIBRARY, project / PACKAGE.parent / LIBRARY.name)
        for name in FILES:
            shutil.copy2(ROOT / name, project / name)
        named = sorted({test for mutant in mutants for test in mutant.tests})
        code, said = run_tests(project, project / PACKAGE, named, 5 * LIMIT)
        if code != PYTEST:
            print(said[-4000:] + "\nthe tests fail on the sources as they are; mend that first")
            return 2
        print(
            f"{len(named)} tests pass on the sources as they are ({time.monotonic() - start:.0f} s)",
            flush=True,
        )
        width = max(len(mutant.name) for mutant in mutants)
        tried = []
        for one in attempts(mutants, project, options.jobs):
            tried.append(one)
            line = f"{one.outcome:<9} {one.seconds:5.1f} s  {one.mutant.name:<{width}}  {one.mutant.file}"
            print(line + (f"\n    {one.said}" if one.said else ""), flush=True)
    count = Counter(one.outcome for one in tried)
    print(
        f"{len(tried)} mutants: {count['killed']} killed, {count['SURVIVED']} survived, {count['FAULT']} could not be "
        f"tried; {(time.monotonic() - start) / 60:.1f} minutes"
    )
    return 0 if count["killed"] == len(tried) else 1


if __name__ == "__main__":
    sys.exit(main())
