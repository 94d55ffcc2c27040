"""What the container is made of: the lock holds all that the service needs, and the bill of materials is the lock."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
make_lock, make_sbom = (importlib.import_module(name) for name in ("make_lock", "make_sbom"))
LOCKS = (make_lock.LOCK, make_lock.BUILD_LOCK)


def pinned(lock: Path) -> dict[str, tuple[str, list[str]]]:
    return make_sbom.packages(lock.read_text())


@pytest.mark.parametrize(
    ("lock", "wanted"),
    [(make_lock.LOCK, make_lock.runtime()), (make_lock.BUILD_LOCK, make_lock.build())],
    ids=["runtime", "build"],
)
def test_the_lock_has_every_dependency_at_an_allowed_version(lock, wanted):
    found = pinned(lock) | pinned(make_sbom.CONSTRAINTS)
    for requirement in map(Requirement, wanted):
        version, _ = found[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement}: run scripts/make_lock.py"


def test_the_lock_has_the_dependencies_of_the_dependencies():
    found = pinned(make_lock.LOCK) | pinned(make_sbom.CONSTRAINTS)
    looked = 0
    for name, (version, _) in found.items():
        try:
            package = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        if package.version.partition("+")[0] != version:
            continue
        looked += 1
        for requirement in map(Requirement, package.requires or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                assert canonicalize_name(requirement.name) in found, f"{name} needs {requirement}"
    assert looked > len(found) // 2, "the environment is of other versions than the lock"


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_is_versions_and_hashes_alone(lock):
    assert all(digests for _, digests in pinned(lock).values())
    assert "torch" not in pinned(lock), "its hash is that of the CPU build"
    for line in lock.read_text().splitlines()[1:]:
        assert re.fullmatch(r"[a-z0-9.-]+==[\w.+!]+ \\|    --hash=sha256:[0-9a-f]{64}( \\)?", line), line


def test_the_bill_of_materials_is_made_from_the_lock():
    printed = subprocess.run(
        [sys.executable, ROOT / "scripts" / "make_sbom.py"], capture_output=True, text=True, check=True
    ).stdout
    bill = json.loads(printed)
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.5", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", bill["serialNumber"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert bill["metadata"]["component"]["version"] == project["version"]
    found = pinned(make_lock.LOCK) | pinned(make_sbom.CONSTRAINTS)
    assert {c["name"]: c["version"] for c in bill["components"]} == {n: v for n, (v, _) in found.items()}
    for component in bill["components"]:
        assert component["purl"] == f"pkg:pypi/{component['name']}@{component['version']}"
        hashes = [entry["content"] for entry in component.get("hashes", [])]
        assert hashes == found[component["name"]][1]
    references = {component["bom-ref"] for component in bill["components"]}
    assert len(references) == len(found)
    assert set(bill["dependencies"][0]["dependsOn"]) == references
    assert bill == make_sbom.bill(), "the same lock gives the same bill"


def test_the_container_is_built_from_the_locks_on_a_base_by_digest():
    text = (ROOT / "Containerfile").read_text()
    assert re.findall(r"^FROM (\S+)", text, re.MULTILINE) == ["${BASE}", "${BASE}"]
    assert "image inspect --format '{{index .RepoDigests 0}}'" in text
    assert not re.search(r"sha256:[0-9a-f]{64}", text)
    for lock in LOCKS:
        assert f"--require-hashes --no-deps --requirement {lock.name}" in text
    copied = {
        name for line in re.findall(r"^COPY (?!--)(.*)", text, re.MULTILINE) for name in line.split()[:-1]
    }
    assert all((ROOT / name).exists() for name in copied)
    assert {lock.name for lock in LOCKS} <= copied


def test_the_unit_is_locked():
    unit = (ROOT / "examples" / "holdfast.service").read_text()
    settings = [line for line in unit.splitlines() if "=" in line and not line.startswith("#")]
    for lock in (
        "UMask=0077",
        "ProtectProc=invisible",
        *(
            f"Protect{what}=yes"
            for what in ("Clock", "Hostname", "KernelLogs", "KernelModules", "KernelTunables")
        ),
        *(f"Private{what}=yes" for what in ("Tmp", "Devices", "Mounts", "Users")),
        *(f"Restrict{what}=yes" for what in ("Namespaces", "Realtime", "SUIDSGID")),
        *("SystemCallFilter=@system-service", "SystemCallFilter=~@privileged", "CapabilityBoundingSet="),
        "IPAddressDeny=any",
    ):
        assert lock in settings
    if shutil.which("systemd-analyze") is None:
        return
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=20"]
    done = subprocess.run(
        [*command, ROOT / "examples" / "holdfast.service"], capture_output=True, text=True, check=False
    )
    if "Overall exposure level" not in done.stdout:
        pytest.skip("this systemd-analyze cannot look at a file alone")
    assert done.returncode == 0, done.stdout[-200:]
