"""Attack certified claims until 10⁶ attempts have failed; compare certificates with exact answers.

An attempt is one altered image, or one set of altered candidates (and query), measured by float32
inference and checked against every rank interval and certified hit of its query. Some are made on files that are
altered at their own size, saved, decoded, resized and searched for; some of those by HTTP. Networks include train/eval
branches, groups and subnormal weights; inference runs under switched precisions. Pairs of networks that differ in one
setting must be told apart. The value is the number of attempts that broke a claim, plus claims beyond an exact answer
and pairs that were taken for each other. `--quick` makes 20,000.
"""

from __future__ import annotations

import argparse

import torch

from _common import report


def run(attempts: int, *, networks: int, trained: bool, exact: int) -> tuple[int, int]:
    """Attempts made and violations; prints what was tried."""
    from _attempts import SHARES, Tally, try_scene
    from _doors import try_files, try_service
    from _exact import candidate_slack, query_slack
    from _scenes import scenes, twins_taken_for_each_other

    total = {name: Tally() for name in SHARES}
    by_trained = attempts // 20 if trained else 0
    each = -(-(attempts - by_trained) // networks)
    for number, scene in enumerate(scenes(networks, trained)):
        found = try_scene(scene, by_trained if scene.name == "trained" else each, seed=number)
        for name, tally in found.items():
            total[name].add(tally)
            if tally.violations:
                print(
                    f"BROKEN: {scene.name} (unit norm {scene.embedder.unit_norm}, clip {scene.clip}), {name}"
                )
    for name, tally in total.items():
        share = tally.claimed / tally.comparisons
        print(
            f"{name}: {tally.attempts:,} attempts, {tally.violations} violations; "
            f"{share:.0%} of the comparisons are claimed"
        )
    total["files"], total["http"] = try_files(attempts // 50), try_service(attempts // 500)
    for name in ("files", "http"):
        tally = total[name]
        share = tally.claimed / tally.comparisons
        print(
            f"{name}: {tally.attempts:,} attempts, {tally.violations} violations; {share:.0%} of the hits certified"
        )
    violations = sum(tally.violations for tally in total.values()) + twins_taken_for_each_other()
    for name, slack in {"query": query_slack(exact), "candidates": candidate_slack(3 * exact)}.items():
        lost = ", ".join(f"{key} {value:.4f}" for key, value in slack.lost.items())
        proved = ", ".join(f"{key} {value}" for key, value in slack.proved.items())
        print(
            f"exact, {name}: mean slack {lost}; comparisons proved: {proved}; {slack.wrong} beyond the exact answer"
        )
        violations += slack.wrong
    return sum(tally.attempts for tally in total.values()), violations


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true", help="20,000 attempts on fewer networks")
    torch.set_num_threads(1)
    if options.parse_args().quick:
        attempts, violations = run(20_000, networks=12, trained=False, exact=3)
    else:
        attempts, violations = run(1_000_000, networks=48, trained=True, exact=20)
    report(
        "soundness",
        violations,
        0,
        "lower",
        f"{attempts:,} attempts against certified claims, and exact answers",
    )


if __name__ == "__main__":
    main()
