"""Is an attacked evaluation valid? What its rows say against it, and what certificates say against it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.evaluate.folder import CERTIFICATION, CURVE, SUITE
from holdfast.evaluate.trials import damage
from holdfast.metrics import bootstrap
from holdfast.rows import ROWS, Finding, Rows, read_header, read_rows
from holdfast.threat import Threat

ZERO_SHARE = 0.05
LATE_SHARE = 0.10


def check_rows(rows: Rows) -> list[Finding]:
    """What the rows of a suite or of ER-Recall say against themselves."""
    found = [finding for name, mine in _groups(rows) for finding in _search(rows, name, mine)]
    if rows.header["config"]["kind"] == SUITE:
        found += _black_box(rows)
    else:
        found += _recalls(rows)
    return found


def _groups(rows: Rows) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """The rows of each attack, or of each threat."""
    if rows.header["config"]["kind"] == SUITE:
        main = rows.columns["optimiser"] == rows.header["config"]["search"]["optimiser"]
        for name in dict.fromkeys(rows.columns["attack"]):
            yield name, main & (rows.columns["attack"] == name)
    else:
        for threat in rows.header["config"]["threats"]:
            yield f"the attack within {threat}", rows.columns["threat"] == threat


def _search(rows: Rows, name: str, mine: NDArray[np.bool_]) -> Iterator[Finding]:
    zero = float(rows.columns["zero_gradient"][mine].mean())
    if zero > ZERO_SHARE:
        yield Finding(
            "warning",
            f"{name}: {zero:.0%} of the images have no usable gradient at the first point, so gradients may be "
            "masked; try the optimiser nes, or more restarts",
        )
    if "success" in rows.columns:
        known = rows.columns["success"][mine] >= 0
        if known.any() and bool((rows.columns["success"][mine][known] == 1).all()):
            return
    black = bool((rows.columns["gradients"][mine] == 0).all())
    start, nearly, end = (
        float(rows.columns[column][mine].mean()) for column in ("loss_start", "loss_late", "loss_end")
    )
    if start > end and (nearly - end) / (start - end) > LATE_SHARE:
        share = (nearly - end) / (start - end)
        yield Finding(
            "warning",
            f"{name}: {share:.0%} of what was gained came in the last tenth of the steps, so the attack is not "
            f"at its end; give more {'--budget' if black else '--steps'}",
        )


def _black_box(rows: Rows) -> Iterator[Finding]:
    """NES reaching more than the main optimiser on the same trials is a sign that gradients mislead."""
    main = rows.header["config"]["search"]["optimiser"]
    columns = rows.columns
    for name in dict.fromkeys(columns["attack"]):
        mine = columns["attack"] == name
        both = {}
        for optimiser in (main, "nes"):
            part = mine & (columns["optimiser"] == optimiser)
            hurt = damage(name, columns["before"][part], columns["after"][part])
            both[optimiser] = dict(zip(columns["trial"][part].tolist(), hurt, strict=True))
        if main == "nes" or not both["nes"]:
            continue
        gap = np.array([value - both[main][trial] for trial, value in both["nes"].items()])
        if gap.mean() > 0 and bootstrap(gap)[0] > 0:
            yield Finding(
                "warning",
                f"{name}: black-box search (nes) goes farther than {main} on the same {len(gap)} trials, so "
                "gradients mislead; the numbers are too good",
            )


def _recalls(rows: Rows) -> Iterator[Finding]:
    for threat in rows.header["config"]["threats"]:
        mine = rows.columns["threat"] == threat
        above = []
        for k in rows.header["config"]["ks"]:
            clean, attacked, robust = (
                rows.columns[f"{name}_{k}"][mine] for name in ("recall", "attacked", "robust")
            )
            if (robust > clean).any():
                yield Finding(
                    "error", f"{threat}: robust recall at {k} is above clean recall, which cannot be"
                )
            if attacked.mean() > clean.mean():
                above.append(str(k))
        if above:
            yield Finding(
                "warning",
                f"{threat}: er_recall is above clean recall at K = {', '.join(above)}: a random target helps "
                "some queries; read robust_recall",
            )


@dataclass(frozen=True)
class Proofs:
    """The queries whose top K surely hold a right hit under a threat, for each K."""

    threat: Threat
    hits: dict[int, dict[str, bool]]


def proofs(rows: Rows) -> Iterator[Proofs]:
    """The proofs in the rows of a certification, or of a search for the largest eps (which has any eps)."""
    config, columns = rows.header["config"], rows.columns
    for threat in config.get("threats", []):
        mine = columns["threat"] == threat
        hits = {
            k: dict(zip(columns["query"][mine], columns[f"hit_{k}"][mine] > 0, strict=True))
            for k in config["ks"]
        }
        yield Proofs(Threat.parse(threat), hits)


def proofs_at(rows: Rows, eps: float) -> Proofs:
    """The proofs at `eps` in the rows of a search for the largest eps."""
    columns = rows.columns
    hits = {
        k: dict(zip(columns["query"], columns[f"eps_{k}"] >= eps, strict=True))
        for k in rows.header["config"]["ks"]
    }
    return Proofs(Threat("linf", eps), hits)


def covers(proved: Threat, attack: Threat, altered: int) -> bool:
    """Whether a proof about `proved` speaks about an attack within `attack` that alters `altered` images."""
    who = proved.who == "both" or (
        proved.who == attack.who and (proved.most is None or proved.most >= altered)
    )
    sizes = proved.eps is not None and attack.eps is not None and proved.eps >= attack.eps
    return who and proved.norm == attack.norm and sizes


def proofs_about(attacked: Rows, certified: Rows, attack: Threat, altered: int) -> Iterator[Proofs]:
    """The proofs of the same embedder, images and draw that speak about an attack."""
    one, other = attacked.header["config"], certified.header["config"]
    same = ("embedder", "images", "queries", "candidates", "seed")
    # Without room for rounding a proof is about real numbers, not about the embedder that was attacked.
    if any(one[key] != other[key] for key in same) or not other.get("rounding", True):
        return
    if other["kind"] == CURVE and attack.eps is not None:
        found = [proofs_at(certified, attack.eps)]
    else:
        found = list(proofs(certified))
    yield from (proof for proof in found if covers(proof.threat, attack, altered))


def contradictions(attacked: Rows, certified: Rows) -> list[Finding]:
    """Certified hits that an attack removed: each is a mistake in a certificate or in the evaluation."""
    found = []
    for name, threat, altered, k, outcome in _outcomes(attacked):
        for proof in proofs_about(attacked, certified, threat, altered):
            broken = [q for q, held in outcome.items() if not held and proof.hits.get(k, {}).get(q, False)]
            if broken:
                found.append(
                    Finding(
                        "error",
                        f"certified > attacked: {name} removed the hit of {len(broken)} queries (first: {broken[0]}) "
                        f"that are certified at K = {k} under {proof.threat}; a certificate is wrong",
                    )
                )
    return found


def _outcomes(rows: Rows) -> Iterator[tuple[str, Threat, int, int, dict[str, bool]]]:
    """What was attacked and whether each query still has a right hit: attack, threat, altered images, K, outcome."""
    config, columns = rows.header["config"], rows.columns
    if config["kind"] == SUITE:
        for name in dict.fromkeys(columns["attack"]):
            # Recall is measured for attacks on queries; a query of a class without candidates has none.
            mine = (columns["attack"] == name) & (columns["recall_after"] >= 0)
            outcome: dict[str, bool] = {}
            for query, hit in zip(columns["image"][mine], columns["recall_after"][mine] > 0, strict=True):
                outcome[query] = outcome.get(query, True) and bool(hit)
            yield name, Threat.parse(config["threat"]), 1, 1, outcome
        return
    for text in config["threats"]:
        mine = columns["threat"] == text
        altered = int(columns["altered"][mine].max(initial=0))
        for k in config["ks"]:
            hits = columns[f"attacked_{k}"][mine] > 0
            yield (
                f"the attack within {text}",
                Threat.parse(text),
                altered,
                k,
                dict(zip(columns["query"][mine], hits, strict=True)),
            )


def certified_beside(
    attacked: Rows, certificates: list[Rows], attack: Threat, altered: int, k: int, queries: list[str]
) -> float | None:
    """The largest share of these queries whose hit at K is certified against an attack; None without a proof."""
    found = [
        float(np.mean([proof.hits[k].get(query, False) for query in queries]))
        for rows in certificates
        for proof in proofs_about(attacked, rows, attack, altered)
        if k in proof.hits and queries
    ]
    return max(found, default=None)


def certificates_in(folder: Path, embedder: str) -> list[Rows]:
    """The rows of all certificates of an embedder below a folder."""
    found = []
    for path in sorted(folder.rglob(ROWS)):
        config: dict[str, Any] = read_header(path)["config"]
        if config.get("kind") in (CERTIFICATION, CURVE) and config["embedder"] == embedder:
            found.append(read_rows(path))
    return found


def cross_check(attacked: Rows, folder: Path) -> list[Finding]:
    """`contradictions` with every certificate of the same embedder below `folder`."""
    certificates = certificates_in(folder, attacked.header["config"]["embedder"])
    return [finding for rows in certificates for finding in contradictions(attacked, rows)]
