"""ONNX files as embedders, through onnxruntime (an optional part): no gradients, so black-box attacks only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from holdfast.errors import MissingExtraError, ModelError
from holdfast.files import sha256_file
from holdfast.models.foreign import Foreign
from holdfast.spec import ImageSpec


def onnx_embedder(path: Path, spec: ImageSpec | None = None, *, unit_norm: bool = False) -> Foreign:
    """The network of an ONNX file with one N×C×H×W float input; its first output is the vector.

    Pixels are given in [0, 1]: a normalisation must be inside the file. `spec` is needed where the
    file leaves height and width open, and must be that of the file where it does not.
    """
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtraError(f"the ONNX model {path}", "onnx") from None
    if not path.is_file():
        raise ModelError(f"no ONNX file at {path}")
    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    # onnxruntime has an error class of its own for each kind of damage.
    except Exception as cause:
        why = str(cause).strip().splitlines() or [type(cause).__name__]
        raise ModelError(f"{path} cannot be read by onnxruntime: {why[0]}") from cause
    inputs = session.get_inputs()
    if len(inputs) != 1 or len(inputs[0].shape) != 4 or inputs[0].type != "tensor(float)":
        found = ", ".join(f"{entry.type} of {list(entry.shape)}" for entry in inputs)
        raise ModelError(f"{path} must take one tensor(float) of N x C x H x W, found {found}")
    batch, *sides = inputs[0].shape
    name, output = inputs[0].name, session.get_outputs()[0].name

    def run(images: Tensor) -> NDArray[Any]:
        pixels = np.ascontiguousarray(images.detach().cpu().numpy(), dtype=np.float32)
        size = batch if isinstance(batch, int) else len(pixels)
        parts = []
        for first in range(0, len(pixels), max(size, 1)):
            part = pixels[first : first + size]
            # A file made for batches of one size gets its last one filled up.
            filled = np.concatenate([part, np.repeat(part[-1:], size - len(part), axis=0)])
            parts.append(session.run([output], {name: filled})[0][: len(part)])
        return np.concatenate(parts)

    return Foreign(
        run, _spec(path, sides, spec), name=path.name, source=sha256_file(path), unit_norm=unit_norm
    )


def _spec(path: Path, sides: list[Any], spec: ImageSpec | None) -> ImageSpec:
    known = all(isinstance(side, int) for side in sides)
    if known:
        channels, height, width = sides
        own = ImageSpec(channels, height, width, spec.fit if spec else "crop")
        if spec is not None and spec.shape != own.shape:
            raise ModelError(f"{path} takes images of {own}, not {spec}; leave the size out")
        return own
    if spec is None:
        shown = "x".join(str(side) for side in sides)
        raise ModelError(f"{path} leaves its image size open ({shown}); give it with --image-size")
    return spec
