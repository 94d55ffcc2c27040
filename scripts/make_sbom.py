"""Print the software bill of materials of the container (CycloneDX 1.5, JSON), made from its lock.

`python scripts/make_sbom.py > sbom.cdx.json`. The same lock gives the same bytes. It needs no package but Python's own.
"""

from __future__ import annotations

import json
import re
import tomllib
import uuid
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
CONSTRAINTS = ROOT / "constraints.txt"
"""Where torch's version is, which the lock leaves out."""

_PINNED = re.compile(r"([A-Za-z0-9._-]+)==([^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def packages(text: str) -> dict[str, tuple[str, list[str]]]:
    """Of each package in a lock its version and the SHA-256 of each of its files."""
    found: dict[str, tuple[str, list[str]]] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if (pinned := _PINNED.match(line)) is not None:
            name = re.sub(r"[-_.]+", "-", pinned[1]).lower()
            found[name] = (pinned[2], [])
        if found:
            found[next(reversed(found))][1].extend(_HASH.findall(line))
    return found


def bill() -> dict[str, Any]:
    """The bill: Holdfast, and every package that it is installed with."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = packages(LOCK.read_text()) | packages(CONSTRAINTS.read_text())
    components = [
        _component(name, version) | ({"hashes": [_hash(digest) for digest in digests]} if digests else {})
        for name, (version, digests) in sorted(listed.items())
    ]
    root = _component(project["name"], project["version"]) | {
        "type": "application",
        "licenses": [{"license": {"id": project["license"]}}],
    }
    references = [component["bom-ref"] for component in components]
    content = json.dumps([root, components], sort_keys=True)
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, content)}",
        "version": 1,
        "metadata": {"component": root},
        "components": components,
        "dependencies": [
            {"ref": root["bom-ref"], "dependsOn": references},
            *({"ref": reference} for reference in references),
        ],
    }


def _component(name: str, version: str) -> dict[str, Any]:
    purl = f"pkg:pypi/{name}@{version}"
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def _hash(digest: str) -> dict[str, str]:
    return {"alg": "SHA-256", "content": digest}


if __name__ == "__main__":
    print(json.dumps(bill(), indent=2))
