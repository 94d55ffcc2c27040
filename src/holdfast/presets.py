"""Settings of training that go together: `holdfast train --preset laptop`. A new one is an entry of `PRESETS`.

What is given by hand goes before them.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from holdfast.errors import ConfigError, unknown_name
from holdfast.spec import ImageSpec

Tables = Mapping[str, Mapping[str, Any]]
"""Tables of a config."""


@dataclass(frozen=True)
class Preset:
    """A recipe, for the defences that it names."""

    about: str
    defences: Mapping[str, Mapping[str, Any]]
    """The defences that it is for, with what it sets of each beside `settings`."""
    settings: Tables
    brings: str | None = None
    """The defence it trains with where none is named; None: one must be."""
    most_pixels: int | None = None
    """Larger images are brought to this side; None: none are."""


_TIAN: Tables = {
    "train": {"batch": 112, "lr": 1e-3, "schedule": "constant", "freeze_batch_norm": True},
    "model": {"unit_norm": True},
    "defence": {"margin": 0.2, "sampling": "semi-hard"},
}
"""What Tian et al. train every adversarial defence with (§4.1)."""
_KEPT: Mapping[str, Any] = {"attack_steps": 4, "start": "kept"}
"""The adversary that resisted most for its gradients (reproduce/ca-tride/choice.md)."""

PRESETS: dict[str, Preset] = {
    "laptop": Preset(
        "minutes on two cores: 5 epochs, 4 PGD steps that go on from the image's last visit",
        {
            "act": {"eps": 8 / 255, "sampling": "random", **_KEPT},
            **dict.fromkeys(("adversarial", "est", "hm", "ca-tride"), _KEPT),
        },
        {
            "train": {
                "epochs": 5,
                "batch": 256,
                "lr": 1e-3,
                "schedule": "constant",
                "freeze_batch_norm": True,
            },
            "model": {"unit_norm": True},
            "defence": {"margin": 0.2},
        },
        brings="act",
        most_pixels=64,
    ),
    "robust": Preset(
        "an hour of one core on Fashion-MNIST, eps 77/255: 11 million image gradients, the mean of the weights",
        {"act": {"eps": 77 / 255, "attack_steps": 4, "start": "kept", "sampling": "random"}},
        {
            "train": {
                "gradients": 11_000_000,
                "batch": 256,
                "lr": 1e-3,
                "schedule": "constant",
                "average": 0.999,
                "freeze_batch_norm": True,
            },
            "model": {"name": "c2f2", "unit_norm": True},
            "defence": {"margin": 0.2},
        },
        brings="act",
    ),
    "paper": Preset(
        "the schedules of Tian et al., for a GPU: 100 epochs, all their PGD steps",
        {
            **{defence: {"attack_steps": 32} for defence in ("adversarial", "est", "act", "hm")},
            "ca-tride": {"attack_steps": 16},
        },
        {**_TIAN, "train": {**_TIAN["train"], "epochs": 100}},
    ),
}


def settings(name: str, defence: str | None, natural: ImageSpec) -> dict[str, Any]:
    """The tables of a preset for a defence (None: none was named), on images of that natural shape."""
    if name not in PRESETS:
        raise ConfigError(unknown_name("preset", name, PRESETS))
    preset = PRESETS[name]
    known = ", ".join(preset.defences)
    chosen = defence or preset.brings
    if chosen is None:
        raise ConfigError(f"the preset {name} brings no defence of its own; name one of {known}")
    if chosen not in preset.defences:
        without = f" (or none, for {preset.brings})" if preset.brings else ""
        raise ConfigError(f"the preset {name} is for {known}, not {chosen}; name one of them{without}")
    table = deepcopy({key: dict(values) for key, values in preset.settings.items()})
    table["defence"] = {**table.get("defence", {}), **deepcopy(dict(preset.defences[chosen])), "name": chosen}
    if preset.most_pixels is not None and natural.height > preset.most_pixels:
        table["data"] = {**table.get("data", {}), "image_size": preset.most_pixels}
    return table


def in_words() -> str:
    """The presets by name, each with what it is."""
    return "; ".join(f"{name} ({preset.about})" for name, preset in PRESETS.items())
