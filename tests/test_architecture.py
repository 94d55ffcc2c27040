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
    "goals",
    "progress",
    "rows",
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
BELOW = {"data", "models", "metrics", "bounds"}
"""The rooms that everything else is built on."""
ALLOWED = {
    "data": set(),
    "models": set(),
    "metrics": set(),
    "bounds": {"models"},
    "attacks": BELOW,
    "proofs": BELOW,
    "training": BELOW | {"attacks", "proofs"},
    "neighbours": BELOW | {"proofs"},
    "gallery": BELOW | {"attacks", "proofs", "training"},
    "evaluation": BELOW | {"attacks", "proofs", "training", "gallery"},
    "reports": BELOW | {"attacks", "proofs", "training", "gallery", "neighbours", "evaluation"},
    "service": BELOW | {"attacks", "proofs", "training", "gallery", "evaluation", "reports"},
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


def test_the_library_of_reproductions_is_no_part_of_the_package():
    """It uses the package's rooms, not what stands above them; of the package only its command knows it."""
    allowed = ALLOWED["reports"] | SHARED
    files = sorted((PACKAGE.parents[1] / "reproduce" / "reproduction").glob("*.py"))
    assert files
    for path in files:
        assert not imported(path) - allowed, f"{path.name} imports {imported(path) - allowed}"
    knowing = [path.name for path in PACKAGE.rglob("*.py") if "from reproduction" in path.read_text()]
    assert knowing == ["reproduce.py"]


def test_nobody_asks_of_which_family_a_certificate_is():
    """Certificates and proofs say themselves what they claim: a new family changes no reader."""
    families = r"isinstance\([^)]*\b(RankInterval|Radius|BoundsProof|SamplingProof|Certificate|Proof)\b"
    readers = [path for path in PACKAGE.rglob("*.py") if path.parent.name != "provers"]
    assert not [path for path in readers if re.search(families, path.read_text())]


def test_public_names_are_there():
    for name in holdfast.__all__:
        assert getattr(holdfast, name) is not None


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


def test_messages_speak_of_no_command_line_option():
    """An error names the option that it is about; `holdfast.cli` alone adds the words of the command line."""
    rooms = set(ALLOWED) - {"gallery", "service"}
    for path in (file for room in rooms for file in (PACKAGE / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise):
                said = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
                named = [
                    text for text in said if isinstance(text, str) and re.search(r"(?<!\w)--[a-z]", text)
                ]
                assert not named, f"{path.relative_to(PACKAGE)}:{node.lineno}: {named}"
