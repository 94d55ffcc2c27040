"""Train and eval mode, set and put back exactly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """`module` in eval mode inside the block; afterwards every layer has the mode it had before.

    Each layer is put back by itself: `module.train()` would wake a frozen batch-norm layer.
    """
    before = [(layer, layer.training) for layer in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for layer, training in before:
            layer.training = training


def set_batch_norm_eval(module: nn.Module) -> None:
    """Put every batch-norm layer into eval mode: its statistics stay, its scale and shift still learn."""
    for layer in module.modules():
        if isinstance(layer, _BatchNorm):
            layer.eval()
