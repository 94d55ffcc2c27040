"""An embedder from what a user names: the one door for all models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from holdfast.errors import CheckpointError, ModelError
from holdfast.models.adapters.base import Adapter
from holdfast.models.adapters.libraries import LIBRARIES
from holdfast.models.adapters.onnx_file import OnnxFile
from holdfast.models.adapters.pretrained import Pretrained, with_weights
from holdfast.models.adapters.python import PythonFile
from holdfast.models.callable import CallableEmbedder
from holdfast.models.checkpoint import load
from holdfast.models.embedder import Embedder
from holdfast.models.options import parted
from holdfast.models.registry import MODELS
from holdfast.models.smoothed import Smoothed
from holdfast.spec import ImageSpec

AnyEmbedder = Embedder | CallableEmbedder | Smoothed

ADAPTERS: tuple[Adapter, ...] = (PythonFile(), OnnxFile(), *LIBRARIES.values(), Pretrained())
"""All kinds of names but a run's folder, which is what any other name is taken for."""


def find(
    named: str | Path, spec: ImageSpec | None = None, *, module: nn.Module | None = None, **options: Any
) -> AnyEmbedder:
    """The embedder that `named` means: a run's folder, a pretrained network, a file, or a model of another library.

    `options` are what such a model does not say itself: size, channels, mean, std, layout, normalise, pool. They can
    stand behind the name: `model.onnx?mean=0.5&std=0.5`. `spec` says which images a model takes that does not say
    it. A run of a wrapped module needs that `module`.
    """
    name, asked = parted(str(named), spec, options)
    adapter = _adapter(name)
    if adapter is None:
        asked.check(name, frozenset())
        return _checkpoint(name, module)
    if module is not None:
        raise ModelError(f"{name} brings its own network; leave module out")
    asked.check(name, adapter.takes)
    found = adapter.open(name, asked)
    found.origin = asked.behind(adapter.lasting(name))
    return found


def is_brought(named: str) -> bool:
    """Whether a name in a training config is a model to go on from: any but a network of ours, which starts anew."""
    name = _bare(named)
    return name not in MODELS and (_adapter(name) is not None or Path(name).exists())


def lasting(named: str | Path) -> str:
    """The same name from every folder."""
    name, asked = parted(str(named), None, {})
    adapter = _adapter(name)
    if adapter is None:
        return str(Path(name).resolve()) if Path(name).exists() else name
    return asked.behind(adapter.lasting(name))


def opens_alone(named: str | Path) -> bool:
    """Whether a gallery may open the model that it names: nothing is run, and nothing is downloaded."""
    adapter = _adapter(_bare(named))
    return adapter is None or adapter.opens_alone


def with_options_of(named: str | Path, before: str | None) -> str:
    """`named` with the options that stand behind the name it had before, if it has none itself."""
    name, same = str(named), before is not None and _adapter(_bare(named)) is _adapter(_bare(before))
    if before is None or not same or _bare(named) != name:
        return name
    return name + before.removeprefix(_bare(before))


def results_folder(named: str | Path) -> Path:
    """Where results about a model go: its run's folder, or runs/NAME for one that is no run."""
    adapter = _adapter(name := _bare(named))
    if adapter is not None:
        return Path("runs") / adapter.stem(name)
    path = Path(name)
    return path if path.is_dir() else path.parent


def _bare(named: str | Path) -> str:
    return parted(str(named), None, {})[0]


def _adapter(name: str) -> Adapter | None:
    return next((adapter for adapter in ADAPTERS if adapter.claims(name)), None)


def _checkpoint(name: str, module: nn.Module | None) -> Embedder:
    path = Path(name)
    if not path.exists() and path.parent == Path():
        raise CheckpointError(
            f"no checkpoint at {name}, and no model of that name; give a run's folder, one of "
            f"{', '.join(with_weights())}, or {', '.join(a.form for a in ADAPTERS[:-1])}"
        )
    return load(path, module=module)
