"""Imports point one way, and starting the command needs no heavy library."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import holdfast

PACKAGE = Path(holdfast.__file__).parent
SHARED = {
    "errors",
    "spec",
    "files",
    "progress",
    "provenance",
    "randomness",
    "numbers",
    "presets",
    "threat",
    "memory",
    "deadline",
    "certificate",
    "methods",
    "tables",
}
ALLOWED = {
    "data": set(),
    "models": set(),
    "metrics": set(),
    "bounds": {"models"},
    "attacks": {"data", "models", "metrics", "bounds"},
    "certify": {"data", "models", "metrics", "bounds"},
    "training": {"data", "models", "metrics", "bounds", "attacks", "certify"},
    "gallery": {"data", "models", "metrics", "bounds", "attacks", "certify", "training"},
    "evaluate": {"data", "models", "metrics", "bounds", "attacks", "certify", "training", "gallery"},
    "report": {
        "data",
        "models",
        "metrics",
        "bounds",
        "attacks",
        "certify",
        "training",
        "gallery",
        "evaluate",
    },
    "reproduce": {
        "data",
        "models",
        "metrics",
        "bounds",
        "attacks",
        "certify",
        "training",
        "gallery",
        "evaluate",
    },
    "service": {
        "data",
        "models",
        "metrics",
        "bounds",
        "attacks",
        "certify",
        "training",
        "gallery",
        "evaluate",
        "report",
    },
}


def imported(path: Path) -> set[str]:
    """The rooms of Holdfast that a file imports from."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "holdfast":
            rooms |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("holdfast."):
            rooms.add(node.module.split(".")[1])
    return rooms


def test_imports_point_one_way():
    for room, allowed in ALLOWED.items():
        for path in (PACKAGE / room).rglob("*.py"):
            outside = imported(path) - allowed - SHARED - {room, "__version__"}
            assert not outside, f"{path.relative_to(PACKAGE)} imports {outside}"
    for path in PACKAGE.glob("*.py"):
        assert "cli" not in imported(path) or path.name == "__main__.py", path.name


def test_nobody_asks_of_which_family_a_certificate_is():
    """Certificates and proofs say themselves what they claim: a new family changes no reader."""
    families = r"isinstance\([^)]*\b(RankInterval|Radius|BoundsProof|SamplingProof|Certificate|Proof)\b"
    found = [path for path in PACKAGE.rglob("*.py") if re.search(families, path.read_text())]
    assert not found


def test_public_names_are_there():
    for name in holdfast.__all__:
        assert getattr(holdfast, name) is not None


def test_rooms_stay_rooms():
    program = (
        "import holdfast\n"
        "assert holdfast.evaluate.evaluate and holdfast.evaluate.read_rows\n"
        "assert holdfast.report.write_report and holdfast.evaluate is holdfast.evaluate"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_help_needs_no_heavy_library():
    program = (
        "import sys; sys.argv = ['holdfast', '--help']\n"
        "from holdfast.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print([m for m in ('torch', 'faiss', 'numpy', 'PIL') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
