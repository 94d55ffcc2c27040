"""Certified-rank training: a smooth form of the rank that certificates count (ours)."""

from __future__ import annotations

from typing import Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor, nn

from holdfast.bounds import Box, distance_bounds
from holdfast.bounds.interval import before_kinks
from holdfast.errors import ConfigError
from holdfast.training.adversary import Search
from holdfast.training.batch_norm import learns_statistics
from holdfast.training.defences.base import Batch, Moment, Terms
from holdfast.training.defences.bounded import Bounded, BoundedOptions
from holdfast.training.defences.certified_margin import spread
from holdfast.training.defences.regularisers import balance, tightness
from holdfast.training.losses import distances
from holdfast.training.samplers import Sampler, Shuffled, SpreadGroups

LEAST = 4
"""Images of a batch that stay as they are, at least."""
PARTNERS = 4
"""Images of a class that a batch should hold."""


class CertifiedRankOptions(BoundedOptions):
    """The first `boxes` images of a batch are attacked; the rest stay as they are."""

    name: Literal["certified-rank"] = "certified-rank"
    boxes: int | None = Field(default=None, ge=4)
    """None: 80, or four fifths of a batch that is too small for that."""
    small_eps: float = Field(default=0.5, ge=0, le=1)
    """After the ramp a batch uses this share of eps …"""
    small_share: float = Field(default=0.4, ge=0, le=1)
    """… with this probability, else eps itself."""
    temperature: float = Field(default=0.01, gt=0)
    first_temperature: float = Field(default=0.1, gt=0)
    nearer: float = Field(default=0.75, gt=0, le=1)
    """β: how near the nearest right candidate of a gallery is, seen from that of a batch."""
    offset: float = Field(default=0.05, gt=0)
    others: float = Field(default=0.1, ge=0, le=1)
    """Weight of the count over other-class candidates alone."""
    clean: float = Field(default=0.3, ge=0)
    """Weight of the count, without an attack, of other-class items nearer than the nearest right one."""
    attacked: float = Field(default=0.0, ge=0, le=1)
    """Share of the loss that is of attacked images instead of boxes: 1 − α of MTL-IBP (De Palma et al. 2024)."""
    box_share: float = Field(default=1.0, gt=0, le=1)
    """Below 1: boxes of this share of eps around attacked images that stay within eps (SABR; Müller et al. 2023)."""
    attack_steps: int = Field(default=8, ge=1)
    """Signed steps of the search for attacked images, each of a quarter of its eps."""
    regularise: float = Field(default=0.0, ge=0)
    """Weight of the regularisers of Shi et al. (2021) as the ramp begins; it falls to 0 at the ramp's end."""

    @model_validator(mode="after")
    def _one_mixture(self) -> Self:
        if self.attacked and self.box_share < 1:
            raise ValueError("attacked and box_share are two ways to mix attacks in; give one of them")
        return self

    @property
    def searches(self) -> bool:
        """Whether a step looks for attacked images."""
        return bool(self.attacked) or self.box_share < 1


class CertifiedRank(Bounded):
    """Mean of log(δ + n), n the smooth number of candidates not surely behind the nearest right one.

    Between boxes and plain embeddings, Eq. 17 and 18 give matrices of upper and lower distances; a
    row is a query attack, a column a candidate attack, so one matrix serves both. For each, c* is
    the same-class item with the smallest upper distance, ref = ‖r‖ + β(upper(c*) − ‖r‖), and
    n = Σ over c ≠ c* of sigmoid((ref − lower(c)) / (T·s)), with s the spread of the embeddings, so that the
    loss does not see their scale.
    """

    Options = CertifiedRankOptions
    options: CertifiedRankOptions

    def __init__(self, options: CertifiedRankOptions, classes: int) -> None:
        super().__init__()
        self.options = options

    def sampler(self, labels: NDArray[np.int64], batch: int, seed: int) -> Sampler:
        """Plain batches, unless there are so many classes that most images would find no partner in them."""
        boxes = self._boxes(batch)
        plain = batch - boxes
        if plain < LEAST:
            larger = boxes + LEAST if self.options.boxes else 5 * (LEAST - 1) + 1
            raise ConfigError(
                f"a batch of {batch} leaves {max(0, plain)} images beside defence.boxes = {boxes}, and certified-rank "
                f"needs {LEAST}; set train.batch to {larger} or more"
                + (", or defence.boxes to fewer" if self.options.boxes else "")
            )
        if plain >= PARTNERS * len(np.unique(labels)):
            return Shuffled(len(labels), batch, seed)
        return SpreadGroups(labels, batch, PARTNERS, seed)

    def gradients(self, batch: int) -> float:
        """Those of the search for attacked images come on top, once eps is above 0."""
        o = self.options
        searched = self._boxes(batch) * (o.attack_steps + bool(o.attacked)) if o.searches else 0
        return batch + searched * (1 - o.ramp_start)

    def _boxes(self, batch: int) -> int:
        """How many images of a batch are attacked."""
        return min(80, batch * 4 // 5) if self.options.boxes is None else self.options.boxes

    def terms(self, embedder: nn.Module, batch: Batch, at: Moment) -> Terms:
        o, boxes = self.options, self._boxes(len(batch.images))
        eps = self.ramped_eps(at)
        if at.done >= o.ramp_end and torch.rand(()).item() < o.small_share:
            eps = o.eps * o.small_eps
        temperature = self.ramped(at, o.first_temperature, o.temperature)
        images, others, labels = batch.images[:boxes], batch.images[boxes:], batch.labels
        same = labels[:boxes, None] == labels[None, boxes:]
        # The clean pass comes last where nothing waits for it: sums of gradients keep the order of runs of before.
        first = self.embed(embedder, others) if o.searches or learns_statistics(embedder) else None
        around, reach, moved = images, eps, None
        if first is not None and eps and o.searches:
            reach = eps if o.attacked else eps * o.box_share
            within = eps if o.attacked else eps - reach
            moved = self._moved(embedder, images, first.detach(), same, within)
            around = images if o.attacked else moved
        layers = self.boxes(embedder, around, reach)
        plain = self.embed(embedder, others) if first is None else first
        box = layers[-1]
        # An unclipped box is centred at the image, but its features are not at the image's features.
        scale = spread(torch.cat([box.centre, plain]))
        width = temperature * scale
        ranks = self._log_ranks(box, plain, same, width)
        logs = {"eps": eps, "temperature": temperature, "scale": scale.item()}
        logs["radius"] = box.radius.norm(dim=1).mean().item()
        if o.attacked and moved is not None:
            vectors = self.embed_perturbed(embedder, moved)
            hit = self._log_ranks(Box(vectors, torch.zeros_like(vectors)), plain, same, width)
            logs["attacked"] = hit.item()
            ranks = (1 - o.attacked) * ranks + o.attacked * hit
        loss = ranks + 0.01 * scale.log().square()
        if o.clean:
            own = (labels[boxes:, None] == labels[None, boxes:]).fill_diagonal_(False)
            loss = loss + o.clean * self._log_ahead(distances(plain), own, width)
        if o.regularise and eps and at.done < o.ramp_end:
            before = before_kinks(self.graph(embedder), layers)
            extra = tightness(layers[0], before) + balance(before)
            logs["regularisers"] = extra.item()
            loss = loss + o.regularise * (1 - eps / o.eps) * extra
        return Terms(loss, plain, logs, labels[boxes:])

    def _moved(self, embedder: nn.Module, images: Tensor, plain: Tensor, same: Tensor, eps: float) -> Tensor:
        """The images, moved away from the nearest right item of the batch and towards the nearest wrong one."""
        both = same.any(1) & (~same).any(1)

        def goal(vectors: Tensor) -> Tensor:
            distance = torch.cdist(vectors, plain)
            right = torch.where(same, distance, torch.inf).amin(1)
            wrong = torch.where(same, torch.inf, distance).amin(1)
            return (wrong - right)[both].sum()

        search = Search(eps, self.options.attack_steps, eps / 4, jitter=1.0, early_stop=False)
        return self.perturbed(embedder, images, goal, search)

    def _log_ranks(self, box: Box, plain: Tensor, same: Tensor, width: Tensor) -> Tensor:
        """The mean over query attacks (rows) and candidate attacks (columns) of one matrix of distances."""
        upper, lower = distance_bounds(box, plain)
        size = box.radius.norm(dim=1)
        query = self._log_rank(upper, lower, same, size[:, None].expand_as(upper), width)
        candidate = self._log_rank(upper.T, lower.T, same.T, size[None].expand_as(upper.T), width)
        return 0.5 * (query + candidate)

    def _log_ahead(self, distance: Tensor, same: Tensor, width: Tensor) -> Tensor:
        """Mean log of δ + the smooth number of other-class items nearer than the nearest same-class one."""
        best = torch.where(same, distance, torch.inf).amin(1)
        has = torch.isfinite(best)
        ahead = torch.sigmoid((torch.where(has, best, 0.0)[:, None] - distance) / width)
        # Only the other class counts, so an image's zero distance to itself does not.
        other = ~same & ~torch.eye(len(same), dtype=torch.bool)
        value = (self.options.offset + torch.where(other, ahead, 0.0).sum(1)).log()
        return value[has].sum() / has.sum().clamp(min=1)

    def _log_rank(self, upper: Tensor, lower: Tensor, same: Tensor, size: Tensor, width: Tensor) -> Tensor:
        """Mean over rows that have a same-class item; `size` is ‖r‖ of the box in each pair."""
        o = self.options
        far = torch.where(same, upper, torch.inf)
        best, where = far.min(1)
        has = same.any(1)
        r = size.gather(1, where[:, None]).squeeze(1)
        ref = (r + o.nearer * (torch.where(has, best, 0.0) - r))[:, None]
        ahead = torch.sigmoid((ref - lower) / width)
        ahead = ahead.scatter(1, where[:, None], 0.0)
        every = (o.offset + ahead.sum(1)).log()
        other = (o.offset + torch.where(same, 0.0, ahead).sum(1)).log()
        value = (1 - o.others) * every + o.others * other
        return value[has].sum() / has.sum().clamp(min=1)
