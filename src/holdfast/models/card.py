"""The card of a checkpoint: what it holds, where it came from, and the hash of its weights."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, JsonValue, PositiveInt, ValidationError

from holdfast.errors import CheckpointError, HoldfastError
from holdfast.models.embedder import Embedder
from holdfast.models.pixels import Pixels
from holdfast.provenance import versions
from holdfast.spec import ImageSpec

FORMAT = "holdfast-checkpoint"
VERSION = 2
"""1: no filter in the spec, which is bicubic then. 2: with it, and fingerprints that follow the function."""

IN_FLOAT32 = "float32@0"
"""The precision of a run that never had another."""


class WeightsFile(BaseModel):
    """What the file of weights must be, byte for byte."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bytes: int
    sha256: str


class Card(BaseModel):
    """card.json, checked."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["holdfast-checkpoint"]
    version: Literal[1, 2]
    architecture: dict[str, JsonValue]
    spec: ImageSpec
    dim: PositiveInt
    unit_norm: bool
    pixels: Pixels | None
    config: dict[str, JsonValue]
    data: str
    seed: int
    metrics: dict[str, float | None]
    versions: dict[str, str]
    created: str
    fingerprint: str
    weights: WeightsFile
    candidate_side: dict[str, JsonValue] | None = None
    """How candidates' vectors are made of queries', where they are not the same."""
    precision: str = IN_FLOAT32
    """Of the products while it was trained, PRECISION@STEP for each step from which on one was used."""


def make_card(
    embedder: Embedder,
    *,
    config: Mapping[str, Any],
    data: str,
    seed: int,
    metrics: Mapping[str, float],
    weights: WeightsFile,
    precision: str = IN_FLOAT32,
) -> str:
    """The text of card.json. A metric that is not finite is written as null, which JSON can hold."""
    content = {
        "format": FORMAT,
        "version": VERSION,
        **embedder.describe(),
        "config": dict(config),
        "data": data,
        "seed": seed,
        "metrics": {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()},
        "versions": versions(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "fingerprint": embedder.fingerprint(),
        "weights": weights.model_dump(),
        "precision": precision,
    }
    try:
        return json.dumps(content, indent=2, allow_nan=False) + "\n"
    except (TypeError, ValueError) as cause:
        raise CheckpointError(f"the config cannot be written as JSON ({cause}); use plain values") from cause


def read_card(path: Path) -> tuple[Card, dict[str, Any]]:
    """The card at `path`, checked, and as it was written."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError as cause:
        raise CheckpointError(
            f"{path.parent} is not a checkpoint: it has no {path.name} (a run gets one when its training ends)"
        ) from cause
    except OSError as cause:
        raise CheckpointError(f"could not read {path} ({cause.strerror})") from cause
    except (ValueError, RecursionError) as cause:
        raise CheckpointError(f"{path} is not JSON ({str(cause).splitlines()[0]}); it was altered") from cause
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not the card of a checkpoint: its format is not '{FORMAT}'")
    if content.get("version") not in (1, VERSION):
        raise CheckpointError(
            f"{path} has format version {content.get('version')!r}, and this Holdfast reads 1 to {VERSION}; "
            "use the Holdfast that wrote it or a newer one"
        )
    try:
        return Card.model_validate(_today(content)), content
    except ValidationError as cause:
        first = cause.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise CheckpointError(f"{path} is not a whole card: {where}: {first['msg']}") from cause
    except HoldfastError as cause:
        raise CheckpointError(f"{path} is not a whole card: {cause}") from cause


def _today(content: dict[str, Any]) -> dict[str, Any]:
    """The card in the words of today's version."""
    if content["version"] != 1 or not isinstance(content.get("spec"), dict):
        return content
    return {**content, "spec": {**content["spec"], "resample": "bicubic"}}
