"""How far each proof reaches: for each query the largest eps at which its hits are certified; rows, resumable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast import data
from holdfast.certify import AlteredQuery, RankBounds, largest_eps, nearest
from holdfast.certify.certifier import Certifier
from holdfast.data import ImageSet
from holdfast.errors import ConfigError
from holdfast.evaluate.certify import LISTED
from holdfast.evaluate.draw import KS, ordered_ks
from holdfast.evaluate.folder import CURVE, Block, Task
from holdfast.evaluate.pictures import save_pictures
from holdfast.evaluate.spread import HERE, Spread
from holdfast.methods import bound_method
from holdfast.metrics import bootstrap
from holdfast.models import Embedder, to_unit
from holdfast.rows import ROWS, Rows, read_rows
from holdfast.threat import Threat

AUTO = Threat.parse("query:linf:auto")
BLOCK = 50
GRID = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3)
STEPS = 10
"""Bisections: the largest eps is found to 1/2^10, a quarter of a grey level; the last ones cost most."""
WEAKEST = 6
STRONGEST = 3


@dataclass(frozen=True)
class Reach:
    """How far the certified hits at one K reach.

    `certified[i]` is the share of queries whose top K surely hold a same-class candidate under every
    alteration within `eps[i]`: a lower bound of the hit rate under any such attack.
    """

    k: int
    queries: int
    clean: float
    """Hit rate without an attack."""
    eps: tuple[float, ...]
    certified: tuple[float, ...]
    interval: tuple[tuple[float, float], ...]
    """Bootstrap intervals of `certified`."""
    median: float
    """Half of the queries are certified up to this eps at least; -1 where fewer than half are at 0."""


@dataclass(frozen=True)
class Curve:
    """A finished search for the largest eps: its folder, its rows, and the numbers computed from them."""

    folder: Path
    rows: Rows
    table: tuple[Reach, ...]


def certified_curve(
    embedder: Embedder,
    images: ImageSet,
    out: str | Path,
    threat: Threat = AUTO,
    *,
    queries: int = 1000,
    candidates: int = 1000,
    seed: int = 0,
    ks: Sequence[int] = KS,
    method: str = "interval",
    clip: bool = True,
    spread: Spread = HERE,
) -> Curve:
    """For each query the largest eps of altered queries (ℓ∞) at which its certified hit at each K holds.

    The same for each of its first hits: the largest eps at which it surely stays among them. Each is
    an eps at which the claim was proved, so it holds at every smaller one, whose altered images are
    among those of the larger: the share of queries with largest ≥ eps is certified at eps. The draw is
    that of `certify`. Stopped, it goes on where it was.
    """
    out = Path(out)
    images.require_labels("certified hit rate")
    if threat != AUTO:
        raise ConfigError(f"the largest eps is found for {AUTO}, not '{threat}'")
    ks = ordered_ks(ks, candidates)
    asked, found = data.draw(images, queries, candidates, seed)
    settings = {
        "threats": [str(threat)],
        "queries": queries,
        "candidates": candidates,
        "seed": seed,
        "ks": ks,
        "method": bound_method(method).stored,
        "clip": clip,
        "grid": list(GRID),
        "steps": STEPS,
    }
    task = Task(out, CURVE, embedder, images, settings, spread)
    if task.finished():
        return read_curve(out)
    Certifier(embedder, clip=clip)  # What cannot be bounded is refused before any work.
    with task.writing(queries, _columns(ks)) as writer:
        work = _Reaches(embedder, images, asked, found, tuple(ks), method, clip)
        task.fill(writer, "largest eps", work, [(None, queries, BLOCK)])
        written = writer.read()
        save_pictures(out, written, proofs(written), images)
        table = _table(written)
        task.finish(writer, [asdict(line) for line in table])
    return Curve(out, written, table)


@dataclass(frozen=True, eq=False)
class _Reaches:
    """What every block of queries needs."""

    embedder: Embedder
    images: ImageSet
    asked: NDArray[np.int64]
    found: NDArray[np.int64]
    ks: tuple[int, ...]
    method: str
    clip: bool

    def __call__(self, what: None, span: range) -> Block:
        images, part, found, ks = self.images, self.asked[span.start : span.stop], self.found, self.ks
        labels = images.require_labels("certified hit rate")
        asking, vectors = to_unit(images.batch(part)), self._vectors
        nearer = nearest(self.embedder.embed(asking).double(), vectors, max(*ks, LISTED))
        same = torch.from_numpy(labels[part])[:, None] == torch.from_numpy(labels[found])[None]
        rows = _rows(partial(_attack, self._certifier, self.method, asking, vectors), nearer, same, ks)
        for row, number in zip(rows, part.tolist(), strict=True):
            row.update(query=images.ids[number], label=int(labels[number]))
            row["hit_labels"] = [int(labels[found[c]]) for c in row["hits"]]
            row["hits"] = [images.ids[found[c]] for c in row["hits"]]
        return Block(rows)

    @cached_property
    def _certifier(self) -> Certifier:
        return Certifier(self.embedder, clip=self.clip)

    @cached_property
    def _vectors(self) -> Tensor:
        """The candidates'."""
        return self.embedder.embed_candidates(to_unit(self.images.batch(self.found))).double()


def read_curve(folder: Path) -> Curve:
    """A finished curve from its folder."""
    rows = read_rows(folder / ROWS)
    return Curve(folder, rows, _table(rows))


def shown_k(rows: Rows) -> int:
    """The K by which proofs are compared on a sheet: the largest not above the number of listed hits."""
    ks: list[int] = rows.header["config"]["ks"]
    return max((k for k in ks if k <= LISTED), default=ks[0])


def proofs(rows: Rows) -> dict[str, NDArray[np.int64]]:
    """The rows with the weakest and the strongest proofs among those that are right without an attack."""
    k = shown_k(rows)
    right = np.flatnonzero(rows.columns[f"recall_{k}"])
    order = right[np.argsort(rows.columns[f"eps_{k}"][right], kind="stable")]
    weakest = order[:WEAKEST]
    return {"weakest": weakest, "strongest": order[len(weakest) :][::-1][:STRONGEST]}


def _columns(ks: Sequence[int]) -> dict[str, str]:
    found = {"query": "str", "label": "int"}
    found |= {f"recall_{k}": "int" for k in ks} | {f"eps_{k}": "float" for k in ks}
    return found | dict.fromkeys(("hits", "hit_labels", "hit_eps", "best", "worst"), "list")


def _attack(
    model: Certifier, method: str, queries: Tensor, vectors: Tensor, which: Tensor, eps: Tensor
) -> AlteredQuery:
    return model.altered_query(eps, method, queries[which], vectors)


def _rows(
    attack: Callable[[Tensor, Tensor], AlteredQuery], nearer: Tensor, same: Tensor, ks: Sequence[int]
) -> list[dict[str, Any]]:
    """A row for each query; `attack` takes numbers of queries and an eps for each."""
    hits, right = nearer[:, :LISTED], same.gather(1, nearer)
    count, listed = hits.shape

    def judge(which: Tensor, eps: Tensor) -> tuple[Tensor, RankBounds]:
        """A certified hit at each K, as `certify` counts it among the listed hits; then each hit's stay."""
        made = attack(which, eps)
        bounds, ahead = made.ranks(hits[which]), made.unbeaten(same[which])
        held = [(ahead < k) | (bounds.stays_within(k) & right[which, :listed])[:, :k].any(1) for k in ks]
        return torch.cat([torch.stack(held, 1), bounds.stays_within(listed)], 1), bounds

    largest = _largest(lambda which, eps: judge(which, eps)[0], count, len(ks) + listed)
    spans = []
    for eps in GRID:
        held, bounds = judge(torch.arange(count), torch.full((count,), eps, dtype=torch.float64))
        # Bisection may have stopped just short of an eps that the table names.
        largest = torch.where(held, largest.clamp(min=eps), largest)
        spans.append(bounds)
    return [
        {f"recall_{k}": int(right[i, :k].any()) for k in ks}
        | {f"eps_{k}": float(largest[i, column]) for column, k in enumerate(ks)}
        | {
            "hits": hits[i].tolist(),
            "hit_eps": largest[i, len(ks) :].tolist(),
            "best": [span.best[i].tolist() for span in spans],
            "worst": [span.worst[i].tolist() for span in spans],
        }
        for i in range(count)
    ]


def _largest(claims: Callable[[Tensor, Tensor], Tensor], queries: int, each: int) -> Tensor:
    """The largest eps of each claim of each query; a query is bounded once for each eps that its claims ask."""
    query = torch.arange(queries).repeat_interleave(each)
    claim = torch.arange(each).repeat(queries)

    def certified(eps: Tensor) -> Tensor:
        asked = torch.stack([query.double(), eps.double()], 1)
        pairs, place = torch.unique(asked, dim=0, return_inverse=True)
        return claims(pairs[:, 0].long(), pairs[:, 1])[place, claim]

    return largest_eps(certified, queries * each, steps=STEPS).double().view(queries, each)


def _table(rows: Rows) -> tuple[Reach, ...]:
    lines = []
    for k in rows.header["config"]["ks"]:
        largest = rows.columns[f"eps_{k}"]
        held = [largest >= eps for eps in GRID]
        lines.append(
            Reach(
                k,
                len(rows),
                float(rows.columns[f"recall_{k}"].mean()),
                GRID,
                tuple(float(part.mean()) for part in held),
                tuple(bootstrap(part) for part in held),
                # The lower middle one, so that it is an eps that was proved.
                float(np.sort(largest)[(len(largest) - 1) // 2]),
            )
        )
    return tuple(lines)
