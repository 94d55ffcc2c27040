"""One vector for each image out of what other libraries' networks give."""

from __future__ import annotations

from typing import Any, Literal, get_args

from torch import Tensor, nn

from holdfast.errors import ModelError

Pool = Literal["cls", "mean", "pooler", "image-embeds"]
"""The first token, the mean of all others (or of a map), the network's own pooling, or a projection for pictures."""
POOLS: tuple[Pool, ...] = get_args(Pool)

_FIELDS: dict[Pool, str] = {
    "cls": "last_hidden_state",
    "mean": "last_hidden_state",
    "pooler": "pooler_output",
    "image-embeds": "image_embeds",
}


class Pooled(nn.Module):
    """`model`, which gives an object of several outputs, as a network that gives one vector for each image."""

    def __init__(self, model: nn.Module, pool: Pool, **settings: Any) -> None:
        super().__init__()
        self.model, self.pool, self.settings = model, pool, settings
        registers = getattr(getattr(model, "config", None), "num_register_tokens", 0)
        self.first = int(_has_class_token(model)) + int(registers)
        """How many tokens stand before those of the picture's patches."""

    def forward(self, images: Tensor) -> Tensor:
        if self.pool == "image-embeds" and hasattr(self.model, "get_image_features"):
            features: Any = self.model.get_image_features
            output = features(pixel_values=images, **self.settings)
            if isinstance(output, Tensor):
                return output
            return pooled(output, "pooler")
        return pooled(self.model(images, **self.settings), self.pool, self.first)


def pooled(output: Any, pool: Pool, first: int = 0) -> Tensor:
    """The vectors in an object of outputs; the first token of patches is number `first`."""
    found = getattr(output, _FIELDS[pool], None)
    if not isinstance(found, Tensor):
        known = [name for name in POOLS if getattr(output, _FIELDS[name], None) is not None]
        raise ModelError(f"the network gives nothing for pool={pool}; it has {', '.join(known) or 'none'}")
    if pool == "cls":
        if found.ndim != 3:
            raise ModelError("the network gives no tokens, so it has no first one; take pool=mean")
        return found[:, 0]
    if pool == "mean":
        return found.mean((2, 3)) if found.ndim == 4 else found[:, first:].mean(1)
    return found.flatten(1)


def usual_pool(model: nn.Module) -> Pool:
    """What the vectors of a network are taken from where nothing else is asked."""
    if hasattr(model, "get_image_features"):
        return "image-embeds"
    return "cls" if _has_class_token(model) else "pooler"


def understood(output: Any) -> bool:
    """Whether `pooled` finds vectors in what a network gave."""
    return any(isinstance(getattr(output, field, None), Tensor) for field in _FIELDS.values())


def _has_class_token(model: nn.Module) -> bool:
    names = (name for name, _ in model.named_parameters())
    return any("cls_token" in name or "class_embedding" in name for name in names)
