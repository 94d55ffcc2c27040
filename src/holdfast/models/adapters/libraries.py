"""The libraries whose models can be opened, and rebuilt from the card of a run that trained one."""

from __future__ import annotations

from holdfast.models.adapters.base import LibraryAdapter
from holdfast.models.adapters.hugging_face import HuggingFace
from holdfast.models.adapters.open_clip import OpenClip
from holdfast.models.adapters.sentence_transformers import SentenceTransformers
from holdfast.models.adapters.timm import Timm

LIBRARIES: dict[str, LibraryAdapter] = {
    one.prefix: one for one in (HuggingFace(), Timm(), OpenClip(), SentenceTransformers())
}
