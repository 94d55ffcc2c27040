"""How hard an attack is sought, in the words of users."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from holdfast.attacks.optimisers import OPTIMISERS, Optimiser, optimiser
from holdfast.errors import ConfigError, unknown_name
from holdfast.models import AnyEmbedder, Embedder, Smoothed

PAPER = "paper"
"""The optimiser of Kakizaki et al.: the last of 100 plain steps of eps/10."""
PUBLISHED = "published"
"""The search behind the published ERS tables (Zhou et al. 2021): the last of 32 plain steps of 3/255."""
PRINTED_STEPS = {PAPER: 100, PUBLISHED: 32}
"""Steps of the searches that are as they were printed, whatever else is asked for."""


@dataclass(frozen=True)
class Settings:
    """How attacks are sought. `optimiser` None: pgd where there are gradients, else nes.

    `steps`, `step` and `restarts` are for optimisers with gradients; `budget` is how many images a
    black-box optimiser may show to the model for each attacked one.
    """

    optimiser: str | None = None
    steps: int = 32
    step: float | None = None
    restarts: int = 1
    budget: int = 1000

    def named(self, embedder: AnyEmbedder) -> Settings:
        """The same with the optimiser chosen."""
        network = embedder.base if isinstance(embedder, Smoothed) else embedder
        usual = "pgd" if isinstance(network, Embedder) else "nes"
        return dataclasses.replace(self, optimiser=self.optimiser or usual)

    def make(self, eps: float) -> Optimiser:
        """The optimiser for a threat of that size."""
        name = self.optimiser or "pgd"
        if name == PAPER:
            return optimiser("pgd-plain", steps=PRINTED_STEPS[PAPER], step=eps / 10)
        if name == PUBLISHED:
            return optimiser("pgd-plain", steps=PRINTED_STEPS[PUBLISHED], step=3 / 255)
        if name not in OPTIMISERS or OPTIMISERS[name].shared:
            known = {PAPER, PUBLISHED, *(known for known, kind in OPTIMISERS.items() if not kind.shared)}
            raise ConfigError(unknown_name("optimiser", name, known))
        wanted = {"steps": self.steps, "restarts": self.restarts, "queries": self.budget, "step": self.step}
        fields = {field.name for field in dataclasses.fields(OPTIMISERS[name])}
        return optimiser(name, **{k: v for k, v in wanted.items() if k in fields and v is not None})

    def config(self, eps: float) -> dict[str, Any]:
        """What tells two ways of searching apart."""
        return {"optimiser": self.optimiser, **dataclasses.asdict(self.make(eps))}  # type: ignore[call-overload]
