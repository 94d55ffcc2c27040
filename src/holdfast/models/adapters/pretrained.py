"""Networks with pretrained weights, by name: `efficientnet-lite0`, `efficientnet-lite0@160`."""

from __future__ import annotations

from pathlib import Path

from holdfast.errors import ModelError
from holdfast.models.adapters.base import Adapter
from holdfast.models.embedder import Embedder
from holdfast.models.options import Options
from holdfast.models.registry import MODELS, build
from holdfast.spec import ImageSpec


class Pretrained(Adapter):
    """A network of ours with the weights that a package brings, without its classifier: vectors of length 1."""

    form = "NAME or NAME@SIZE"
    says = "a pretrained network of this table"
    takes = frozenset({"size", "normalise"})
    opens_alone = True

    def claims(self, name: str) -> bool:
        known, at, size = name.partition("@")
        # A folder of that name goes first: it is somebody's run.
        return known in MODELS and (not at or size.isdecimal()) and not Path(name).is_dir()

    def open(self, name: str, options: Options) -> Embedder:
        name, _, size = name.partition("@")
        shipped = MODELS[name].shipped
        if shipped is None:
            raise ModelError(
                f"{name} has no pretrained weights; train it and name its run's folder, or take one of "
                f"{', '.join(with_weights())}"
            )
        side = int(size) if size else shipped.side
        wanted = options.images
        spec = wanted if wanted is not None and not size else ImageSpec(3, side, side)
        made = build(name, spec=spec, head="none", unit_norm=options.normalise is not False)
        return made.eval()


def with_weights() -> list[str]:
    """The networks that can be used without training."""
    return [name for name, blueprint in MODELS.items() if blueprint.shipped is not None]
