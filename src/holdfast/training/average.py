"""The running mean of a network's weights, with which a run can end: it is steadier than the last ones."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


class Average(nn.Module):
    """An exponential mean: after each step `decay` of it and 1 − `decay` of the network's weights.

    Early in a run the mean is over the few steps there were, so that the first weights are soon forgotten. Buffers
    (batch-norm statistics) are those of the last step.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        super().__init__()
        self.decay = decay
        self.mean = copy.deepcopy(network).requires_grad_(False)

    @torch.no_grad()
    def follow(self, network: nn.Module, step: int) -> None:
        """Take in the weights after step number `step`, counted from 1."""
        keep = min(self.decay, step / (step + 9))
        new = [parameter.detach() for parameter in network.parameters()]
        torch._foreach_lerp_([*self.mean.parameters()], new, 1 - keep)
        for mine, now in zip(self.mean.buffers(), network.buffers(), strict=True):
            mine.copy_(now)

    @contextmanager
    def shown(self, network: nn.Module) -> Iterator[None]:
        """The network with the mean of its weights, inside the block."""
        last = {name: value.clone() for name, value in network.state_dict().items()}
        self.give_to(network)
        try:
            yield
        finally:
            network.load_state_dict(last)

    def give_to(self, network: nn.Module) -> None:
        """Put the mean in the place of the network's weights."""
        network.load_state_dict(self.mean.state_dict())
