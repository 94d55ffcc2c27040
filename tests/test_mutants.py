"""The list of `make mutants` fits the code as it is: every mutant is possible, and its tests exist."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def listed():
    found = importlib.util.spec_from_file_location("mutants", ROOT / "scripts/mutants.py")
    assert found is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module
    found.loader.exec_module(module)
    return module.read_mutants()


def test_every_mutant_fits_its_file():
    """Its old text is there exactly once, so that it cannot go out of use unnoticed."""
    mutants = listed()
    assert len(mutants) >= 60
    assert len({mutant.name for mutant in mutants}) == len(mutants)
    for mutant in mutants:
        changed = mutant.applied(ROOT / "src/holdfast")
        ast.parse(changed)
        assert mutant.old != mutant.new, mutant.name
        assert mutant.why, mutant.name


def test_every_mutant_has_tests():
    defined = {}
    for mutant in listed():
        assert mutant.tests, mutant.name
        for test in mutant.tests:
            file, _, name = test.partition("::")
            if file not in defined:
                tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
                defined[file] = {part.name for part in tree.body if isinstance(part, ast.FunctionDef)}
            assert name in defined[file], f"{mutant.name}: {test}"
