"""What an adapter is: one kind of name that a user can give for a model, and how it is opened."""

from __future__ import annotations

import importlib
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from holdfast.errors import MissingExtraError, ModelError
from holdfast.models.callable import CallableEmbedder
from holdfast.models.embedder import Embedder
from holdfast.models.options import Options
from holdfast.spec import ImageSpec


class Adapter(ABC):
    """Opens the models of one kind of name.

    A gallery names the model that made it. `opens_alone` says that such a name is opened without being asked for:
    nothing of it is run, and nothing is downloaded.
    """

    form: ClassVar[str]
    """How its names look, for people."""
    says: ClassVar[str]
    takes: ClassVar[frozenset[str]] = frozenset()
    """The options that it understands."""
    opens_alone: ClassVar[bool] = False
    library: ClassVar[str | None] = None
    """What is imported for it."""
    command: ClassVar[str] = ""
    """How to install that."""

    @abstractmethod
    def claims(self, name: str) -> bool:
        """Whether a name is of this kind."""

    @abstractmethod
    def open(self, name: str, options: Options) -> Embedder | CallableEmbedder:
        """The embedder of that name, in eval mode."""

    def lasting(self, name: str) -> str:
        """The same name from every folder."""
        return name

    def stem(self, name: str) -> str:
        """A name for a folder of results."""
        return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")

    @property
    def installed(self) -> bool:
        """Whether its library is there."""
        if self.library is None:
            return True
        try:
            return find_spec(self.library) is not None
        except ValueError:
            return False

    def imported(self) -> Any:
        """Its library; an error that says how to install it where it is missing."""
        assert self.library is not None
        try:
            return importlib.import_module(self.library)
        except ImportError as cause:
            raise MissingExtraError(f"a model of the form {self.form}", command=self.command) from cause


class LibraryAdapter(Adapter):
    """Models of another library, named `PREFIX:WHAT`.

    They are torch modules, so they can be trained. The card of such a run holds what `rebuild` makes the network of,
    without its weights.
    """

    prefix: ClassVar[str]

    def claims(self, name: str) -> bool:
        return name.startswith(f"{self.prefix}:")

    def what(self, name: str) -> str:
        """The part behind the prefix."""
        found = name.removeprefix(f"{self.prefix}:")
        if not found:
            raise ModelError(f"say which model: {self.form}")
        return found

    def lasting(self, name: str) -> str:
        path = Path(self.what(name)).expanduser()
        return f"{self.prefix}:{path.resolve()}" if path.exists() else name

    @abstractmethod
    def rebuild(self, architecture: Mapping[str, Any], spec: ImageSpec) -> nn.Module:
        """The network of an embedder with this architecture, before it gets its weights."""


def brought(spec: ImageSpec, wanted: ImageSpec | None) -> ImageSpec:
    """`spec` at the size that is asked for: what is resized before the middle is cut out grows with it."""
    if wanted is None or wanted.shape == spec.shape:
        return spec
    if wanted.channels != spec.channels:
        raise ModelError(f"the model takes images of {spec.channels} channels, not {wanted.channels}")
    resize: int | tuple[int, int] | None = None
    if isinstance(spec.resize, int):
        resize = max(round(spec.resize * wanted.height / spec.height), wanted.height, wanted.width)
    elif spec.resize is not None:
        rows, columns = spec.resize
        resize = (
            max(round(rows * wanted.height / spec.height), wanted.height),
            max(round(columns * wanted.width / spec.width), wanted.width),
        )
    return ImageSpec(spec.channels, wanted.height, wanted.width, spec.fit, spec.resample, resize)
