"""Train and eval mode, set and put back exactly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from weakref import WeakKeyDictionary

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

_LOCK = Lock()
_HELD: WeakKeyDictionary[nn.Module, tuple[int, bool]] = WeakKeyDictionary()
"""How many blocks hold a layer in eval mode, and the mode it had before the first."""


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """`module` in eval mode inside the block; afterwards every layer has the mode it had before.

    Each layer is put back by itself: `module.train()` would wake a frozen batch-norm layer. Where blocks of several
    threads overlap, the last one puts back: none finds its network in train mode before it is done.
    """
    with _LOCK:
        layers = list(module.modules())
        for layer in layers:
            count, before = _HELD.get(layer, (0, layer.training))
            _HELD[layer] = (count + 1, before)
        module.eval()
    try:
        yield
    finally:
        with _LOCK:
            for layer in layers:
                count, before = _HELD.pop(layer)
                if count > 1:
                    _HELD[layer] = (count - 1, before)
                else:
                    layer.training = before


def set_batch_norm_eval(module: nn.Module) -> None:
    """Put every batch-norm layer into eval mode: its statistics stay, its scale and shift still learn."""
    for layer in module.modules():
        if isinstance(layer, _BatchNorm):
            layer.eval()
