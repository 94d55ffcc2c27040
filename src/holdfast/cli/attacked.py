"""`holdfast evaluate --attacks`: attacked evaluations, printed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from holdfast.cli.output import number, print_json, print_table

if TYPE_CHECKING:
    from holdfast.evaluate.er_recall import ErRecall
    from holdfast.evaluate.subject import Subject
    from holdfast.evaluate.suite import AttackedSuite


def print_attacked(done: AttackedSuite | ErRecall, about: Subject, json: bool) -> None:
    """The table of a suite or of ER-Recall, and what speaks against its numbers; exit code 1 if a number is wrong."""
    from holdfast.evaluate import ROWS
    from holdfast.evaluate.folder import ER_RECALL, SUITE

    kind, rows = done.rows.header["config"]["kind"], done.folder / ROWS
    if json:
        documents: dict[str, Callable[[Any], dict[str, Any]]] = {
            SUITE: lambda suite: suite.scores.to_json(),
            ER_RECALL: lambda recall: {"table": [asdict(line) for line in recall.table]},
        }
        told = [{"level": finding.level, "text": finding.text} for finding in done.findings]
        print_json({"rows": rows, **documents[kind](done), "findings": told})
    else:
        printers: dict[str, Callable[[Any, str], None]] = {SUITE: print_suite, ER_RECALL: print_er_recall}
        printers[kind](done, about.name)
        for finding in done.findings:
            print(finding)
        print(f"rows: {rows}")
    if any(finding.level == "error" for finding in done.findings):
        raise typer.Exit(1)


def print_er_recall(done: ErRecall, name: str) -> None:
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
        title=f"{name}, attacked by {done.rows.header['config']['search'][0]['optimiser']}",
    )


def print_suite(done: AttackedSuite, name: str) -> None:
    """What each attack reached, and the scores made of it."""
    from holdfast.evaluate.scores import shown

    scores = done.scores
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
