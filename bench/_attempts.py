"""Attempts against certified claims: every altered image goes through float32 inference, every claim is checked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from _scenes import Scene
from holdfast.certify import RankBounds, nearest
from holdfast.certify.certifier import Certifier
from holdfast.methods import METHODS
from holdfast.models import evaluating
from holdfast.models.inference import inference
from holdfast.threat import Threat

HITS = 6
STEPS = 10
BATCH = 400
FORMS = 300
TRIED = 10
SHARES = {"query": 0.5, "candidates": 0.2, "candidates:m": 0.15, "both": 0.15}
"""Of the attempts of a scene, by threat."""


@dataclass(frozen=True)
class Claims:
    """What is certified for the hits of each query, by one method."""

    ranks: RankBounds
    ahead: Tensor

    def broken(self, query: int, distance: Tensor, hits: Tensor, same: Tensor) -> Tensor:
        """Which attempts (rows of distances to the candidates) leave a rank interval or lose a certified hit."""
        own = distance[:, hits[query]]
        worst = (distance[:, None] <= own[:, :, None]).sum(2)
        best = 1 + (distance[:, None] < own[:, :, None]).sum(2)
        out = (worst > self.ranks.worst[query]).any(1) | (best < self.ranks.best[query]).any(1)
        first = torch.where(same[query], distance, torch.inf).amin(1, keepdim=True)
        return out | ((~same[query] & (distance <= first)).sum(1) > self.ahead[query])


@dataclass
class Tally:
    """How many attempts were made and how many broke a claim; how many of the comparisons were claimed."""

    attempts: int = 0
    violations: int = 0
    claimed: int = 0
    comparisons: int = 0

    def add(self, other: Tally) -> None:
        self.attempts += other.attempts
        self.violations += other.violations
        self.claimed += other.claimed
        self.comparisons += other.comparisons


def try_scene(scene: Scene, attempts: int, seed: int) -> dict[str, Tally]:
    """Spend that many attempts on a scene, under every threat, each checked against every method's claims."""
    torch.manual_seed(seed)
    reach, found = _Reach(scene), {}
    for name, share in SHARES.items():
        most = ":m=3" if name == "candidates:m" else ""
        threat = Threat.parse(f"{name.removesuffix(':m')}:linf:{scene.eps}{most}")
        found[name] = _Trial(scene, threat, reach).run(round(attempts * share))
    return found


@contextmanager
def switched(number: int) -> Iterator[None]:
    """One of the settings by which a caller could make products less exact; inference must not be moved by it."""
    before = torch.get_float32_matmul_precision()
    try:
        if number % 4 == 1:
            torch.set_float32_matmul_precision("medium")
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=number % 4 == 2):
            torch.set_flush_denormal(number % 4 == 3)
            yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_float32_matmul_precision(before)


class _Reach:
    """What the images of a scene can be made to look like."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.embedder, self.switches = scene, scene.embedder, 0
        self.vectors, self.clean = self.embed(scene.pool), self.embed(scene.queries)
        self.queries = self.variants(scene.queries, self.vectors)
        self.pool = self.variants(scene.pool, self.clean)

    def variants(self, images: Tensor, targets: Tensor) -> Tensor:
        """Embeddings of altered forms of each image: images × forms × dimensions."""
        parts = [self.embed(x) for x in self.altered(images, targets, FORMS)]
        return torch.cat(parts).transpose(0, 1)

    def altered(self, images: Tensor, targets: Tensor, count: int) -> Iterator[Tensor]:
        """Forms of each image in its box, forms × images: points, corners, every step of ascents and descents.

        They climb the squared distance to one of `targets`, or its lead over that to another vector.
        """
        low, high = images - self.scene.eps, images + self.scene.eps
        if self.scene.clip:
            low, high = low.clamp(min=0), high.clamp(max=1)
        others = torch.cat([self.vectors, targets])
        while count > 0:
            size = min(BATCH, -(-count // 4))
            place = torch.rand(size, *images.shape)
            place = torch.where(torch.rand(size, len(images), 1, 1, 1) < 0.5, place.round(), place)
            x = torch.minimum(torch.maximum(low + (high - low) * place, low), high)
            yield x
            count -= size
            x = x[torch.randint(len(x), (min(BATCH, -(-count // STEPS)),))]
            rows = x.shape[:2]
            away = targets[torch.randint(len(targets), rows)].float()
            towards = others[torch.randint(len(others), rows)].float()
            weight, sign = torch.randint(0, 2, rows), torch.randint(0, 2, rows) * 2 - 1
            step = self.scene.eps * torch.tensor([0.1, 0.5, 2.0])[torch.randint(3, (*rows, 1, 1, 1))]
            for _ in range(STEPS if count > 0 else 0):
                x = x.detach().requires_grad_(True)
                with evaluating(self.embedder):
                    z = self.embedder(x.flatten(0, 1)).unflatten(0, rows)
                    gain = (z - away).square().sum(2) - weight * (z - towards).square().sum(2)
                    (gradient,) = torch.autograd.grad((sign * gain).sum(), x)
                x = torch.minimum(torch.maximum(x.detach() + step * gradient.sign(), low), high)
                yield x[:count]
                count -= min(len(x), count)
                if count == 0:
                    return

    def embed(self, images: Tensor) -> Tensor:
        """Float32 inference, as it is deployed, inside whatever a caller has switched on.

        Images outside [0, 1], which `embed` refuses, are part of an unclipped box.
        """
        flat = images.flatten(0, -4)
        with switched(self.switches):
            self.switches += 1
            if self.scene.clip:
                vectors = self.embedder.embed(flat.clamp(0, 1)).double()
            else:
                with inference(self.embedder):
                    vectors = self.embedder(flat).double()
        return vectors.view(*images.shape[:-3], -1)


class _Trial:
    """One scene under one threat."""

    def __init__(self, scene: Scene, threat: Threat, reach: _Reach) -> None:
        self.scene, self.threat, self.reach = scene, threat, reach
        self.hits = nearest(reach.clean, reach.vectors, HITS)
        certifier = Certifier(scene.embedder, clip=scene.clip)
        methods = {"query": tuple(METHODS), "candidates": ("interval",), "both": ("paper", "interval")}[
            threat.who
        ]
        self.claims = []
        for method in methods:
            if method != "last-layer" or certifier.split is not None:
                attack = certifier.alteration(threat, scene.queries, scene.pool, reach.vectors, method=method)
                self.claims.append(Claims(attack.ranks(self.hits), attack.unbeaten(scene.same)))

    def run(self, attempts: int) -> Tally:
        tally = Tally()
        for claims in self.claims:
            open_ = (claims.ranks.worst - claims.ranks.best).sum().item()
            tally.comparisons += self.hits.numel() * (len(self.reach.vectors) - 1)
            tally.claimed += self.hits.numel() * (len(self.reach.vectors) - 1) - int(open_)
        queries = len(self.scene.queries)
        for query in range(queries):
            share = attempts * (query + 1) // queries - attempts * query // queries
            for distance in self._distances(query, share):
                broken = torch.zeros(len(distance), dtype=torch.bool)
                for claims in self.claims:
                    broken |= claims.broken(query, distance, self.hits, self.scene.same)
                tally.attempts += len(distance)
                tally.violations += int(broken.sum())
        return tally

    def _distances(self, query: int, attempts: int) -> Iterator[Tensor]:
        """Distances of every candidate, a row for each attempt."""
        if self.threat.who == "query":
            image = self.scene.queries[query : query + 1]
            for images in self.reach.altered(image, self.reach.vectors[self.hits[query]], attempts):
                z = self.reach.embed(images[:, 0])
                yield torch.cdist(z, self.reach.vectors, compute_mode="donot_use_mm_for_euclid_dist")
            return
        moved = self.reach.queries[query]
        for start in range(0, attempts, BATCH):
            count = min(BATCH, attempts - start)
            points = self.reach.clean[query].expand(count, -1)
            if self.threat.who == "both":
                points = moved[torch.randint(len(moved), (count,))]
            yield self._sets(query, points)

    def _sets(self, query: int, points: Tensor) -> Tensor:
        """Sets of altered candidates, a row each: at random, or the best of a few for and against a hit."""
        count, n = len(points), len(self.reach.vectors)
        chosen = torch.randint(self.reach.pool.shape[1], (count, n, TRIED))
        tried = self.reach.pool[torch.arange(n)[None, :, None], chosen]
        distance = (tried - points[:, None, None]).norm(dim=3)
        hit = self.hits[query][torch.randint(HITS, (count,))]
        near, far = distance.amin(2), distance.amax(2)
        own = torch.zeros(count, n, dtype=torch.bool)
        own[torch.arange(count), hit] = True
        mode = torch.randint(3, (count, 1))
        picked = torch.where(own, far, near)
        picked = torch.where(mode == 1, torch.where(own, near, far), picked)
        picked = torch.where(mode == 2, distance[:, :, 0], picked)
        if self.threat.most is None:
            return picked
        still = (self.reach.vectors[None] - points[:, None]).norm(dim=2)
        mine = torch.where(torch.rand(count, 1) < 0.5, picked, still).gather(1, hit[:, None])
        crosses = (picked <= mine) != (still <= mine)
        order = (crosses.double() + torch.rand(count, n) + own * (2 * torch.rand(count, 1) - 1)).argsort(
            dim=1, descending=True
        )
        altered = torch.zeros(count, n, dtype=torch.bool).scatter(1, order[:, : self.threat.most], True)
        return torch.where(altered, picked, still)
