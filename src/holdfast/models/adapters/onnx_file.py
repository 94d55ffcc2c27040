"""An ONNX file, through onnxruntime. It gives no gradients, so it meets black-box attacks only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from holdfast.errors import ModelError
from holdfast.files import sha256_file
from holdfast.models.adapters.base import Adapter
from holdfast.models.callable import CallableEmbedder
from holdfast.models.onnx import session_of
from holdfast.models.options import Layout, Options, options
from holdfast.spec import ImageSpec

_METADATA = {
    "size": ("size", "image_size", "imgsz", "input_size"),
    "mean": ("mean", "image_mean"),
    "std": ("std", "image_std"),
    "layout": ("layout",),
    "normalise": ("normalise", "normalize"),
}
"""Under which names exporters write what we ask."""


class OnnxFile(Adapter):
    """The network of a file with one float input, N×C×H×W or N×H×W×C; its first output is the vector.

    Pixels are given in [0, 1]: a normalisation is inside the file, or given as mean and std. What the file's own
    metadata says of size, mean, std and layout counts where nothing is given.
    """

    form = "FILE.onnx"
    says = "an ONNX file; no gradients"
    takes = frozenset({"size", "channels", "mean", "std", "layout", "normalise"})
    library = "onnxruntime"
    command = "pip install 'holdfast[onnx]'"

    def claims(self, name: str) -> bool:
        return name.endswith(".onnx")

    def lasting(self, name: str) -> str:
        return str(Path(name).resolve())

    def stem(self, name: str) -> str:
        return Path(name).stem

    def open(self, name: str, asked: Options) -> CallableEmbedder:
        path = Path(name)
        function = _Function(path)
        inputs = function.session.get_inputs()
        if len(inputs) != 1 or len(inputs[0].shape) != 4 or inputs[0].type != "tensor(float)":
            found = ", ".join(f"{entry.type} of {list(entry.shape)}" for entry in inputs)
            raise ModelError(f"{path} must take one tensor(float) of N x C x H x W, found {found}")
        said = _said(function.session.get_modelmeta().custom_metadata_map)
        asked = replace(said, **asked.given(), spec=asked.spec)
        sides = inputs[0].shape[1:]
        function.layout = asked.layout or _layout(sides)
        if function.layout == "nhwc":
            sides = [sides[2], *sides[:2]]
        return CallableEmbedder(
            function,
            _spec(path, sides, asked.images),
            name=path.name,
            source=sha256_file(path),
            unit_norm=bool(asked.normalise),
            mean=asked.mean,
            std=asked.std,
        )


class _Function:
    """The network of a file; another process gets the file's content and opens it itself."""

    def __init__(self, path: Path) -> None:
        self.path, self.session = path, session_of(str(path), f"the ONNX model {path}", path)
        self.layout: Layout = "nchw"

    def __getstate__(self) -> tuple[Path, bytes, Layout]:
        return self.path, self.path.read_bytes(), self.layout

    def __setstate__(self, state: tuple[Path, bytes, Layout]) -> None:
        self.path, content, self.layout = state
        self.session = session_of(content, f"the ONNX model {self.path}", None)

    def __call__(self, images: Tensor) -> NDArray[Any]:
        entry, output = self.session.get_inputs()[0], self.session.get_outputs()[0].name
        batch = entry.shape[0]
        if self.layout == "nhwc":
            images = images.permute(0, 2, 3, 1)
        pixels = np.ascontiguousarray(images.detach().cpu().numpy(), dtype=np.float32)
        size = batch if isinstance(batch, int) else len(pixels)
        parts = []
        for first in range(0, len(pixels), max(size, 1)):
            part = pixels[first : first + size]
            # A file made for batches of one size gets its last one filled up.
            filled = np.concatenate([part, np.repeat(part[-1:], size - len(part), axis=0)])
            parts.append(self.session.run([output], {entry.name: filled})[0][: len(part)])
        return np.concatenate(parts)


def _said(metadata: Mapping[str, str]) -> Options:
    """What a file says of its images; a size of two numbers counts where both are the same."""
    found: dict[str, str] = {}
    for option, names in _METADATA.items():
        text = next((metadata[name] for name in names if name in metadata), None)
        if text is None:
            continue
        if option == "size":
            sides = {part.strip() for part in text.strip("[]() ").split(",")}
            if len(sides) != 1:
                continue
            text = sides.pop()
        found[option] = text.lower() if option == "layout" else text
    return options(found)


def _layout(sides: Sequence[Any]) -> Layout:
    return "nhwc" if sides[2] in (1, 3) and sides[0] not in (1, 3) else "nchw"


def _spec(path: Path, sides: Sequence[Any], spec: ImageSpec | None) -> ImageSpec:
    if all(isinstance(side, int) for side in sides):
        channels, height, width = sides
        own = ImageSpec(channels, height, width)
        if spec is not None:
            own = replace(own, fit=spec.fit, resample=spec.resample)
        if spec is not None and spec.shape != own.shape:
            raise ModelError(f"{path} takes images of {own}, not {spec}; ask for that size")
        return own
    if spec is None:
        shown = "x".join(str(side) for side in sides)
        raise ModelError(
            f"{path} leaves its image size open ({shown}); say it: {path}?size=224", option="image_size"
        )
    return spec
