"""A name in a Python file: `my.py:net`, or `my.py:net@runs/mine` with the weights of a run that trained it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from holdfast.errors import ModelError
from holdfast.files import sha256_file
from holdfast.models.adapters.base import Adapter
from holdfast.models.callable import CallableEmbedder
from holdfast.models.checkpoint import load
from holdfast.models.embedder import Embedder
from holdfast.models.options import Options
from holdfast.models.wrap import embedder_of


class PythonFile(Adapter):
    """An embedder, a torch module, or a callable from images to vectors. The file is run, as `python FILE.py` would."""

    form = "FILE.py:NAME"
    says = "an embedder, torch module or callable of a Python file; the file is run"
    takes = frozenset({"size", "channels", "mean", "std", "normalise", "pool"})

    def claims(self, name: str) -> bool:
        return name.endswith(".py") or ".py:" in name

    def lasting(self, name: str) -> str:
        path, value, run = _parts(name)
        return f"{path.resolve()}:{value}" + (f"@{run.resolve()}" if run else "")

    def stem(self, name: str) -> str:
        path, value, run = _parts(name)
        return f"{path.stem}-{value}" + (f"-{run.name}" if run else "")

    def open(self, name: str, options: Options) -> Embedder | CallableEmbedder:
        path, value, run = _parts(name)
        found = _value(path, value)
        if run is not None:
            module = found.network if isinstance(found, Embedder) else found
            if not isinstance(module, nn.Module):
                raise ModelError(f"{value} in {path} is no torch module, so no run holds weights for it")
            return load(run, module=module)
        if isinstance(found, Embedder):
            return found.eval()
        if isinstance(found, CallableEmbedder):
            return found
        if isinstance(found, type) or not callable(found):
            kind = f"the class {found.__name__}" if isinstance(found, type) else f"a {type(found).__name__}"
            raise ModelError(
                f"{value} in {path} is {kind}; name an embedder, a torch module, or a callable from images to "
                "vectors"
            )
        spec, unit_norm = options.images, bool(options.normalise)
        if spec is None:
            raise ModelError(
                f"{value} in {path} does not say which images it takes; say their size: {name}?size=224",
                option="image_size",
            )
        if isinstance(found, nn.Module):
            return embedder_of(
                found.eval(), spec, mean=options.mean, std=options.std, unit_norm=unit_norm, pool=options.pool
            )
        return CallableEmbedder(
            found,
            spec,
            name=value,
            source=sha256_file(path),
            mean=options.mean,
            std=options.std,
            unit_norm=unit_norm,
        )


def _parts(name: str) -> tuple[Path, str, Path | None]:
    """The file, the name in it, and the run whose weights it gets."""
    file, dot, rest = name.rpartition(".py")
    value, at, run = rest.removeprefix(":").partition("@")
    if not value:
        raise ModelError(f"say which name in {name} is the embedder: {name}:NAME")
    return Path(file + dot), value, Path(run) if at else None


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
