"""The page of a reproduction of metrics: every set and method at every radius, from the rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from reproduction.cells import Cell
from reproduction.experiment import RUN
from reproduction.metrics import EUCLIDEAN, KPlan, MetricJob, Metrics, errors_of

ARML = "arml"


def sections(found: Metrics, cells: Sequence[Cell]) -> list[str]:
    """All of the page between its head and what learning cost."""
    return [
        _sets(found),
        *(_table(found, how) for how in found.plan.certified),
        _networks(found),
        _against(found),
        _gaps(found),
        _runtimes(found, cells),
    ]


def _sets(found: Metrics) -> str:
    lines = [
        "## Sets",
        "",
        "| set | training vectors | test vectors | features | classes | |",
        "|---|---|---|---|---|---|",
    ]
    for name, plan in found.plan.sets.items():
        for method, seed in product(found.plan.methods, found.plan.seeds):
            file = found.home.kept(MetricJob(name, method, seed).name) / RUN
            if file.exists():
                said = json.loads(file.read_text())
                sizes = " | ".join(f"{said[key]:,}" for key in ("train", "test", "features", "classes"))
                lines.append(f"| {name} | {sizes} | {plan.about} |")
                break
    return "\n".join(lines)


def _table(found: Metrics, how: KPlan) -> str:
    shown = [f"where euclidean has {share:.0%}" for share in found.plan.shares]
    lines = [
        f"## {how.table}: K = {how.k}, {'exact' if how.exact else 'by the bound'}",
        "",
        "Certified robust error / robust error under the attack that was found, in per cent; in brackets the "
        "radius.",
        "",
        f"| set | method | at 0 | {' | '.join(shown)} | mean radius |",
        "|---" * (4 + len(shown)) + "|",
    ]
    for dataset in found.plan.sets:
        radii = found.radii(dataset, how)
        for method in found.plan.methods if radii else ():
            runs = found.rows(dataset, method, how)
            if not runs:
                continue
            values = []
            for share, radius in radii.items():
                errors = errors_of(runs, radius)
                pair = " / ".join(f"{100 * errors[name][0]:.1f}" for name in ("certified", "attacked"))
                values.append(pair + (f" ({radius:.3f})" if method == EUCLIDEAN and share else ""))
            mean = np.mean([run.columns["lower"].mean() for run in runs])
            lines.append(f"| {dataset} | {method} | {' | '.join(values)} | {mean:.4f} |")
    return "\n".join(lines)


def _networks(found: Metrics) -> str:
    """Figure i: 1-NN by each metric beside small networks, at the same radii."""
    first = [how for how in found.plan.certified if how.k == 1]
    if not first or not found.plan.networks:
        return ""
    (how,) = first
    shown = [f"where euclidean has {share:.0%}" for share in found.plan.shares]
    lines = [
        "## Figure i: metrics and networks",
        "",
        "Certified robust error in per cent at the same radii as in the table for K = 1. Radii by smoothing are wrong "
        "with probability at most α for each point; all others are certain.",
        "",
        f"| set | what is certified | at 0 | {' | '.join(shown)} |",
        "|---" * (3 + len(shown)) + "|",
    ]
    for dataset in dict.fromkeys(name for plan in found.plan.networks.values() for name in plan.sets):
        radii = found.radii(dataset, how)
        every = {f"1-NN, {method}": found.rows(dataset, method, how) for method in found.plan.methods}
        every |= {name: found.network_rows(dataset, name) for name in found.plan.networks}
        for name, runs in every.items() if radii else ():
            if runs:
                values = [f"{100 * errors_of(runs, radius)['certified'][0]:.1f}" for radius in radii.values()]
                lines.append(f"| {dataset} | {name} | {' | '.join(values)} |")
    return "\n".join(lines) if len(lines) > 6 else ""


def _against(found: Metrics) -> str:
    """Where ARML is below every other metric, and where it is not."""
    lines = [
        "## ARML against the others",
        "",
        "At the radii where the Euclidean metric has a quarter, half and three quarters: is ARML's certified "
        "robust error below that of every other metric? And its certified error at 0, beside the Euclidean one's.",
        "",
        "| K | set | below all others | not below | certified error at 0 |",
        "|---|---|---|---|---|",
    ]
    for how, dataset in product(found.plan.certified, found.plan.sets):
        radii = found.radii(dataset, how)
        every = {method: found.rows(dataset, method, how) for method in found.plan.methods}
        if not radii or not every.get(ARML):
            continue
        wins, losses = 0, []
        for share in found.plan.shares:
            ours = errors_of(every[ARML], radii[share])["certified"][0]
            others = [method for method, runs in every.items() if runs and method != ARML]
            ahead = [m for m in others if errors_of(every[m], radii[share])["certified"][0] <= ours]
            wins += not ahead
            losses += [f"{m} at {share:.0%}" for m in ahead]
        clean = [errors_of(every[m], 0.0)["certified"][0] for m in (ARML, EUCLIDEAN)]
        lines.append(
            f"| {how.k} | {dataset} | {wins} of {len(found.plan.shares)} | {', '.join(losses) or '–'} | "
            f"{100 * clean[0]:.1f}, euclidean {100 * clean[1]:.1f} |"
        )
    return "\n".join(lines)


def _gaps(found: Metrics) -> str:
    """For how many points the exact answer's two ends meet."""
    lines = [
        "## Exact answers",
        "",
        "| set | points | dual and primal agree to 1e-6 | points where not |",
        "|---|---|---|---|",
    ]
    for how, dataset in product(found.plan.certified, found.plan.sets):
        agree: dict[str, NDArray[np.bool_]] = {}
        for method in found.plan.methods if how.exact else ():
            for run in found.rows(dataset, method, how):
                lower, upper = run.columns["lower"], run.columns["upper"]
                agree[method] = (upper - lower) / np.maximum(upper, 1e-300) <= 1e-6
        if agree:
            every = np.concatenate(list(agree.values()))
            apart = ", ".join(f"{method} {(~one).sum()}" for method, one in agree.items() if not one.all())
            lines.append(f"| {dataset} | {len(every):,} | {every.mean():.2%} | {apart or '–'} |")
    return "\n".join(lines)


def _runtimes(found: Metrics, cells: Sequence[Cell]) -> str:
    """The printed runtimes and ours; machines differ, so each is also said relative to LMNN."""
    timed = {
        one.method: (one.paper, one.ours)
        for one in cells
        if one.metric == "seconds" and one.paper is not None and one.ours is not None
    }
    if found.plan.timed is None or "lmnn" not in timed:
        return ""
    lines = [
        f"## Runtime: 100 iterations on {found.plan.timed.set}",
        "",
        "Seconds of one thread, at most 100 iterations, early stops off where the plan says so; relative to LMNN in "
        "brackets. An iteration of ITML goes through its constraints once, one of NCA is a step of L-BFGS with its "
        "line search.",
        "",
        "| method | the rebuttal | here |",
        "|---|---|---|",
    ]
    for method, pair in sorted(timed.items(), key=lambda item: item[1][1]):
        both = [f"{one:.1f} ({one / floor:.2f})" for one, floor in zip(pair, timed["lmnn"], strict=True)]
        lines.append(f"| {method} | {' | '.join(both)} |")
    return "\n".join(lines)


def costs(found: Metrics) -> str:
    """What learning cost, run by run."""
    lines = ["## Learning", "", "| run | CPU seconds | commit |", "|---|---|---|"]
    for job in found.plan.jobs():
        file = found.home.kept(job.name) / RUN
        if file.exists():
            said = json.loads(file.read_text())
            lines.append(f"| {job.name} | {said['cpu_seconds']:.1f} | {said['commit']} |")
    return "\n".join(lines)
