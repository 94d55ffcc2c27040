"""Settings that go together: `holdfast train --preset laptop`. What is given by hand goes before them."""

from __future__ import annotations

from typing import Any

from holdfast.errors import ConfigError, unknown_name
from holdfast.spec import ImageSpec

_FEW_PIXELS = 64
_SMALL_IMAGE = 96

_RECIPE: dict[str, Any] = {
    "train": {"batch": 112, "lr": 1e-3, "schedule": "constant", "freeze_batch_norm": True},
    "model": {"unit_norm": True},
    "defence": {"margin": 0.2, "sampling": "semi-hard"},
}
"""Seed 004's training (§4.1), for every adversarial defence."""
_STEPS = {"adversarial": 32, "est": 32, "act": 32, "hm": 32, "ca-tride": 16}
"""PGD steps of the papers."""

PRESETS = {
    "paper": "the schedules of the paper, for a GPU: 100 epochs, all its PGD steps",
    "laptop": "two cores and minutes: 5 epochs, a quarter of the PGD steps, images of at most 64 pixels",
}


def preset(name: str, defence: str, natural: ImageSpec) -> dict[str, Any]:
    """The settings of a preset for a defence, on images of that natural shape."""
    if name not in PRESETS:
        raise ConfigError(unknown_name("preset", name, PRESETS))
    if defence not in _STEPS:
        raise ConfigError(f"presets are for {', '.join(_STEPS)}, not {defence}; give its settings by hand")
    short = name == "laptop"
    steps = _STEPS[defence] // (4 if short else 1)
    table: dict[str, Any] = {key: dict(values) for key, values in _RECIPE.items()}
    table["defence"] |= {"attack_steps": steps}
    table["train"] |= {"epochs": 5 if short else 100}
    if short and natural.height > _SMALL_IMAGE:
        table["data"] = {"image_size": _FEW_PIXELS}
    return table
