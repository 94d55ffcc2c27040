"""The one training loop: draw a batch, augment, ask the defence for its loss, descend, write down.

Every step is a function of the state, the seed and the step's number, so a run that is killed at
any moment and resumed ends with the same bits as one that was not.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from holdfast.errors import ConfigError, RunError
from holdfast.models import Embedder
from holdfast.models.embedder import placement
from holdfast.progress import bar
from holdfast.randomness import derive
from holdfast.training import processes
from holdfast.training.arithmetic import Arithmetic, Computed
from holdfast.training.augment import prepared
from holdfast.training.average import Average
from holdfast.training.config import TrainSection
from holdfast.training.defences import Batch, Defence, Moment
from holdfast.training.log import Log
from holdfast.training.losses import telemetry
from holdfast.training.samplers import Sampler
from holdfast.training.schedules import learning_rate
from holdfast.training.state import load_state, save_state
from holdfast.training.watch import Watch, line

STATE = "state.safetensors"
LOG = "log.jsonl"


class Images(Protocol):
    """What the loop asks of a set of images."""

    def __len__(self) -> int: ...

    def batch(self, indices: Any) -> Tensor: ...


@dataclass(frozen=True)
class Outcome:
    """How a run of the loop ended."""

    step: int
    steps: int
    seconds: float
    cpu_seconds: float
    """Of all processors, and of the whole run, also where it was stopped and resumed."""

    @property
    def finished(self) -> bool:
        return self.step == self.steps


def fit(
    embedder: nn.Module,
    images: Images,
    labels: NDArray[np.int64],
    sampler: Sampler,
    defence: Defence,
    settings: TrainSection,
    *,
    seed: int,
    folder: Path,
    data: str = "",
    arithmetic: Arithmetic | None = None,
    validate: Callable[[], dict[str, float]] | None = None,
    warn: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Train `embedder` in place, or go on where `folder` has a state; interrupt to stop after a step.

    `data` is a digest of the images: a state that was made with others is refused. Without `arithmetic` the network
    computes as it is; with it, an `Embedder` computes in that precision, best inside `channels_last`.
    """
    steps = total_steps(settings, len(images), defence)
    every = settings.validate_every or max(1, steps // 10)
    optimiser = make_optimiser(embedder, defence, settings)
    learned = [p for group in optimiser.param_groups for p in group["params"]]
    model = processes.shared(_computed(embedder, arithmetic))
    modules: dict[str, nn.Module] = {"embedder": embedder, "defence": defence}
    average = Average(embedder, settings.average) if settings.average else None
    if average is not None:
        modules["average"] = average
    state = folder / STATE
    step, spent, watch = 0, 0.0, Watch()
    if state.exists():
        kept = load_state(state, modules, optimiser)
        step, watch = int(kept["step"]), Watch(float(kept["spread"]), kept.get("said", "").split())
        spent = float(kept.get("cpu_seconds", 0.0))
        if kept["data"] != data or step > steps:
            raise RunError(f"{folder} was begun with other images or more steps; train into a new folder")

    begun = time.process_time()

    def cpu_seconds() -> float:
        return spent + time.process_time() - begun

    def save() -> None:
        if not processes.is_first():
            return
        notes = {
            "step": step,
            "spread": watch.spread,
            "said": " ".join(sorted(watch.said)),
            "data": data,
            "precision": arithmetic or "",
            "cpu_seconds": cpu_seconds(),
        }
        save_state(state, modules, optimiser, notes)

    log = Log(folder / LOG, step) if processes.is_first() else None
    if log is not None and arithmetic is not None:
        log.write(step=step, precision=arithmetic.precision)
    targets = torch.from_numpy(np.ascontiguousarray(labels))
    device, _ = placement(embedder)
    started = saved = time.monotonic()
    notes = {"batch": "", "held out": ""}
    with _reproducible(), _stop_request() as stop, bar("training", steps, step) as advance:
        while step < steps and not processes.any_of(stop.is_set()):
            moment = Moment(step, steps)
            torch.default_generator.manual_seed(derive(seed, "step", step))
            if device.type == "cuda":
                torch.cuda.manual_seed_all(derive(seed, "step", step))
            chosen = sampler.indices(step)
            drawn = prepared(
                images.batch(chosen),
                crop=settings.crop or 0,
                flip=bool(settings.flip),
                noise=settings.noise,
            )
            batch = Batch(drawn.to(device), targets[chosen].to(device), chosen)
            factor = learning_rate(
                settings.schedule, moment.done, milestones=settings.milestones, decay=settings.decay
            )
            for group in optimiser.param_groups:
                group["lr"] = group["base_lr"] * factor
            embedder.train()
            terms = defence.terms(model, batch, moment)
            optimiser.zero_grad(set_to_none=True)
            terms.loss.backward()  # type: ignore[no-untyped-call]
            processes.average_gradients(learned)
            if settings.clip is not None:
                nn.utils.clip_grad_norm_(embedder.parameters(), settings.clip)
            loss = terms.loss.item()
            if not math.isfinite(loss):
                raise RunError(
                    f"the loss became {loss} at step {step + 1}; "
                    "use a lower learning rate (train.lr) or train.clip in a new run"
                )
            if step == 0:
                watch.begin(terms.embeddings)
            optimiser.step()
            step += 1
            if average is not None:
                average.follow(embedder, step)
            if log is not None and (step % settings.log_every == 0 or step == steps):
                seen = telemetry(terms.embeddings, batch.labels if terms.labels is None else terms.labels)
                seen = {"loss": loss, **seen, **terms.logs}
                log.write(step=step, lr=settings.lr * factor, **seen)
                for sentence in watch.look(step, steps, seen):
                    warn(sentence)
                    log.write(step=step, warning=sentence)
                notes["batch"] = line(seen)
            if log is not None and validate is not None and (step % every == 0 or step == steps):
                with nullcontext() if average is None else average.shown(embedder):
                    result = validate()
                log.write(step=step, **result)
                notes["held out"] = "held out " + " ".join(f"{k} {v:.3f}" for k, v in result.items())
            advance(1, "  ".join(notes.values()))
            if step == steps or time.monotonic() - saved >= settings.checkpoint_seconds:
                save()
                saved = time.monotonic()
    if step < steps:
        save()
    elif average is not None:
        average.give_to(embedder)
    return Outcome(step, steps, time.monotonic() - started, cpu_seconds())


def _computed(embedder: nn.Module, arithmetic: Arithmetic | None) -> nn.Module:
    if arithmetic is None:
        return embedder
    assert isinstance(embedder, Embedder), "an arithmetic is for embedders"
    return Computed(embedder, arithmetic.precision)


def total_steps(settings: TrainSection, images: int, defence: Defence) -> int:
    """How many steps a run over that many images has."""
    if settings.steps is not None or settings.gradients is None:
        return settings.steps or max(1, math.ceil(settings.epochs * images / settings.batch))
    each = defence.gradients(settings.batch)
    steps = int(settings.gradients // each)
    if not steps:
        raise ConfigError(
            f"a step of {settings.batch} images takes {each:,.0f} image gradients, more than the budget of "
            f"{settings.gradients:,} (train.gradients); lower defence.attack_steps or train.batch, or raise the budget"
        )
    return steps


def make_optimiser(embedder: nn.Module, defence: Defence, settings: TrainSection) -> torch.optim.Optimizer:
    """The optimiser over what the embedder and the defence learn."""
    groups: list[dict[str, Any]] = [
        {"params": [p for p in embedder.parameters() if p.requires_grad]},
        *defence.parameter_groups(),
    ]
    for group in groups:
        group["base_lr"] = group.setdefault("lr", settings.lr)
    if settings.optimiser == "sgd":
        return torch.optim.SGD(groups, momentum=0.9, weight_decay=settings.weight_decay)
    return torch.optim.Adam(groups, weight_decay=settings.weight_decay, fused=True)


@contextmanager
def _reproducible() -> Iterator[None]:
    """Deterministic kernels, and the caller's generator as it was afterwards."""
    before = torch.are_deterministic_algorithms_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    with torch.random.fork_rng(devices=[]):
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before)
            torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]


@contextmanager
def _stop_request() -> Iterator[threading.Event]:
    """An event that the first SIGINT or SIGTERM sets; a second one interrupts at once.

    An interrupt in the middle of an optimiser step would leave a state that never was, so it waits
    for the step's end.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def request(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
