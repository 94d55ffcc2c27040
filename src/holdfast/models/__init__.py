"""Embedders: the papers' networks, backbones, any torch module, and checkpoints."""

from __future__ import annotations

from holdfast.models.callable import CallableEmbedder
from holdfast.models.checkpoint import CARD, WEIGHTS, load, save
from holdfast.models.device import device_of, placed
from holdfast.models.embedder import Embedder
from holdfast.models.find import (
    ADAPTERS,
    AnyEmbedder,
    find,
    is_brought,
    lasting,
    opens_alone,
    results_folder,
    with_options_of,
)
from holdfast.models.folded import under_metric
from holdfast.models.inputs import Images, ImageSource, to_unit
from holdfast.models.modes import evaluating, set_batch_norm_eval
from holdfast.models.registry import MODELS, build
from holdfast.models.sides import CandidateSide, ClassCode
from holdfast.models.smoothed import Smoothed
from holdfast.models.wrap import wrap

__all__ = [
    "ADAPTERS",
    "CARD",
    "MODELS",
    "WEIGHTS",
    "AnyEmbedder",
    "CallableEmbedder",
    "CandidateSide",
    "ClassCode",
    "Embedder",
    "ImageSource",
    "Images",
    "Smoothed",
    "build",
    "device_of",
    "evaluating",
    "find",
    "is_brought",
    "lasting",
    "load",
    "opens_alone",
    "placed",
    "results_folder",
    "save",
    "set_batch_norm_eval",
    "to_unit",
    "under_metric",
    "with_options_of",
    "wrap",
]
