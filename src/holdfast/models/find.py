"""An embedder from what a user names: a checkpoint, a name in a Python file, or an ONNX file."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from holdfast.errors import ModelError
from holdfast.files import sha256_file
from holdfast.models.checkpoint import load
from holdfast.models.embedder import Embedder
from holdfast.models.foreign import Foreign
from holdfast.models.onnx import onnx_embedder
from holdfast.models.smoothed import Smoothed
from holdfast.models.wrap import wrap
from holdfast.spec import ImageSpec

AnyEmbedder = Embedder | Foreign | Smoothed


def find(named: str | Path, spec: ImageSpec | None = None) -> AnyEmbedder:
    """The embedder at `named`: a run's folder or checkpoint, FILE.py:NAME, or FILE.onnx.

    In a Python file NAME is an embedder (`holdfast.wrap(module, shape)`), a torch module, or a callable
    from images to vectors; the last two need `spec`. The file is run, as `python FILE.py` would.
    """
    text = str(named)
    path, _, name = text.rpartition(":")
    if path.endswith(".py"):
        return _from_python(Path(path), name, spec)
    if text.endswith(".py"):
        raise ModelError(f"say which name in {text} is the embedder: {text}:NAME")
    if text.endswith(".onnx"):
        return onnx_embedder(Path(text), spec)
    return load(Path(text))


def named_by_file(named: str | Path) -> bool:
    """Whether `named` is a name in a Python file, or an ONNX file: no folder that results could go into."""
    return ".py:" in str(named) or str(named).endswith(".onnx")


def _from_python(path: Path, name: str, spec: ImageSpec | None) -> AnyEmbedder:
    found = _value(path, name)
    if isinstance(found, Embedder):
        return found.eval()
    if isinstance(found, Foreign):
        return found
    if isinstance(found, type) or not callable(found):
        kind = f"the class {found.__name__}" if isinstance(found, type) else f"a {type(found).__name__}"
        raise ModelError(
            f"{name} in {path} is {kind}; name an embedder, a torch module, or a callable from images to vectors"
        )
    if spec is None:
        raise ModelError(
            f"{name} in {path} does not say which images it takes; give their side (and channels)",
            option="image_size",
        )
    if isinstance(found, nn.Module):
        return wrap(found.eval(), spec)
    return Foreign(found, spec, name=name, source=sha256_file(path))


def _value(path: Path, name: str) -> Any:
    if not path.is_file():
        raise ModelError(f"no Python file at {path}")
    module = _run(path)
    if not hasattr(module, name):
        raise ModelError(f"{path} has no name '{name}'")
    return getattr(module, name)


def _run(path: Path) -> ModuleType:
    loader = importlib.util.spec_from_file_location(path.stem, path)
    assert loader is not None
    assert loader.loader is not None
    module = importlib.util.module_from_spec(loader)
    before = list(sys.path)
    # As when it is run by itself, a file may import its neighbours.
    sys.path.insert(0, str(path.resolve().parent))
    try:
        loader.loader.exec_module(module)
    # A stranger's file may raise anything at all.
    except Exception as cause:
        why = str(cause).strip().splitlines() or [type(cause).__name__]
        raise ModelError(f"{path} cannot be run: {type(cause).__name__}: {why[0]}") from cause
    finally:
        sys.path[:] = before
    return module
