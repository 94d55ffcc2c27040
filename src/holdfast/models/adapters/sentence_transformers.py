"""Picture models of `sentence-transformers`: `st:clip-ViT-B-32`. Written against its documented interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from holdfast.errors import ModelError
from holdfast.models.adapters.base import LibraryAdapter
from holdfast.models.adapters.hugging_face import HuggingFace, embedder_from
from holdfast.models.embedder import Embedder
from holdfast.models.options import Options
from holdfast.spec import ImageSpec


class SentenceTransformers(LibraryAdapter):
    """The model of transformers inside, which a run that trains it needs alone."""

    prefix = "st"
    form = "st:FOLDER or st:NAME"
    says = "a picture model of sentence-transformers"
    takes = HuggingFace.takes
    library = "sentence_transformers"
    command = "pip install --no-deps sentence-transformers"

    def open(self, name: str, options: Options) -> Embedder:
        found = self.imported().SentenceTransformer(self.what(name), device="cpu")
        first = found[0]
        model = getattr(first, "model", None) or getattr(first, "auto_model", None)
        processor = getattr(first, "processor", None)
        images = getattr(processor, "image_processor", processor)
        if not isinstance(model, nn.Module) or images is None:
            raise ModelError(f"{name} does not embed pictures; name a model such as st:clip-ViT-B-32")
        return embedder_from(model, images.to_dict(), options, name=name)

    def rebuild(self, architecture: Mapping[str, Any], spec: ImageSpec) -> nn.Module:
        return HuggingFace().rebuild(architecture, spec)
