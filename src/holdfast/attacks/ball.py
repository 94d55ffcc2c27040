"""The images a threat allows: a norm ball around each clean image, inside the image domain."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.bounds.box import PIXEL_ROUNDING
from holdfast.errors import ConfigError, HoldfastError
from holdfast.threat import Norm, Threat

_NEWTON = 20


@dataclass(frozen=True)
class Ball:
    """Every image within `eps` of its clean one in `norm`, each pixel between `low` and `high`.

    The first axis is the image. A pixel may be off by `PIXEL_ROUNDING`, the rounding of x ± eps in
    float32, which certificates cover too; in ℓ2 that is √pixels times as much.
    """

    clean: Tensor
    norm: Norm
    eps: float
    low: float = 0.0
    high: float = 1.0

    @classmethod
    def of(cls, threat: Threat, clean: Tensor) -> Ball:
        """The images that `threat` allows in place of `clean` ones."""
        if threat.eps is None:
            raise ConfigError(f"an attack needs a number for eps, not {threat}; 'auto' is for certificates")
        widest = math.sqrt(clean[0].numel()) if len(clean) else math.inf
        if threat.norm == "l2" and threat.eps > widest:
            raise ConfigError(
                f"{threat} allows more than the whole image domain, whose diagonal is {widest:.4g}; lower eps"
            )
        return cls(clean, threat.norm, threat.eps)

    def project(self, images: Tensor) -> Tensor:
        """The nearest allowed images. In ℓ2 this is the exact projection on ball and domain together.

        The nearest point is clean + t·(image − clean), cut off at the domain, for the largest t ≤ 1
        that stays in the ball. Each round solves for t with the pixels known to be cut off, so t
        rises to the answer from below and every round's image is allowed.
        """
        if self.norm == "linf":
            lower = (self.clean - self.eps).clamp_(min=self.low)
            upper = (self.clean + self.eps).clamp_(max=self.high)
            return torch.minimum(torch.maximum(images, lower), upper)
        delta = images - self.clean
        cut = (self.clean + delta).clamp_(self.low, self.high) - self.clean
        flat, edge = delta.flatten(1), cut.flatten(1)
        share = torch.where(flat != 0, edge / flat, 1.0)
        t = torch.zeros_like(flat[:, :1])
        inside = edge.norm(dim=1, keepdim=True) <= self.eps
        for _ in range(_NEWTON):
            free = share > t
            spent = edge.square().masked_fill(free, 0).sum(1, keepdim=True)
            length = flat.square().masked_fill(~free, 0).sum(1, keepdim=True)
            rise = ((self.eps**2 - spent).clamp_(min=0) / length.clamp(min=1e-30)).sqrt_()
            rise = torch.maximum(t, rise.masked_fill(length == 0, 0))
            if bool((rise <= t)[~inside].all()):
                break
            t = rise
        t = torch.where(inside, 1.0, t.clamp(max=1))
        t = t.view(-1, *[1] * (images.ndim - 1))
        return (self.clean + t * delta).clamp_(self.low, self.high)

    def steepest(self, gradient: Tensor) -> Tensor:
        """The direction of unit norm along which a function with this gradient rises fastest."""
        if self.norm == "linf":
            return gradient.sign()
        length: Tensor = gradient.flatten(1).norm(dim=1).clamp_(min=1e-30)
        return gradient / length.view(-1, *[1] * (gradient.ndim - 1))

    def random(self, generators: list[torch.Generator], size: float = 1.0) -> Tensor:
        """Images drawn evenly from the ball of `size`·eps, then projected; one generator for each image."""
        shape = self.clean.shape[1:]
        reach = size * self.eps
        drawn = []
        for source in generators:
            if self.norm == "linf":
                drawn.append(reach * (2 * torch.rand(shape, generator=source) - 1))
                continue
            way = torch.randn(shape, generator=source)
            radius = torch.rand((), generator=source) ** (1 / way.numel())
            drawn.append(reach * radius * way / way.norm())
        return self.project(self.clean + torch.stack(drawn).to(self.clean))

    def excess(self, images: Tensor) -> Tensor:
        """By how much each image is outside the threat, beyond rounding; 0 or less: allowed."""
        delta = (images.double() - self.clean.double()).flatten(1)
        over = delta.abs().amax(1) if self.norm == "linf" else delta.norm(dim=1)
        room = PIXEL_ROUNDING * (1 if self.norm == "linf" else math.sqrt(delta.shape[1]))
        pixels = images.double().flatten(1)
        outside = torch.maximum(self.low - pixels.amin(1), pixels.amax(1) - self.high)
        return torch.maximum(over - self.eps - room, outside)

    def check(self, images: Tensor) -> Tensor:
        """The images as they are, every one of them allowed; anything else is a mistake of ours."""
        excess = self.excess(images)
        # Written so that NaN, for which every comparison is false, is refused too.
        if not bool((excess <= 0).all()):
            where = int((~(excess <= 0)).to(torch.uint8).argmax())
            raise HoldfastError(
                f"altered image {where} left its threat {self.norm}:{self.eps:g} by {float(excess[where]):.2g}; "
                "please report this"
            )
        return images
