"""ONNX through onnxruntime, an optional part: files as embedders, and a faster forward pass for embedders of ours.

It gives no gradients, so files meet black-box attacks only.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.errors import MissingExtraError, ModelError
from holdfast.files import sha256_file
from holdfast.models.embedder import Embedder
from holdfast.models.foreign import Foreign
from holdfast.models.inference import inference
from holdfast.spec import ImageSpec


def onnx_embedder(path: Path, spec: ImageSpec | None = None, *, unit_norm: bool = False) -> Foreign:
    """The network of an ONNX file with one N×C×H×W float input; its first output is the vector.

    Pixels are given in [0, 1]: a normalisation must be inside the file. `spec` is needed where the
    file leaves height and width open, and must be that of the file where it does not.
    """
    function = _Function(path)
    session = function.session
    inputs = session.get_inputs()
    if len(inputs) != 1 or len(inputs[0].shape) != 4 or inputs[0].type != "tensor(float)":
        found = ", ".join(f"{entry.type} of {list(entry.shape)}" for entry in inputs)
        raise ModelError(f"{path} must take one tensor(float) of N x C x H x W, found {found}")
    _, *sides = inputs[0].shape
    return Foreign(
        function, _spec(path, sides, spec), name=path.name, source=sha256_file(path), unit_norm=unit_norm
    )


class _Function:
    """The network of a file; another process gets the file's content and opens it itself."""

    def __init__(self, path: Path) -> None:
        self.path, self.session = path, _session(str(path), f"the ONNX model {path}", path)

    def __getstate__(self) -> tuple[Path, bytes]:
        return self.path, self.path.read_bytes()

    def __setstate__(self, state: tuple[Path, bytes]) -> None:
        self.path, content = state
        self.session = _session(content, f"the ONNX model {self.path}", None)

    def __call__(self, images: Tensor) -> NDArray[Any]:
        entry, output = self.session.get_inputs()[0], self.session.get_outputs()[0].name
        batch = entry.shape[0]
        pixels = np.ascontiguousarray(images.detach().cpu().numpy(), dtype=np.float32)
        size = batch if isinstance(batch, int) else len(pixels)
        parts = []
        for first in range(0, len(pixels), max(size, 1)):
            part = pixels[first : first + size]
            # A file made for batches of one size gets its last one filled up.
            filled = np.concatenate([part, np.repeat(part[-1:], size - len(part), axis=0)])
            parts.append(self.session.run([output], {entry.name: filled})[0][: len(part)])
        return np.concatenate(parts)


def compiled(embedder: Embedder) -> Callable[[Tensor], Tensor]:
    """The embedder's forward pass by onnxruntime: the same function but for rounding, often several times as fast.

    It is a copy: weights that change later do not reach it.
    """
    made = io.BytesIO()
    example = torch.zeros(2, *embedder.spec.shape)
    try:
        import onnx as _  # noqa: F401  The exporter needs it.
    except ImportError:
        raise MissingExtraError("sampling by onnxruntime", "onnx") from None
    with inference(embedder), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(
                embedder,
                (example,),
                made,  # type: ignore[arg-type]  # A file-like object is fine; the stub says otherwise.
                dynamo=False,
                input_names=["images"],
                output_names=["vectors"],
                dynamic_axes={"images": {0: "n"}, "vectors": {0: "n"}},
            )
        # The exporter has errors of many kinds for what ONNX cannot say.
        except Exception as cause:
            why = str(cause).strip().splitlines() or [type(cause).__name__]
            raise ModelError(f"the network cannot be written as ONNX: {why[0]}; sample by torch") from cause
    session = _session(made.getvalue(), "sampling by onnxruntime", None)

    def run(images: Tensor) -> Tensor:
        (vectors,) = session.run(["vectors"], {"images": images.detach().cpu().float().contiguous().numpy()})
        return torch.from_numpy(vectors)

    return run


def _session(model: str | bytes, what: str, path: Path | None) -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtraError(what, "onnx") from None
    if path is not None and not path.is_file():
        raise ModelError(f"no ONNX file at {path}")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    # onnxruntime has an error class of its own for each kind of damage.
    except Exception as cause:
        why = str(cause).strip().splitlines() or [type(cause).__name__]
        raise ModelError(f"{path or what} cannot be read by onnxruntime: {why[0]}") from cause


def _spec(path: Path, sides: list[Any], spec: ImageSpec | None) -> ImageSpec:
    known = all(isinstance(side, int) for side in sides)
    if known:
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
            f"{path} leaves its image size open ({shown}); give the images' side", option="image_size"
        )
    return spec
