"""`holdfast evaluate --attacks`: attacked evaluations, printed."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from holdfast.cli.output import note, note_threats, number, print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.attacks import Settings
    from holdfast.data import ImageSet
    from holdfast.evaluate.er_recall import ErRecall
    from holdfast.evaluate.scores import SuiteScores
    from holdfast.evaluate.spread import Spread
    from holdfast.evaluate.suite import AttackedSuite
    from holdfast.evaluate.validity import Finding
    from holdfast.models import AnyEmbedder
    from holdfast.threat import Threat


def run_attacks(
    embedder: AnyEmbedder,
    images: ImageSet,
    home: Path,
    attacks: str,
    threat: str,
    *,
    out: Path | None,
    queries: int | None,
    candidates: int | None,
    ca_queries: int,
    seed: int,
    ks: Sequence[int] | None,
    settings: Settings,
    check_black_box: int,
    spread: Spread,
    json: bool,
) -> None:
    """Run a suite or ER-Recall, print its table, and exit with 1 if it contradicts a certificate."""
    from holdfast.attacks.objectives.er_recall import SOURCES
    from holdfast.errors import ConfigError
    from holdfast.evaluate import ROWS
    from holdfast.evaluate.draw import KS
    from holdfast.evaluate.er_recall import ErRecall, er_recall
    from holdfast.evaluate.suite import attack_suite, chosen_attacks
    from holdfast.evaluate.validity import cross_check

    threats = _threats(threat, attacks)
    chosen = settings.named(embedder)
    if settings.optimiser is None and chosen.optimiser != "pgd":
        note(
            f"this model gives no gradients: attacks are black-box ({chosen.optimiser}, {chosen.budget} queries each)"
        )
    done: AttackedSuite | ErRecall
    if attacks == "er-recall":
        if check_black_box:
            raise ConfigError("--check-black-box is for the suite of ERS, not for er-recall")
        asked, found = queries or 1000, candidates or 1000
        altered = sum(asked if t.who == "query" else SOURCES * min(ca_queries, asked) for t in threats)
        _note_cost(altered, chosen)
        place = out or home / "attacks" / _folder("er-recall", images, threats, chosen, asked, found, seed)
        done = er_recall(
            embedder,
            images,
            place,
            threats,
            queries=asked,
            candidates=found,
            ca_queries=ca_queries,
            seed=seed,
            ks=ks or KS,
            settings=chosen,
            spread=spread,
        )
    else:
        name = attacks.replace(",", "_")
        asked = queries or len(images)
        _note_cost(asked * len(chosen_attacks(attacks)), chosen)
        if check_black_box and chosen.optimiser != "nes":
            black = replace(chosen, optimiser="nes")
            _note_cost(min(check_black_box, asked) * len(chosen_attacks(attacks)), black)
        place = out or home / "attacks" / _folder(name, images, threats, chosen, queries, candidates, seed)
        done = attack_suite(
            embedder,
            images,
            place,
            threats[0],
            attacks=attacks,
            queries=queries,
            candidates=candidates,
            seed=seed,
            settings=chosen,
            check_black_box=check_black_box,
            spread=spread,
        )
    findings: list[Finding] = [*done.findings, *(cross_check(done.rows, home) if home.is_dir() else [])]
    if json:
        told = [{"level": finding.level, "text": finding.text} for finding in findings]
        table: dict[str, Any]
        if isinstance(done, ErRecall):
            table = {"table": [asdict(line) for line in done.table]}
        else:
            table = done.scores.to_json()
        print_json({"rows": done.folder / ROWS, **table, "findings": told})
    else:
        if isinstance(done, ErRecall):
            print_er_recall(done, f"{images.name}, attacked by {chosen.optimiser}")
        else:
            print_suite(done.scores, images.name)
        for finding in findings:
            print(finding)
        print(f"rows: {done.folder / ROWS}")
    if any(finding.level == "error" for finding in findings):
        raise typer.Exit(1)


def _note_cost(altered: int, settings: Settings) -> None:
    """What is ahead, in what costs the time."""
    from holdfast.attacks import PRINTED_STEPS

    each, what = settings.steps * settings.restarts, "gradients"
    if settings.optimiser in PRINTED_STEPS:
        each = PRINTED_STEPS[settings.optimiser]
    elif settings.optimiser in ("nes", "spsa"):
        each, what = settings.budget, "images shown to the model"
    note(f"{altered:,} attacks of {each:,} {what} each: {altered * each:,} in all")


def _threats(text: str, attacks: str) -> list[Threat]:
    """The threat; for ER-Recall both sides where it does not say who is altered."""
    from holdfast.threat import Threat

    threat = Threat.parse(text)
    note_threats(threat)
    if attacks == "er-recall" and text.strip().startswith(threat.norm):
        return [threat, Threat.parse(f"candidates:{text.strip()}")]
    return [threat]


def _folder(
    name: str,
    images: ImageSet,
    threats: Sequence[Threat],
    settings: Settings,
    queries: int | None,
    candidates: int | None,
    seed: int,
) -> str:
    """A folder's name that tells apart what differs most often; what else differs is refused by its hash."""
    from holdfast.attacks import PRINTED_STEPS

    size = "-".join(str(threat).replace(":", "_").replace("/", "over") for threat in threats)
    drawn = "" if queries is None else f"-q{queries}-c{candidates or 'rest'}-s{seed}"
    effort = (
        f"{settings.steps}x{settings.restarts}" if "pgd" in str(settings.optimiser) else f"{settings.budget}"
    )
    if settings.optimiser in PRINTED_STEPS:
        effort = f"{PRINTED_STEPS[settings.optimiser]}x1"
    return f"{images.name}-{name}-{size}-{settings.optimiser}{effort}{drawn}"


def print_er_recall(done: ErRecall, title: str) -> None:
    """Recall without and under the attack for each threat and K."""
    print_table(
        ["threat", "K", "queries", "chance", "recall", "er_recall", "95 % interval", "robust_recall"],
        [
            [
                line.threat,
                str(line.k),
                str(line.queries),
                number(line.chance),
                number(line.recall),
                number(line.er_recall),
                "{:.3f}–{:.3f}".format(*line.interval["er_recall"]),
                number(line.robust_recall),
            ]
            for line in done.table
        ],
        title=title,
    )


def print_suite(scores: SuiteScores, name: str) -> None:
    """What each attack reached, and the scores made of it."""
    from holdfast.evaluate.scores import shown

    print_table(
        ["attack", "before", "after", "95 % interval", *scores.estimates],
        [
            [
                part,
                shown(part, scores.before[part]),
                shown(part, reached),
                "–".join(shown(part, end) for end in scores.interval[part]),
                *(
                    f"{score.parts[part]:.1f}" if part in score.parts else "–"
                    for score in scores.estimates.values()
                ),
            ]
            for part, reached in scores.reached.items()
        ],
        title=f"{name}, within {scores.threat.partition(':')[2]}: {scores.trials:,} trials of each attack, "
        f"by {scores.optimiser}",
    )
    if scores.clean_recall is not None:
        print(
            f"Recall@1 {scores.clean_recall:.1f} %; {scores.robust_recall_all:.1f} % of the queries keep a right "
            "first hit under every attack on them"
        )
    for title, score in scores.estimates.items():
        print(f"{title} {score.value:.1f} ({score.interval[0]:.1f}–{score.interval[1]:.1f})")
