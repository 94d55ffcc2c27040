"""Certificates over queries: for each query and threat, which hits cannot be moved; rows, resumable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast import data
from holdfast.certify import RankBounds, nearest
from holdfast.certify.certifier import Certifier
from holdfast.data import ImageSet
from holdfast.errors import ConfigError
from holdfast.evaluate.draw import KS, ordered_ks
from holdfast.evaluate.folder import CERTIFICATION, Block, Task
from holdfast.evaluate.spread import HERE, Spread
from holdfast.methods import bound_method
from holdfast.metrics import bootstrap, chance_of_draw
from holdfast.models import Embedder, to_unit
from holdfast.rows import ROWS, Rows, read_rows
from holdfast.threat import Threat

BLOCK = 250
LISTED = 10


@dataclass(frozen=True)
class Certified:
    """The numbers of one threat at one K; each of the last three is a lower bound of recall under any attack."""

    threat: str
    k: int
    queries: int
    chance: float
    """Recall of a random order, if classes are as frequent among the candidates as among the queries."""
    recall: float
    """Without an attack: the top K hold a same-class candidate (Eq. 22)."""
    cr_recall: float
    """A same-class hit of the top K is verified, two-sided, with α = K − rank (Eq. 25)."""
    cr_recall_one_sided: float
    """A same-class hit of the top K surely stays in the top K."""
    certified_hit_rate: float
    """The top K surely hold some same-class candidate."""
    interval: dict[str, tuple[float, float]]
    """Bootstrap intervals of the last three."""


@dataclass(frozen=True)
class Certification:
    """A finished certification: its folder, its rows, and the numbers computed from them."""

    folder: Path
    rows: Rows
    table: tuple[Certified, ...]


def certify(
    embedder: Embedder,
    images: ImageSet,
    out: str | Path,
    threats: Sequence[Threat],
    *,
    queries: int = 1000,
    candidates: int = 1000,
    seed: int = 0,
    ks: Sequence[int] = KS,
    method: str = "interval",
    clip: bool = True,
    rounding: bool = True,
    listed: int = LISTED,
    spread: Spread = HERE,
) -> Certification:
    """Certify the rankings of disjoint queries and candidates, drawn by `seed`, under each threat.

    With `clip` off the box is the paper's, which leaves [0, 1]; with `rounding` off the float32
    rounding of inference is left out of the bounds, as in the paper. A row names its first `listed`
    hits with their intervals. Stopped, it goes on where it was.
    """
    out = Path(out)
    images.require_labels("certified recall")
    ks = ordered_ks(ks, candidates)
    _check(threats)
    asked, found = data.draw(images, queries, candidates, seed)
    settings = {
        "threats": [str(threat) for threat in threats],
        "queries": queries,
        "candidates": candidates,
        "seed": seed,
        "ks": ks,
        "method": bound_method(method).stored,
        "clip": clip,
        "rounding": rounding,
    }
    task = Task(out, CERTIFICATION, embedder, images, settings, spread)
    if task.finished():
        return read_certification(out)
    Certifier(embedder, clip=clip, rounding=rounding)  # What cannot be bounded is refused before any work.
    with task.writing(len(threats) * queries, _columns(ks)) as writer:
        work = _Proofs(embedder, images, asked, found, tuple(ks), method, clip, rounding, listed)
        task.fill(writer, "certifying", work, [(threat, queries, BLOCK) for threat in threats])
        task.finish(writer, [asdict(line) for line in _table(writer.read())])
    return read_certification(out)


@dataclass(frozen=True, eq=False)
class _Proofs:
    """What every block of queries needs."""

    embedder: Embedder
    images: ImageSet
    asked: NDArray[np.int64]
    found: NDArray[np.int64]
    ks: tuple[int, ...]
    method: str
    clip: bool
    rounding: bool
    listed: int

    def __call__(self, threat: Threat, span: range) -> Block:
        """Some queries under a threat."""
        images, part = self.images, self.asked[span.start : span.stop]
        labels = images.require_labels("certified recall")
        asking = to_unit(images.batch(part))
        same = torch.from_numpy(labels[part])[:, None] == torch.from_numpy(labels[self.found])[None]
        attack = self._certifier.alteration(
            threat, asking, self._pool, self._vectors, method=self.method, ks=self.ks
        )
        queries = self.embedder.embed(asking).double()
        rows = _rows(attack, queries, self._vectors, same, self.ks, self.listed)
        for row, number in zip(rows, part.tolist(), strict=True):
            row.update(query=images.ids[number], label=int(labels[number]), threat=str(threat))
            row["hits"] = [images.ids[self.found[c]] for c in row["hits"]]
        return Block(rows, str(threat))

    @cached_property
    def _certifier(self) -> Certifier:
        return Certifier(self.embedder, clip=self.clip, rounding=self.rounding)

    @cached_property
    def _pool(self) -> Tensor:
        return to_unit(self.images.batch(self.found))

    @cached_property
    def _vectors(self) -> Tensor:
        return self.embedder.embed_candidates(self._pool).double()


def read_certification(folder: Path) -> Certification:
    """A finished certification from its folder."""
    rows = read_rows(folder / ROWS)
    return Certification(folder, rows, _table(rows))


def _check(threats: Sequence[Threat]) -> None:
    if not threats:
        raise ConfigError("a certification needs at least one threat, for example query:linf:0.1")
    for threat in threats:
        if threat.norm != "linf" or threat.eps is None:
            raise ConfigError(f"interval certificates are for linf and a given eps, not '{threat}'")


def _columns(ks: Sequence[int]) -> dict[str, str]:
    found = {"query": "str", "label": "int", "threat": "str", "known": "int", "unbeaten": "int"}
    for k in ks:
        found |= dict.fromkeys((f"recall_{k}", f"cr_{k}", f"one_sided_{k}", f"hit_{k}"), "int")
    return found | {"hits": "list", "right": "list", "best": "list", "worst": "list"}


def _rows(
    attack: Any, queries: Tensor, candidates: Tensor, same: Tensor, ks: Sequence[int], listed: int
) -> list[dict[str, Any]]:
    hits = nearest(queries, candidates, max(ks))
    right = same.gather(1, hits)
    bounds: RankBounds = attack.ranks(hits)
    ahead = attack.unbeaten(same)
    columns: dict[str, Tensor] = {
        "known": bounds.known[:, 0],
        "unbeaten": ahead.clamp(max=candidates.shape[0]),
    }
    for k in ks:
        inside = right[:, :k]
        columns[f"recall_{k}"] = inside.any(1)
        columns[f"cr_{k}"] = (bounds.verified(k)[:, :k] & inside).any(1)
        columns[f"one_sided_{k}"] = (bounds.stays_within(k)[:, :k] & inside).any(1)
        # A right hit that stays is a certified hit too.
        columns[f"hit_{k}"] = (ahead < k) | columns[f"one_sided_{k}"]
    shown = {"hits": hits, "right": right.int(), "best": bounds.best, "worst": bounds.worst}
    return [
        {name: int(column[i]) for name, column in columns.items()}
        | {name: table[i, :listed].tolist() for name, table in shown.items()}
        for i in range(len(hits))
    ]


def _table(rows: Rows) -> tuple[Certified, ...]:
    lines = []
    for threat in rows.header["config"]["threats"]:
        mine = rows.columns["threat"] == threat
        for k in rows.header["config"]["ks"]:
            part = {name: rows.columns[f"{name}_{k}"][mine] for name in ("recall", "cr", "one_sided", "hit")}
            means = {name: float(np.mean(values)) for name, values in part.items()}
            lines.append(
                Certified(
                    threat,
                    k,
                    int(mine.sum()),
                    chance_of_draw(rows.columns["label"][mine], rows.header["config"]["candidates"], k),
                    means["recall"],
                    means["cr"],
                    means["one_sided"],
                    means["hit"],
                    {name: bootstrap(part[name]) for name in ("cr", "one_sided", "hit")},
                )
            )
    return tuple(lines)
