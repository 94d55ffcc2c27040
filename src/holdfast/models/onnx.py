"""ONNX through onnxruntime, an optional part: sessions for files, and a faster forward pass for embedders of ours."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.errors import MissingExtraError, ModelError
from holdfast.models.embedder import Embedder
from holdfast.models.inference import inference


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
    session = session_of(made.getvalue(), "sampling by onnxruntime", None)

    def run(images: Tensor) -> Tensor:
        (vectors,) = session.run(["vectors"], {"images": images.detach().cpu().float().contiguous().numpy()})
        return torch.from_numpy(vectors)

    return run


def session_of(model: str | bytes, what: str, path: Path | None) -> Any:
    """A session for a file or its content; one line where that cannot be."""
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
