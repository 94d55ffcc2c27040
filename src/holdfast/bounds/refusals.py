"""What bounds refuse, in one line that names it and what to use instead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.errors import ModelError

_MODULES = {
    "conv2d": "Conv2d",
    "linear": "Linear",
    "batch_norm": "BatchNorm2d",
    "leaky_relu": "LeakyReLU",
    "relu6": "ReLU6",
    "hardtanh": "Hardtanh",
    "elu": "ELU",
    "selu": "SELU",
    "celu": "CELU",
    "softplus": "Softplus",
    "softsign": "Softsign",
    "hardsigmoid": "Hardsigmoid",
    "logsigmoid": "LogSigmoid",
    "log_sigmoid": "LogSigmoid",
    "pad": "ZeroPad2d",
    "dropout": "Dropout",
    "dropout2d": "Dropout2d",
}
"""Functions that bounds do not know, and the layers that they do."""


def unsupported(what: str, where: str) -> ModelError:
    """An operation that is not known; for a function whose layer is known, that layer."""
    instead = (
        f"they know the layer torch.nn.{_MODULES[what]}: make it a part of the network and call that"
        if what in _MODULES
        else "use another layer there"
    )
    return ModelError(f"bounds do not know the operation {what} (at '{where}'); {instead}")


@contextmanager
def passing(name: str) -> Iterator[None]:
    """What torch refuses while bounds pass the step `name` (shapes that do not fit, for example), in one line."""
    try:
        yield
    except RuntimeError as cause:
        why = str(cause).strip().splitlines() or [type(cause).__name__]
        raise ModelError(f"bounds cannot pass '{name}': {why[0]}") from cause
