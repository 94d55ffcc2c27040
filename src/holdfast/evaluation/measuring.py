"""Measure, attack and certify a model in one call, with the folders and defaults of the command line.

evaluate("runs/first", data="cub")
evaluate("runs/first", data="cub", attacks="ers", threat="linf:8/255")
certify("runs/first", "query:linf:2/255", data="cub")
certify(embedder, smooth="sigma=0.1,n=1000", data="photos/")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from holdfast.attacks import PRINTED_STEPS, Settings
from holdfast.attacks.noisy import COPIES, STEPS
from holdfast.attacks.objectives.er_recall import SOURCES
from holdfast.data import ImageSet, Labels
from holdfast.errors import ConfigError, ModelError
from holdfast.evaluation.certify import Certification
from holdfast.evaluation.certify import certify as certify_ranks
from holdfast.evaluation.curve import Curve, certified_curve
from holdfast.evaluation.draw import KS
from holdfast.evaluation.er_recall import ErRecall, er_recall
from holdfast.evaluation.run import KS as RETRIEVAL_KS
from holdfast.evaluation.run import Evaluation
from holdfast.evaluation.run import evaluate as retrieve
from holdfast.evaluation.smoothing import SmoothedCertification, certify_smoothed
from holdfast.evaluation.spread import Spread, spread_over
from holdfast.evaluation.subject import Model, Subject, found
from holdfast.evaluation.suite import AttackedSuite, attack_suite, chosen_attacks
from holdfast.evaluation.validity import cross_check
from holdfast.methods import bound_method
from holdfast.models import Embedder, Smoothed
from holdfast.progress import Say, note
from holdfast.proofs.smoothing import Smoothing, check_samples, parse_smoothing
from holdfast.threat import Threat

__all__ = ["certify", "evaluate"]

Data = str | Path | ImageSet | None
ER_RECALL = "er-recall"


def evaluate(
    model: Model | Subject | Callable[[], Subject],
    data: Data = None,
    *,
    attacks: str | None = None,
    threat: str | Threat | None = None,
    queries: int | str | Path | None = None,
    gallery: str | Path | None = None,
    labels: Labels | None = None,
    without_duplicates: bool = False,
    candidates: int | None = None,
    k: Sequence[int] | None = None,
    seed: int = 0,
    optimiser: str | None = None,
    steps: int | None = None,
    step: float | None = None,
    restarts: int = 1,
    budget: int = 1000,
    ca_queries: int = 100,
    check_black_box: int | None = None,
    out: str | Path | None = None,
    on: str = "local",
    workers: int | None = None,
    say: Say = note,
) -> Evaluation | AttackedSuite | ErRecall:
    """Measure retrieval on a data set's test part; with `attacks`, what an attacker within `threat` can do to it.

    `attacks` is `ers` (all of ERS and ARS), `er-recall`, or some attacks such as `qa+,gtm`. `model` and `data` are
    those of `evaluation.subject`, or `model` is a subject, or a function that finds one, called once all else is known
    to be good. `queries` is how many are drawn, or a folder of them to look for in the folder `gallery`. Labels are the
    names of folders, or those of the table `labels`. `without_duplicates` leaves out images that are nearly copies.
    Rows go into `out`, by default below the model's folder. A stopped evaluation goes on where it was. `say` gets what
    it will cost before it starts.
    """
    if attacks is None and threat is not None:
        raise ConfigError("a threat is for attacks: say which, for example ers", option="attacks")
    asked = queries if isinstance(queries, str | Path) else None
    count = queries if isinstance(queries, int) else None
    with spread_over(on, workers) as spread:
        about = found(
            model,
            data,
            say,
            queries=asked,
            gallery=gallery,
            labels=labels,
            without_duplicates=without_duplicates,
        )
        if attacks == ER_RECALL and about.images.roles is not None:
            raise ConfigError(
                "er-recall draws queries and candidates from one set of images; give one without such roles",
                option="attacks",
            )
        if attacks == ER_RECALL:
            count, candidates = count or 1000, candidates or 1000
        drawn = {"queries": count, "candidates": candidates, "seed": seed}
        measuring = _Measuring(about, out, drawn, spread, say)
        if attacks is None:
            return measuring.retrieval(k)
        settings = Settings(optimiser, steps or (100 if attacks == ER_RECALL else 32), step, restarts, budget)
        settings, within = _usable(settings, about, say), threat or "linf:8/255"
        done: AttackedSuite | ErRecall
        if attacks != ER_RECALL:
            repeated = 10 if check_black_box is None else check_black_box
            done = measuring.suite(attacks, _parsed(within), settings, repeated)
        elif check_black_box:
            raise ConfigError("only the suite is repeated with nes, not er-recall", option="check_black_box")
        else:
            done = measuring.er_recall(_both_sides(within), settings, k, ca_queries)
    if about.home.is_dir():
        return replace(done, findings=(*done.findings, *cross_check(done.rows, about.home)))
    return done


def certify(
    model: Model | Subject | Callable[[], Subject],
    threat: str | Threat | Sequence[str | Threat] = (),
    data: Data = None,
    *,
    smooth: str | Smoothing | None = None,
    queries: int = 1000,
    candidates: int = 1000,
    k: Sequence[int] = KS,
    seed: int = 0,
    method: str = "interval",
    clip: bool = True,
    marks: Sequence[int] = (),
    attacks: Sequence[float] = (),
    out: str | Path | None = None,
    on: str = "local",
    workers: int | None = None,
    say: Say = note,
) -> Certification | Curve | SmoothedCertification:
    """Prove, for a data set's test part, which hits no attacker within a threat can move.

    `query:linf:auto` finds the largest eps of each query. With `smooth` instead of a threat the smoothed search is
    certified in ℓ2; `marks` are smaller numbers of samples to write down as well, `attacks` ℓ2 sizes to attack within.
    The rest is as for `evaluate`.
    """
    threats = [_parsed(one) for one in ([threat] if isinstance(threat, str | Threat) else threat)]
    if bool(threats) == bool(smooth):
        raise ConfigError(
            "give one thing to certify against: a threat such as query:linf:0.1, or how the search is smoothed, "
            "such as sigma=0.1,n=1000",
            option="threat",
        )
    if smooth is not None and (method != "interval" or not clip):
        raise ConfigError(
            "a method of bounds and clipping are for threats; smoothing has neither", option="smooth"
        )
    if smooth is None and (marks or attacks):
        raise ConfigError("marks and attacks go with smoothing", option="smooth")
    _tell_remarks(threats, say)
    how = parse_smoothing(smooth) if isinstance(smooth, str) else smooth
    if how is not None:
        check_samples(how, max(k), max(k))
    with spread_over(on, workers) as spread:
        about = found(model, data, say)
        drawn = {"queries": queries, "candidates": candidates, "seed": seed}
        measuring = _Measuring(about, out, drawn, spread, say)
        if smooth is None or how is None:
            return measuring.bounded(threats, k, method, clip)
        return measuring.smoothed(
            how, smooth if isinstance(smooth, str) else _in_words(how), k, marks, attacks
        )


@dataclass(frozen=True, eq=False)
class _Measuring:
    """What every kind of evaluation is told: of whom, where to, on which draw, by whom, and whom to tell."""

    about: Subject
    out: str | Path | None
    drawn: dict[str, Any]
    spread: Spread
    say: Say

    def place(self, room: str, name: str, more: str = "") -> Path:
        """The folder asked for, or one below the model's that names the draw where not every image is asked."""
        if self.out is not None:
            return Path(self.out)
        queries, candidates = self.drawn["queries"], self.drawn["candidates"]
        size = "" if queries is None else f"-q{queries}-c{candidates or 'rest'}-s{self.drawn['seed']}"
        return self.about.home / room / f"{self.about.name}{name}{size}{more}"

    def retrieval(self, k: Sequence[int] | None) -> Evaluation:
        about, roles = self.about, self.about.images.roles
        available = self.drawn["candidates"] or len(about.images) - 1
        if roles is not None and self.drawn["queries"] is None:
            available = int(roles.gallery.sum())
        if k is not None and max(k) > available:
            raise ConfigError(
                f"{max(k)} is more than the {available} candidates of a query; ask for fewer", option="k"
            )
        place = self.place("evaluations", "" if about.split is None else f"-{about.split}")
        ks = k or RETRIEVAL_KS
        done = retrieve(about.embedder, about.images, place, ks=ks, spread=self.spread, **self.drawn)
        if len(set(done.rows.columns["label"].tolist())) == 1:
            self.say("all queries are of one class: every hit is right, and the numbers say nothing")
        return done

    def er_recall(
        self, threats: Sequence[Threat], settings: Settings, k: Sequence[int] | None, ca_queries: int
    ) -> ErRecall:
        _tell_remarks(threats[:1], self.say)
        queries = self.drawn["queries"]
        altered = sum(queries if t.who == "query" else SOURCES * min(ca_queries, queries) for t in threats)
        self.say(_cost(altered, settings))
        return er_recall(
            self.about.embedder,
            self.about.images,
            self.place("attacks", _attacked(ER_RECALL, threats, settings)),
            threats,
            ca_queries=ca_queries,
            ks=k or KS,
            settings=settings,
            spread=self.spread,
            **self.drawn,
        )

    def suite(self, attacks: str, threat: Threat, settings: Settings, check_black_box: int) -> AttackedSuite:
        _tell_remarks([threat], self.say)
        roles = self.about.images.roles
        everyone = len(self.about.images) if roles is None else int(roles.query.sum())
        asked, kinds = self.drawn["queries"] or everyone, len(chosen_attacks(attacks))
        self.say(_cost(asked * kinds, settings))
        if check_black_box and settings.optimiser != "nes":
            self.say(_cost(min(check_black_box, asked) * kinds, replace(settings, optimiser="nes")))
        return attack_suite(
            self.about.embedder,
            self.about.images,
            self.place("attacks", _attacked(attacks.replace(",", "_"), [threat], settings)),
            threat,
            attacks=attacks,
            settings=settings,
            check_black_box=check_black_box,
            spread=self.spread,
            **self.drawn,
        )

    def smoothed(
        self, how: Smoothing, named: str, k: Sequence[int], marks: Sequence[int], attacks: Sequence[float]
    ) -> SmoothedCertification:
        embedder = self.about.embedder
        if isinstance(embedder, Smoothed):
            raise ModelError("the model is smoothed already")
        queries, candidates, samples = self.drawn["queries"], self.drawn["candidates"], how.first + how.n
        self.say(
            f"{queries:,} queries of {samples:,} samples and {candidates:,} candidates of {how.gallery:,}: "
            f"{queries * samples + candidates * how.gallery:,} images through the network"
        )
        if attacks:
            each = queries * len(attacks)
            self.say(
                f"attacks: {each * COPIES * STEPS:,} more with gradients, and {each * samples:,} to search"
            )
        more = "".join([*(f"-n{mark}" for mark in marks), *(f"-l2_{size:g}" for size in attacks)])
        return certify_smoothed(
            embedder,
            self.about.images,
            self.place("certifications", f"-{named.replace(',', '-')}", more),
            how,
            ks=k,
            marks=marks,
            attacks=attacks,
            spread=self.spread,
            **self.drawn,
        )

    def bounded(
        self, threats: Sequence[Threat], k: Sequence[int], method: str, clip: bool
    ) -> Certification | Curve:
        embedder = self.about.embedder
        if isinstance(embedder, Smoothed):
            raise ModelError("the model is smoothed already")
        if not isinstance(embedder, Embedder):
            raise ModelError(
                "the model has no layers that bounds could pass; certify it by smoothing", option="smooth"
            )
        named = "".join(f"-{_in_folder(threat)}" for threat in threats)
        place = self.place(
            "certifications", f"{named}-{bound_method(method).stored}{'' if clip else '-unclipped'}"
        )
        settings = {**self.drawn, "ks": k, "method": method, "clip": clip, "spread": self.spread}
        if not any(threat.eps is None for threat in threats):
            return certify_ranks(embedder, self.about.images, place, threats, **settings)
        if len(threats) > 1:
            raise ConfigError("ask for an auto threat by itself; its table is another one", option="threat")
        return certified_curve(embedder, self.about.images, place, threats[0], **settings)


def _parsed(threat: str | Threat) -> Threat:
    return Threat.parse(threat) if isinstance(threat, str) else threat


def _both_sides(threat: str | Threat) -> list[Threat]:
    """The threat to altered queries, and also to altered candidates where it does not say who is altered."""
    found = _parsed(threat)
    if isinstance(threat, str) and threat.strip().startswith(found.norm):
        return [found, Threat.parse(f"candidates:{threat.strip()}")]
    return [found]


def _tell_remarks(threats: Sequence[Threat], say: Say) -> None:
    """What a user should know about the threats asked for."""
    for line in dict.fromkeys(threat.remark for threat in threats):
        if line is not None:
            say(line)


def _usable(settings: Settings, about: Subject, say: Say) -> Settings:
    """The settings with an optimiser chosen that the model allows."""
    chosen = settings.named(about.embedder)
    if settings.optimiser is None and chosen.optimiser != "pgd":
        say(
            f"this model gives no gradients: attacks are black-box ({chosen.optimiser}, {chosen.budget} queries each)"
        )
    return chosen


def _cost(altered: int, settings: Settings) -> str:
    """What is ahead, in what costs the time."""
    each, what = settings.steps * settings.restarts, "gradients"
    if settings.optimiser in PRINTED_STEPS:
        each = PRINTED_STEPS[settings.optimiser]
    elif settings.optimiser in ("nes", "spsa"):
        each, what = settings.budget, "images shown to the model"
    return f"{altered:,} attacks of {each:,} {what} each: {altered * each:,} in all"


def _attacked(name: str, threats: Sequence[Threat], settings: Settings) -> str:
    """A folder's name that tells apart what differs most often; what else differs is refused by its hash."""
    effort = (
        f"{settings.steps}x{settings.restarts}" if "pgd" in str(settings.optimiser) else f"{settings.budget}"
    )
    if settings.optimiser in PRINTED_STEPS:
        effort = f"{PRINTED_STEPS[settings.optimiser]}x1"
    return f"-{name}-{'-'.join(map(_in_folder, threats))}-{settings.optimiser}{effort}"


def _in_folder(threat: Threat) -> str:
    return str(threat).replace(":", "_").replace("/", "over")


def _in_words(how: Smoothing) -> str:
    """As it is written on the command line: sigma, and whatever differs from the defaults."""
    usual = {field.name: field.default for field in fields(Smoothing)}
    return ",".join(f"{name}={value}" for name, value in asdict(how).items() if value != usual[name])
