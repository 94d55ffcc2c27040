"""Batch norm in a step that also bounds: every pass of it normalises as the pass over the clean images did.

The statistics of a batch make every output a function of all images, which no bound of one image follows. Shi et al.
(2021) take those of the clean images for the bounds too, with gradients through them: a bound is then of one function
of one image, and the running statistics, by which the network is certified later, are of clean images alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from holdfast.bounds.operations import BatchNorm, Statistics
from holdfast.errors import ModelError


@contextmanager
def recorded(module: nn.Module) -> Iterator[dict[nn.Module, Statistics]]:
    """The statistics, with gradients, by which batch norm in train mode normalises one pass inside the block."""
    found: dict[nn.Module, Statistics] = {}

    def note(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        if layer in found:
            raise ModelError(
                "a batch-norm layer is used twice in one pass, and bounds need one mean and one variance of it; "
                "give each place a layer of its own"
            )
        (x,) = inputs
        axes = [axis for axis in range(x.ndim) if axis != 1]
        mean = x.mean(axes, keepdim=True)
        # Five times as fast as torch.var_mean.
        found[layer] = mean.flatten(), (x - mean).square().mean(axes)

    hooks = [layer.register_forward_pre_hook(note) for layer in _learning(module)]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def held(statistics: Mapping[nn.Module, Statistics], *, detached: bool = False) -> Iterator[None]:
    """Inside the block these layers normalise by these statistics, whatever they see, and learn none of it."""
    for layer, values in statistics.items():
        mean, variance = (value.detach() if detached else value for value in values)
        layer.forward = BatchNorm(layer, (mean, variance)).apply  # type: ignore[arg-type]
    try:
        yield
    finally:
        for layer in statistics:
            del layer.forward


def learns_statistics(module: nn.Module) -> bool:
    """Whether batch norm of the network takes its statistics from batches now."""
    return bool(_learning(module))


def _learning(module: nn.Module) -> list[nn.Module]:
    return [part for part in module.modules() if isinstance(part, _BatchNorm) and part.training]
