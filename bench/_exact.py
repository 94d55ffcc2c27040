"""Exact answers for networks small enough to have them, to hold certificates against.

Query attack: the least of a linear function of the output over a box is a mixed-integer program (one
binary a ReLU, HiGHS). Candidate attack: with two pixels, the box splits into convex polygons on each of
which the network is affine; a distance is greatest at a corner, and least inside, on an edge or at a
corner of one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from holdfast import wrap
from holdfast.bounds import distance_bounds, image_box, interval_bounds, linear_bounds, trace
from holdfast.certify import AlteredCandidates, nearest
from holdfast.certify.certifier import Certifier
from holdfast.methods import METHODS
from holdfast.models import Embedder
from holdfast.spec import ImageSpec
from holdfast.threat import Threat

Array = NDArray[np.float64]
TOLERANCE = 1e-5


def tiny(seed: int, pixels: int, widths: tuple[int, ...], dim: int) -> Embedder:
    """A ReLU network on a row of pixels."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Flatten()]
    size = pixels
    for width in (*widths, dim):
        layer = nn.Linear(size, width)
        nn.init.normal_(layer.weight, std=(2 / size) ** 0.5)
        layers += [layer, nn.ReLU()]
        size = width
    return wrap(nn.Sequential(*layers[:-1]).eval(), ImageSpec(1, 1, pixels))


def layers_of(embedder: Embedder) -> list[tuple[Array, Array]]:
    """Weights and biases in order."""
    found = [m for m in embedder.network.modules() if isinstance(m, nn.Linear)]
    return [(m.weight.detach().double().numpy(), m.bias.detach().double().numpy()) for m in found]


@dataclass(frozen=True)
class Program:
    """The constraints of a network on a box: pixels, then a value and a binary for each ReLU, layer by layer."""

    cost: Array
    """The output's rows in terms of the variables, and its constant."""
    shift: Array
    matrix: Array
    least: Array
    most: Array
    low: Array
    high: Array
    binary: Array


def program(layers: list[tuple[Array, Array]], low: Array, high: Array) -> Program:
    """Big-M constraints with interval bounds, slightly widened; where they leave no choice, none is given."""
    hidden = sum(len(bias) for _, bias in layers[:-1])
    size = len(low) + 2 * hidden
    rows: list[tuple[Array, float, float]] = []
    lows, highs, binary = np.zeros(size), np.zeros(size), np.zeros(size)
    lows[: len(low)], highs[: len(low)] = low, high
    place, start = 0, len(low)
    for weight, bias in layers[:-1]:
        before = slice(place, place + weight.shape[1])
        centre, radius = (lows[before] + highs[before]) / 2, (highs[before] - lows[before]) / 2
        middle, reach = weight @ centre + bias, np.abs(weight) @ radius
        least, most = middle - reach - 1e-3, middle + reach + 1e-3
        for j in range(len(bias)):
            value, active = start + j, start + len(bias) + j
            if most[j] <= 0:
                continue
            highs[value] = most[j]
            row = np.zeros(size)
            row[value], row[before] = 1.0, -weight[j]
            rows.append((row, bias[j], bias[j] if least[j] >= 0 else np.inf))
            if least[j] >= 0:
                lows[value] = least[j]
                continue
            highs[active], binary[active] = 1.0, 1.0
            off = row.copy()
            off[active] = -least[j]
            rows.append((off, -np.inf, bias[j] - least[j]))
            on = np.zeros(size)
            on[value], on[active] = 1.0, -most[j]
            rows.append((on, -np.inf, 0.0))
        place, start = start, start + 2 * len(bias)
    weight, bias = layers[-1]
    cost = np.zeros((len(bias), size))
    cost[:, place : place + weight.shape[1]] = weight
    matrix, ats, mosts = (np.array([row[i] for row in rows]) for i in range(3))
    return Program(cost, bias, matrix, ats, mosts, lows, highs, binary)


def least_of(found: Program, spec: Array) -> tuple[float, Array]:
    """The least of spec·f over the box, and pixels where it is reached."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    solved: Any = milp(
        spec @ found.cost,
        integrality=found.binary,
        bounds=Bounds(found.low, found.high),
        constraints=LinearConstraint(found.matrix, found.least, found.most),
        options={"mip_rel_gap": 0.0},
    )
    if not solved.success:
        raise RuntimeError(f"HiGHS did not solve a program: {solved.message}")
    return float(solved.fun + spec @ found.shift), solved.x


def regions(
    layers: list[tuple[Array, Array]], low: Array, high: Array
) -> Iterator[tuple[Array, Array, Array]]:
    """The convex polygons of a box of two pixels on which the network is affine: corners, matrix, shift."""
    box = np.array([[low[0], low[1]], [high[0], low[1]], [high[0], high[1]], [low[0], high[1]]])
    pieces = [(box, np.eye(2), np.zeros(2))]
    for weight, bias in layers[:-1]:
        later = []
        for corners, matrix, shift in pieces:
            rows, constants = weight @ matrix, weight @ shift + bias
            parts = [(corners, np.ones(len(bias)))]
            for j in range(len(bias)):
                split = []
                for polygon, on in parts:
                    for sign in (1.0, -1.0):
                        part = _half(polygon, sign * rows[j], sign * constants[j])
                        if len(part):
                            state = on.copy()
                            state[j] = max(sign, 0.0)
                            split.append((part, state))
                parts = split
            later += [(polygon, on[:, None] * rows, on * constants) for polygon, on in parts]
        pieces = later
    weight, bias = layers[-1]
    for corners, matrix, shift in pieces:
        yield corners, weight @ matrix, weight @ shift + bias


def _half(polygon: Array, row: Array, constant: float) -> Array:
    """The part of a convex polygon where row·x + constant ≥ 0."""
    values = polygon @ row + constant
    kept = []
    for i in range(len(polygon)):
        here, there = values[i], values[(i + 1) % len(polygon)]
        if here >= 0:
            kept.append(polygon[i])
        if here * there < 0:
            kept.append(polygon[i] + (here / (here - there)) * (polygon[(i + 1) % len(polygon)] - polygon[i]))
    return np.array(kept)


def distance_range(
    layers: list[tuple[Array, Array]], low: Array, high: Array, point: Array
) -> tuple[float, float]:
    """The least and greatest ‖f(x) − point‖ over a box of two pixels."""
    least, most = np.inf, 0.0
    for corners, matrix, shift in regions(layers, low, high):
        ends = corners @ matrix.T + shift - point
        lengths = np.linalg.norm(ends, axis=1)
        least, most = min(least, lengths.min()), max(most, lengths.max())
        steps = np.roll(ends, -1, axis=0) - ends
        squares = (steps**2).sum(1)
        share = np.clip(-(ends * steps).sum(1) / np.where(squares > 0, squares, 1.0), 0.0, 1.0)
        least = min(least, np.linalg.norm(ends + share[:, None] * steps, axis=1).min())
        inner: Array = np.linalg.lstsq(matrix, point - shift, rcond=None)[0].astype(np.float64)
        if _inside(corners, inner):
            least = min(least, float(np.linalg.norm(matrix @ inner + shift - point)))
    return float(least), float(most)


def _inside(corners: Array, x: Array) -> bool:
    steps, gaps = np.roll(corners, -1, axis=0) - corners, x - corners
    return bool((steps[:, 0] * gaps[:, 1] - steps[:, 1] * gaps[:, 0] >= 0).all())


def certified_leads(embedder: Embedder, image: Tensor, eps: float, vectors: Tensor) -> dict[str, Tensor]:
    """For each method the certified least ‖z − c‖² − ‖z − ĉ‖² (row c, column ĉ) over the box of one image."""
    graph, images = trace(embedder), image_box(image.double(), eps)
    split = graph.without_last()
    assert split is not None
    body, _ = split
    weight, bias = layers_of(embedder)[-1]
    squared = vectors.square().sum(1)
    gaps = vectors[:, None] - vectors[None]
    rise = squared[:, None] - squared[None]
    with torch.no_grad():
        box, hidden = interval_bounds(graph, images), interval_bounds(body, images)
        upper, lower = distance_bounds(box, vectors)
        seen = gaps @ torch.from_numpy(weight)
        bound = linear_bounds(graph, images, -gaps.flatten(0, 1))
    found = {
        "paper": lower[0].square()[:, None] - upper[0].square()[None],
        "interval": rise - 2 * (gaps @ box.centre[0]) - 2 * (gaps.abs() @ box.radius[0]),
        "last-layer": rise
        - 2 * (seen @ hidden.centre[0] + gaps @ torch.from_numpy(bias))
        - 2 * (seen.abs() @ hidden.radius[0]),
    }
    found["last-layer"] = torch.maximum(found["last-layer"], found["interval"])
    found["crown"] = torch.maximum(found["last-layer"], rise + 2 * bound.view(len(vectors), -1))
    return found


@dataclass
class Slack:
    """What certificates lose against exact answers, and whether any claims more than is true."""

    lost: dict[str, float]
    """Mean distance between the certified and the exact value."""
    proved: dict[str, int]
    """How many of the comparisons that truly hold each method proves; `exact` is all of them."""
    wrong: int
    """Claims beyond the exact answer."""


def query_slack(networks: int, candidates: int = 5, eps: float = 0.05) -> Slack:
    """Query attack on networks of 5 pixels and 14 ReLUs, every pair of candidates."""
    gaps: dict[str, list[float]] = {str(name): [] for name in METHODS}
    proved: dict[str, int] = dict.fromkeys(("exact", *METHODS), 0)
    wrong = 0
    for seed in range(networks):
        embedder = tiny(seed, 5, (8, 6), 3)
        image, pool = torch.rand(1, 1, 1, 5), torch.rand(candidates, 1, 1, 5)
        vectors = embedder.embed(pool).double()
        low, high = ((image[0, 0, 0].double() + sign * eps).clamp(0, 1).numpy() for sign in (-1, 1))
        model, exact = program(layers_of(embedder), low, high), np.zeros((candidates, candidates))
        squared = vectors.square().sum(1).numpy()
        for c in range(candidates):
            for own in range(candidates):
                if c != own:
                    spec = 2 * (vectors[own] - vectors[c]).numpy()
                    exact[c, own] = squared[c] - squared[own] + least_of(model, spec)[0]
        apart = ~np.eye(candidates, dtype=bool)
        proved["exact"] += int((exact[apart] > 0).sum())
        for name, leads in certified_leads(embedder, image, eps, vectors).items():
            found = leads.numpy()
            gaps[name] += (exact - found)[apart].tolist()
            proved[name] += int((found[apart] > 0).sum())
            wrong += int((found > exact + TOLERANCE)[apart].sum())
        hits = nearest(embedder.embed(image).double(), vectors, candidates)
        for method in METHODS:
            attack = Certifier(embedder).alteration(
                Threat.parse(f"query:linf:{eps}"), image, pool, vectors, method=method
            )
            bounds = attack.ranks(hits)
            wrong += _beyond(bounds.best[0].numpy(), bounds.worst[0].numpy(), exact, hits[0].numpy())
    return Slack({name: float(np.mean(values)) for name, values in gaps.items()}, proved, wrong)


def _beyond(best: Any, worst: Any, exact: Array, own: Any) -> int:
    """How many rank intervals are narrower than the exact comparisons allow."""
    count = len(exact)
    sure = (exact > -TOLERANCE) & ~np.eye(count, dtype=bool)
    true_worst = count - sure[:, own].sum(0)
    true_best = 1 + sure[own].sum(1)
    return int((worst < true_worst).sum() + (best > true_best).sum())


def candidate_slack(networks: int, candidates: int = 6, eps: float = 0.05) -> Slack:
    """Candidate attack on networks of 2 pixels and 10 ReLUs: distance bounds, and rank intervals."""
    lower_gaps, upper_gaps, wrong = list[float](), list[float](), 0
    proved = {"exact": 0, "interval": 0}
    for seed in range(networks):
        embedder = tiny(1000 + seed, 2, (6, 4), 3)
        query, pool = torch.rand(1, 1, 1, 2), torch.rand(candidates, 1, 1, 2)
        vectors, point = embedder.embed(pool).double(), embedder.embed(query).double()
        layers, ranges = layers_of(embedder), []
        for image in pool[:, 0, 0].double():
            low, high = ((image + sign * eps).clamp(0, 1).numpy() for sign in (-1, 1))
            ranges.append(distance_range(layers, low, high, point[0].numpy()))
        least, most = np.array(ranges).T
        attack = Certifier(embedder).alteration(Threat.parse(f"candidates:linf:{eps}"), query, pool, vectors)
        assert isinstance(attack, AlteredCandidates)
        lower_gaps += (least - attack.lower[0].numpy()).tolist()
        upper_gaps += (attack.upper[0].numpy() - most).tolist()
        wrong += int(
            (attack.lower[0].numpy() > least + 1e-9).sum() + (attack.upper[0].numpy() < most - 1e-9).sum()
        )
        hits = nearest(point, vectors, candidates)
        bounds, own = attack.ranks(hits), hits[0].numpy()
        farther = least[:, None] > most[None]
        worst, best = candidates - farther[:, own].sum(0), 1 + farther[own].sum(1)
        wrong += int((bounds.worst[0].numpy() < worst).sum() + (bounds.best[0].numpy() > best).sum())
        proved["exact"] += int(farther.sum())
        proved["interval"] += int((candidates - bounds.worst[0]).sum())
    return Slack({"lower": float(np.mean(lower_gaps)), "upper": float(np.mean(upper_gaps))}, proved, wrong)
