"""Write requirements.lock and requirements-build.lock: every package of the container, by version and SHA-256.

Needs pip-tools (`pip install pip-tools`) and Python 3.11, as in the container. torch is left out: its hash is that of
the CPU build, which depends on where it comes from; its version is in constraints.txt.
"""

from __future__ import annotations

import subprocess
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK, BUILD_LOCK = ROOT / "requirements.lock", ROOT / "requirements-build.lock"
EXTRA = "serve"
"""What the container needs beside the package's own dependencies."""
LEFT_OUT = ("torch",)

_OPTIONS = (
    *("--quiet", "--generate-hashes", "--strip-extras", "--allow-unsafe"),
    *("--no-header", "--no-annotate", "--no-emit-options"),
    *("--no-emit-index-url", "--no-emit-trusted-host", "--no-emit-find-links"),
)


def runtime() -> list[str]:
    """The requirements of the service, as pyproject.toml says them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *project["optional-dependencies"][EXTRA]]


def build() -> list[str]:
    """The requirements of making the wheel."""
    wanted: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    return wanted


def locked(wanted: list[str], what: str) -> str:
    """The lock of those requirements, without what is left out."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "wanted.in").write_text("\n".join(wanted) + "\n")
        command = ["pip-compile", *_OPTIONS, "--constraint", str(ROOT / "constraints.txt")]
        subprocess.run([*command, "--output-file", "found.txt", "wanted.in"], cwd=folder, check=True)
        found = (folder / "found.txt").read_text()
    entries = found.split("\n\n", 1)[-1] if found.startswith("#") else found
    kept, keep = [], True
    for line in entries.splitlines():
        if line and not line.startswith((" ", "#")):
            keep = line.split("==")[0] not in LEFT_OUT
        if keep and line and not line.startswith("#"):
            kept.append(line)
    head = [f"# {what}, for Python 3.11; made by scripts/make_lock.py."]
    return "\n".join([*head, *kept]) + "\n"


if __name__ == "__main__":
    LOCK.write_text(locked(runtime(), "What the service runs with, but torch"))
    BUILD_LOCK.write_text(locked(build(), "What builds the wheel"))
