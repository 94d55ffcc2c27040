"""The part of a report about a smoothed search: Recall@K against the ℓ2 radius, rule by rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.evaluation import ROWS
from holdfast.evaluation.smoothing import SmoothedCertification
from holdfast.reports import figures
from holdfast.reports.page import provenance

RULES = {
    "deployed": "what the search states of the class of the nearest, with its share of α",
    "paper": "as printed in RetrievalGuard",
    "ball": "from the mean vector, with one ball for all pairs",
    "half-space": "from the mean of the projection",
    "cdf": "from the projection's distribution",
    "votes": "another rule: the majority of noisy copies decides",
    "item": "the first candidate itself, whatever its class",
}


def _named(config: dict[str, Any]) -> str:
    """What tells one smoothed evaluation of a run from another."""
    noise = config["noise"]
    by = " by votes" if noise.get("rule") == "votes" else ""
    attacks = "".join(f", attacked within {eps:g}" for eps in config.get("attacks", ()))
    return f"σ = {noise['sigma']:g}, {noise['n']:,} samples{by}{attacks}"


def smoothed_part(done: SmoothedCertification, folder: Path) -> dict[str, Any]:
    """What the template needs of a smoothed evaluation."""
    config = done.rows.header["config"]
    noise = config["noise"]
    against = "all the rest" if config["candidates"] is None else f"{config['candidates']:,} candidates"
    abstains = float(done.rows.columns["abstains"].mean())
    lines = [
        {
            "k": line.k,
            "rule": f"{line.rule}: {RULES[line.rule]}",
            "recall": "" if line.rule == "item" else f"{line.recall:.3f}",
            "certified": f"{line.certified:.3f}",
            "rejected": f"{line.rejected:.3f}",
            "radius": (f"{line.mean_radius:.4f}", "–".join(f"{end:.4f}" for end in line.interval)),
        }
        for line in done.table
        if (line.n, line.alpha) == (noise["n"], noise["alpha"])
    ]
    attacks = [
        {
            "eps": f"{line.eps:g}",
            "recall": f"{line.recall:.3f}",
            "attacked": f"{line.attacked:.3f}",
            "certified": f"{line.certified:.3f}",
            "forced": f"{line.forced:.3f}",
            "contradicted": str(line.contradicted),
        }
        for line in done.attacks
    ]
    return {
        "name": f"Smoothed search on {config['data']}, {_named(config)}",
        "sentence": (
            f"{len(done.rows):,} queries against {against}; noise of σ = {noise['sigma']:g}, {noise['n']:,} samples a "
            f"query. Each radius is too large with probability at most {noise['alpha']:g}, for each query "
            f"by itself (for all at once: {noise['alpha'] / len(done.rows):.2g}). The search abstains on "
            f"{abstains:.1%} of the queries, where its estimate is too near a decision; an attacker can force that."
        ),
        "figures": [
            *(figures.smoothed_curve(done.rows, k) for k in config["ks"]),
            *(figures.radius_histogram(done.rows, k) for k in config["ks"][:1]),
            *([figures.radius_against_samples(done.table, noise["alpha"])] if config.get("marks") else []),
        ],
        "lines": lines,
        "attacks": attacks,
        **provenance(done.rows.header, done.folder / ROWS, folder),
    }
