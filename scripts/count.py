"""Count how hard a tree of Python is to take over: its size, its docstrings, its longest function, its switches.

python scripts/count.py                              # src/holdfast as it is
python scripts/count.py --commit HEAD~5              # the same of a commit
python scripts/count.py src/holdfast reproduce       # several trees, counted together
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FAMILIES = {
    "results": {"Hits", "CertifiedHits", "SmoothedHits", "RankInterval", "Radius"},
    "embedders": {"Embedder", "Foreign", "CallableEmbedder", "Smoothed"},
    "galleries": {"Gallery", "MilvusGallery"},
    "evaluations": {"Certification", "Curve", "SmoothedCertification", "ErRecall", "AttackedSuite"},
}
"""Classes that stand side by side: asking which of them a value is belongs into their methods, or a registry."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass
class Count:
    """What was counted in some files."""

    statements: int = 0
    """Without docstrings; a compound statement counts once, and each statement inside it."""
    public: int = 0
    """Modules, classes, functions and methods whose names, and those around them, begin with no underscore."""
    documented: int = 0
    """Lines of their docstrings."""
    files: Counter[str] = field(default_factory=Counter)
    longest: tuple[int, str] = (0, "")
    switches: list[tuple[str, str]] = field(default_factory=list)
    """The family, and where: every isinstance of a class of a family."""

    def add(self, name: str, text: str) -> None:
        """Count one file."""
        tree = ast.parse(text)
        self.files[name.rpartition("/")[2]] += 1
        documents = {id(found) for node in ast.walk(tree) if (found := docstring(node)) is not None}
        self.statements += sum(
            isinstance(node, ast.stmt) and id(node) not in documents for node in ast.walk(tree)
        )
        for node in public(tree):
            self.public += 1
            found = docstring(node)
            self.documented += 0 if found is None else lines(found)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self.longest = max(self.longest, (lines(node), f"{name}:{node.lineno} {node.name}"))
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "isinstance"
            ):
                asked = {part.id for part in ast.walk(node.args[1]) if isinstance(part, ast.Name)}
                self.switches += [
                    (family, f"{name}:{node.lineno}") for family, kinds in FAMILIES.items() if asked & kinds
                ]

    def report(self) -> Iterator[str]:
        """One line for each number."""
        shared = sorted(name for name, count in self.files.items() if count > 1 and name != "__init__.py")
        families = Counter(family for family, _ in self.switches)
        yield f"statements                       {self.statements:,}"
        yield f"docstring lines of public names  {self.documented:,} of {self.public:,} names: "
        yield f"  lines per public name          {self.documented / max(1, self.public):.3f}"
        yield f"files                            {self.files.total():,}"
        yield f"file names used more than once   {len(shared)}"
        yield f"longest function                 {self.longest[0]} lines: {self.longest[1]}"
        told = ", ".join(f"{family} {families[family]}" for family in FAMILIES)
        yield f"isinstance on families           {len(self.switches)}: {told}"


def docstring(node: ast.AST) -> ast.stmt | None:
    """The docstring of a module, class or function."""
    if not isinstance(node, ast.Module | Definition) or ast.get_docstring(node, clean=False) is None:
        return None
    return node.body[0]


def lines(node: ast.stmt) -> int:
    """How many lines a statement takes."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def public(node: ast.Module | Definition) -> Iterator[ast.Module | Definition]:
    """The module or class itself, and every public definition in it; what is inside a function is private."""
    yield node
    for inner in node.body if isinstance(node, ast.Module | ast.ClassDef) else []:
        if isinstance(inner, Definition) and not inner.name.startswith("_"):
            yield from public(inner)


def sources(trees: list[str], commit: str | None) -> Iterator[tuple[str, str]]:
    """The name and text of every Python file below the trees, of the checkout or of a commit."""
    if commit is None:
        for tree in trees:
            for path in sorted((ROOT / tree).rglob("*.py")):
                yield str(path.relative_to(ROOT)), path.read_text()
        return
    packed = subprocess.run(
        ["git", "-C", ROOT, "archive", commit, *trees], check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for member in archive:
            if member.name.endswith(".py") and (file := archive.extractfile(member)) is not None:
                yield member.name, file.read().decode()


def main() -> None:
    """Print the counts, and with --list where the switches and the shared names are."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trees", nargs="*", default=["src/holdfast"], help="folders below the checkout")
    parser.add_argument("--commit", help="count this commit instead of the checkout")
    parser.add_argument(
        "--list", action="store_true", help="also list the switches and the shared file names"
    )
    asked = parser.parse_args()
    count = Count()
    for name, text in sources(asked.trees, asked.commit):
        count.add(name, text)
    print("\n".join(count.report()))
    if asked.list:
        for family, place in count.switches:
            print(f"  {family}: {place}")
        for name, times in sorted(count.files.items()):
            if times > 1:
                print(f"  {times} × {name}")


if __name__ == "__main__":
    main()
