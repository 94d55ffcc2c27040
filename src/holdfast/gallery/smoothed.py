"""Galleries of smoothed vectors: how an embedder is smoothed, and what a gallery keeps of that."""

from __future__ import annotations

from dataclasses import replace

from holdfast.certify.smoothing import Smoothing
from holdfast.errors import ConfigError
from holdfast.gallery.values import EmbedderInfo
from holdfast.models import AnyEmbedder, Smoothed


def smoothed(base: AnyEmbedder, how: Smoothing) -> Smoothed:
    """`base` as a gallery of smoothed vectors uses it."""
    if isinstance(base, Smoothed):
        raise ConfigError("a smoothed embedder is not smoothed again")
    return Smoothed(base, how.sigma, how.gallery, seed=how.seed, bound=how.bound, backend=how.backend)


def smoothed_info(embedder: AnyEmbedder, info: EmbedderInfo, how: Smoothing) -> EmbedderInfo:
    """What a gallery keeps of a smoothed embedder: also how it is to be searched, unless told otherwise."""
    search = {"n": how.n, "alpha": how.alpha, "first": how.first, "rule": how.rule}
    return replace(info, card={**info.card, "search": search})


def stored_smoothing(info: EmbedderInfo) -> Smoothing | None:
    """How the vectors of a gallery were smoothed and are searched; None where they are plain."""
    noise = info.card.get("smoothed")
    if noise is None:
        return None
    return Smoothing(
        noise["sigma"],
        gallery=noise["samples"],
        seed=noise["seed"],
        bound=noise["bound"],
        backend=noise["backend"],
        **info.card.get("search", {}),
    )
