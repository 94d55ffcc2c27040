"""What is looked out for while a run trains: a network that tells nothing apart, a collapse, boxes too wide."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from holdfast.errors import RunError
from holdfast.training.losses import distances

SHRUNK, ENTANGLED = 0.1, 0.02
"""Below these shares of its first mean distance, and of separability, a batch begins to collapse."""
TINY = 0.01
"""Below this share of its first mean distance it collapses however its classes stand."""
COLLAPSED = 1e-3
"""A batch whose mean distance is below this share of its first value has collapsed."""
ALIKE = 1e-6
"""Embeddings that differ by no more than this share of their size are one and the same."""

SHOWN = {
    "loss": "loss {:.4f}",
    "mean_distance": "dist {:.3g}",
    "separability": "sep {:.2f}",
    "hardness": "H {:+.3f}",
    "collapseness": "C {:+.3f}",
    "shift": "shift {:.3f}",
}


def line(values: Mapping[str, float]) -> str:
    """What the progress line says of a step, as far as the defence measures it."""
    return "  ".join(form.format(values[name]) for name, form in SHOWN.items() if name in values)


def refuse_constant(embeddings: Tensor) -> None:
    """A network that gives every image the same embedding has no gradient to learn from."""
    first = embeddings.detach().double()
    if len(first) > 1 and ((first - first[0]).abs().max() <= ALIKE * first.abs().max()).item():
        raise RunError(
            "the network gives every image of the first batch the same embedding, so there is nothing to train; "
            "the images are all alike, or its weights or input scale are wrong"
        )


class Watch:
    """Follows the batches' telemetry and says once what begins to go wrong."""

    def __init__(self, spread: float = 0.0, said: Iterable[str] = ()) -> None:
        self.spread = spread
        """The mean distance of the first batch that was looked at; 0 before."""
        self.said = set(said)
        """What is not said again, also after a resume."""

    def begin(self, embeddings: Tensor) -> None:
        """Take the first batch, before any step, as what later ones are compared with."""
        refuse_constant(embeddings)
        apart = ~torch.eye(len(embeddings), dtype=torch.bool)
        self.spread = distances(embeddings.detach())[apart].mean().item()

    def look(self, step: int, steps: int, seen: Mapping[str, float]) -> Iterator[str]:
        """Sentences for the person who trains."""
        distance = seen["mean_distance"]
        self.spread = self.spread or distance
        if distance < COLLAPSED * self.spread and self._first("collapsed"):
            yield f"step {step}: the embedding has collapsed (all outputs alike)"
        elif "collapsed" not in self.said and self._collapsing(seen) and self._first("collapsing"):
            yield (
                f"step {step}: a collapse begins: distances are {distance / self.spread:.0%} of the "
                f"first ones, and classes stand apart by {seen['separability']:.1%} of them"
            )
        radius = seen.get("radius", 0.0)
        if step >= steps / 2 and radius > distance and self._first("wide"):
            yield (
                f"step {step}: the boxes are larger (radius {radius:.3g}) than images are apart "
                f"({distance:.3g}), so nothing is certified; take "
                'defence.ramp="smooth", begin the ramp of eps earlier, train longer, or for a smaller eps'
            )

    def _first(self, what: str) -> bool:
        new = what not in self.said
        self.said.add(what)
        return new

    def _collapsing(self, seen: Mapping[str, float]) -> bool:
        """Shrunk embeddings and entangled classes at once: the two faces of a collapse (CA-TRIDE, §4.3)."""
        distance = seen["mean_distance"]
        entangled = seen.get("separability", 1.0) < ENTANGLED
        return distance < TINY * self.spread or (distance < SHRUNK * self.spread and entangled)
