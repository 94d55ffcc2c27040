"""One run of a plan, from training to committed rows; what is done already is not done again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from holdfast import data, models
from holdfast.attacks import PAPER, Settings
from holdfast.errors import ConfigError
from holdfast.evaluate.certify import certify
from holdfast.evaluate.er_recall import er_recall
from holdfast.files import atomic_write
from holdfast.provenance import commit, versions
from holdfast.reproduce.plan import AttackPlan, Job, Plan, SuiteAttack
from holdfast.reproduce.smoothed import run_smoothed, smoothed_is_done
from holdfast.reproduce.suites import run_suite, suite_is_done
from holdfast.rows import ROWS, config_hash, read_header
from holdfast.training import held_out, load_data, merge, parse, read_config, train
from holdfast.training.config import differences

RUN = "run.json"
CERTIFICATES, ATTACKS, SUITE, SMOOTHED = "run", "attacks", "suite", "smoothed search"


def rows_folder(folder: Path, preset: str, job: Job) -> Path:
    """Where the rows of a run are kept."""
    return folder / "rows" / preset / job.name


def missing_parts(folder: Path, preset: str, job: Job, plan: Plan) -> list[str]:
    """What of the run has no rows yet; rows of other settings are an error, never mixed in."""
    kept = rows_folder(folder, preset, job)
    missing = []
    if not (kept / RUN).exists():
        missing.append(CERTIFICATES)
    elif json.loads((kept / RUN).read_text())["hash"] != _hash(job, plan):
        raise _other_settings(kept / RUN)
    if (attacks := plan.attacks_of(job)) is not None:
        done = [_er_is_done(kept, attacks, by, plan) for by in attacks.by]
        missing += [] if all(done) else [ATTACKS]
    if (suite := plan.suite_of(job)) is not None and not suite_is_done(kept, job, suite):
        missing.append(SUITE)
    if (how := plan.smoothing_of(job)) is not None:
        sigmas = plan.methods[job.method].sigmas
        if not all(smoothed_is_done(kept, job, how, sigma) for sigma in sigmas):
            missing.append(SMOOTHED)
    return missing


def er_rows(by: SuiteAttack) -> str:
    """The file of the rows of ER-Recall."""
    return "er-recall.csv.gz" if by == "ours" else f"er-recall-{by}.csv.gz"


def _search(by: SuiteAttack, attacks: AttackPlan) -> Settings:
    return Settings(steps=attacks.steps) if by == "ours" else Settings(PAPER)


def _er_is_done(kept: Path, attacks: AttackPlan, by: SuiteAttack, plan: Plan) -> bool:
    """Whether the rows are there; those of another network or other settings are an error."""
    path = kept / er_rows(by)
    if not path.exists():
        return False
    found = read_header(path)["config"]
    tested = kept / f"{next(iter(plan.tests))}.csv.gz"
    alike = ("embedder", "images", "queries", "candidates", "seed", "ks", "threats")
    if tested.exists() and any(found[k] != read_header(tested)["config"][k] for k in alike):
        raise _other_settings(path)
    made = [found["search"][0]["steps"], found["ca_queries"], found["sources"]]
    if made != [_search(by, attacks).config(1.0)["steps"], attacks.ca_queries, attacks.sources]:
        raise _other_settings(path)
    return True


def _other_settings(rows: Path) -> ConfigError:
    return ConfigError(f"{rows} is of other settings than the plan's; remove it to run it anew")


def reproduce_job(
    folder: Path, preset: str, job: Job, plan: Plan, work: Path, say: Callable[[str], None]
) -> bool:
    """Train and test one run, and put its rows below `folder`; False if it was stopped on the way.

    The network itself stays in `work`, where a stopped run goes on.
    """
    missing = missing_parts(folder, preset, job, plan)
    if not missing:
        return True
    out = work / preset / job.name
    table: dict[str, Any] = {**job.config, **_data(job.config)}
    if (out / models.CARD).exists():
        stored = read_config(out)
        if job.start is not None:  # Where the run that it fine-tunes was, it need not be any more.
            table = merge(table, {"defence": {"start": stored.defence.start}})  # type: ignore[attr-defined]
        if unlike := differences(stored, parse(table)):
            raise ConfigError(f"{out} is of another plan: {'; '.join(unlike)}; remove it to train anew")
    else:
        if job.start is not None:
            begin = work / preset / job.start_name
            if not (begin / models.CARD).exists():
                raise ConfigError(
                    f"{job.name} fine-tunes {job.start_name}, which is not in {work}; run it first"
                )
            table = merge(table, {"defence": {"start": str(begin.resolve())}})
        say(f"{job.name}: training")
        if not train(parse(table), out, say=say).outcome.finished:
            return False
    embedder = models.load(out)
    images = held_out(out) if plan.held_out else load_data(parse(_data(job.config))).test
    kept = rows_folder(folder, preset, job)
    kept.mkdir(parents=True, exist_ok=True)
    if CERTIFICATES in missing:
        _certify(embedder, images, out, kept, job, plan, say)
    if ATTACKS in missing:
        attacks = plan.attacks_of(job)
        assert attacks is not None
        for by in attacks.by:
            if _er_is_done(kept, attacks, by, plan):
                continue
            say(f"{job.name}: attacking, {by}")
            attacked = er_recall(
                embedder,
                images,
                out / er_rows(by).removesuffix(".csv.gz"),
                job.threats,
                queries=plan.queries,
                candidates=plan.candidates,
                ca_queries=attacks.ca_queries,
                sources=attacks.sources,
                seed=job.seed,
                ks=plan.ks,
                settings=_search(by, attacks),
            )
            atomic_write(kept / er_rows(by), (attacked.folder / ROWS).read_bytes())
    if SUITE in missing:
        suite = plan.suite_of(job)
        assert suite is not None
        say(f"{job.name}: attacking")
        run_suite(embedder, images, out, kept, job, suite)
    if SMOOTHED in missing:
        how = plan.smoothing_of(job)
        assert how is not None
        for sigma in plan.methods[job.method].sigmas:
            if not smoothed_is_done(kept, job, how, sigma):
                say(f"{job.name}: smoothed search, sigma {sigma:g}")
                run_smoothed(embedder, images, out, kept, job, how, sigma)
    return True


def _certify(
    embedder: models.Embedder,
    images: data.ImageSet,
    out: Path,
    kept: Path,
    job: Job,
    plan: Plan,
    say: Callable[[str], None],
) -> None:
    """Every test's rows, and last the record that says they are all there."""
    for name, test in plan.tests.items():
        say(f"{job.name}: certifying, {name} test")
        done = certify(
            embedder,
            images,
            out / "certifications" / name,
            job.threats,
            queries=plan.queries,
            candidates=plan.candidates,
            seed=job.seed,
            ks=plan.ks,
            method=test.method,
            clip=test.clip,
            rounding=test.rounding,
            listed=0,
        )
        atomic_write(kept / f"{name}.csv.gz", (done.folder / ROWS).read_bytes())
    card = json.loads((out / models.CARD).read_text())
    record = {
        "hash": _hash(job, plan),
        "config": job.config,
        "metrics": card["metrics"],
        "trained": card["created"],
        "training_versions": card["versions"],
        "versions": versions(),
        "commit": commit(),
    }
    # Last, because a folder with this file is a finished run.
    atomic_write(kept / RUN, json.dumps(record, indent=2) + "\n")


def _hash(job: Job, plan: Plan) -> str:
    tests = {name: test.model_dump() for name, test in plan.tests.items()}
    drawn = [plan.queries, plan.candidates, plan.ks]
    settings = {"config": job.config, "start": job.start, "eps": job.eps, "tests": tests, "drawn": drawn}
    # Only certificates are named by this hash; where there are none, rows of before the switch keep theirs.
    return config_hash(settings | ({"held_out": True} if plan.held_out and tests else {}))


def _data(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config as far as its data goes, with a path that holds anywhere, and the filter of the committed rows."""
    return {"data": {"resample": "bicubic", **config["data"], "name": data.absolute(config["data"]["name"])}}
