"""A training run from config to checkpoint, in a folder that can be resumed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from holdfast import data, models
from holdfast.data import Dataset, ImageSet
from holdfast.errors import ConfigError, RunError
from holdfast.files import atomic_write, exclusive
from holdfast.metrics import rank
from holdfast.metrics.summary import hit_rate
from holdfast.models import Embedder
from holdfast.models.parts import Head, learn_only
from holdfast.models.projected import projected
from holdfast.randomness import derive
from holdfast.spec import ImageSpec
from holdfast.training.arithmetic import Arithmetic, channels_last, choose
from holdfast.training.augment import prepared
from holdfast.training.config import TrainConfig, differences, merge, parse, read_toml
from holdfast.training.defences import Defence, build_defence, defence_class
from holdfast.training.features import begin_with_components, cached_features, clean_features, drop_features
from holdfast.training.loop import LOG, STATE, Images, Outcome, fit, total_steps
from holdfast.training.processes import count, is_first, joined, wait_for_all
from holdfast.training.state import read_notes

CONFIG = "config.toml"
VALIDATION_IMAGES = 2000
PLAIN = ("triplet", "margin")
"""Defences that do nothing with images but embed them."""


@dataclass(frozen=True)
class Run:
    """A run's folder with what it holds."""

    folder: Path
    config: TrainConfig
    outcome: Outcome
    embedder: Embedder
    metrics: dict[str, float]
    validation: ImageSet | None = None
    """The held-out images that the metrics are of."""


def train(
    config: TrainConfig, out: Path, *, say: Callable[[str], None] = lambda line: print(line, file=sys.stderr)
) -> Run:
    """Train what `config` describes into the folder `out`; call again to go on after a stop.

    The folder gets `config.toml`, `log.jsonl`, `state.safetensors` and, at the end, the checkpoint
    `model.safetensors` with its `card.json`.
    """
    with joined():
        return _train(config, out, say if is_first() else lambda line: None)


def _train(config: TrainConfig, out: Path, say: Callable[[str], None]) -> Run:
    begun, asked = _stored_config(out, config), config.train
    config = begun or config
    device = models.device_of(asked.device if "device" in asked.model_fields_set else config.train.device)
    wanted = asked.precision if "precision" in asked.model_fields_set else config.train.precision
    _check_plain(config)
    base = model_to_go_on_from(config)
    dataset = load_data(config, base)
    with _seeded(config.seed, "defence"):
        defence = build_defence(config.defence, max(2, len(dataset.train.classes)))
    if base is None:
        embedder = build_embedder(config, dataset.train.spec, defence)
    else:
        embedder = with_head(base, config, dataset.train.spec, defence)
    config = begun or settle(config, dataset, embedder)
    training, validation = _hold_out(defence.images(dataset), config)
    labels = training.require_labels("training")
    sampler = defence.sampler(labels, config.train.batch, config.seed)
    embedder.freeze_batch_norm = config.train.freeze_batch_norm
    learn_only(embedder, config.train.part)
    if device.type != "cpu" and config.train.part == "head":
        raise ConfigError(
            "a head on kept features trains on the processor, in seconds; leave train.device out"
        )
    embedder.to(device)
    defence.to(device)
    with _seeded(config.seed, "prepare"):
        remarks = defence.prepare(embedder)
    metrics: dict[str, float] = {}

    model: nn.Module = embedder
    drawn: Images = training
    watched: Tensor | None = None

    def validate() -> dict[str, float]:
        if validation is not None:
            vectors = embedder.embed(validation) if watched is None else _through(model, watched)
            metrics.update(validation_recall(vectors, embedder.as_candidates(vectors), validation))
        return dict(metrics)

    present = [training.classes[label] for label in np.unique(labels).tolist()]
    for line in (dataset.reading, data.classes_line(present), *remarks):
        say(line)
    alone = int((np.unique(labels, return_counts=True)[1] == 1).sum())
    if alone:
        say(
            f"{alone:,} classes have a single image, which has no partner: it is left out of groups of one class"
        )
    size = sum(parameter.numel() for parameter in embedder.parameters())
    learning = sum(parameter.numel() for parameter in embedder.parameters() if parameter.requires_grad)
    what = f"{size:,} parameters" if learning == size else f"{learning:,} of {size:,} parameters learn"
    steps = total_steps(config.train, len(training), defence)
    gradients = _rounded(steps * defence.gradients(config.train.batch))
    say(
        f"training {config.model.name} ({what}) on {len(training):,} images of {dataset.name}: "
        f"{steps:,} steps of {config.train.batch}, {gradients} image gradients"
    )
    arithmetic = None
    if device.type != "cpu":
        if wanted == "bfloat16":
            raise ConfigError(
                f"bfloat16 is measured on the processor alone; on {device} leave train.precision out"
            )
        say(f"training on {device}, in float32")
    elif config.train.part != "head":
        first = prepared(training.batch(sampler.indices(0)), crop=0, flip=False, noise=0)
        notes = read_notes(out / STATE)
        before = Arithmetic.parse(notes.get("precision", "")) if notes else None
        step = int(notes.get("step", 0))
        arithmetic = choose(embedder, first, wanted, defence.lower, before, step, say=say)
    elif wanted == "bfloat16":
        raise ConfigError("a head on kept features trains in float32; leave train.precision at auto")
    # No process looks for a stored config after the first one has written it.
    wait_for_all()
    with exclusive(out, "training") if is_first() else nullcontext():
        if begun is None and is_first():
            atomic_write(out / CONFIG, config.to_toml())
        if config.train.part == "head":
            model, drawn = Head(embedder), cached_features(embedder, training, config.train, config.seed, out)
            begin_with_components(model.last, drawn)
            watched = None if validation is None else clean_features(embedder, validation)
        try:
            with nullcontext() if config.train.part == "head" else channels_last(embedder):
                outcome = fit(
                    model,
                    drawn,
                    labels,
                    sampler,
                    defence,
                    config.train,
                    seed=config.seed,
                    folder=out,
                    data=training.digest(),
                    arithmetic=arithmetic,
                    validate=validate if validation is not None else None,
                    warn=say,
                )
        except (ConfigError, RunError):
            # Refused before it had anything to go on from: the folder is free for another try.
            if begun is None and is_first() and not (out / STATE).exists():
                for name in (CONFIG, LOG):
                    (out / name).unlink(missing_ok=True)
            raise
        embedder.eval()
        if outcome.finished and is_first():
            models.save(
                embedder,
                out,
                config=config.model_dump(mode="json"),
                data=dataset.name,
                seed=config.seed,
                precision=str(arithmetic or Arithmetic()),
                metrics={**(metrics or validate()), "cpu_seconds": outcome.cpu_seconds},
            )
            embedder.origin = str(out.resolve())
            drop_features(out)
    wait_for_all()
    return Run(out, config, outcome, embedder, metrics, validation)


def load_data(config: TrainConfig, base: Embedder | None = None) -> Dataset:
    """The config's data set in the shape it asks for, or that the model to go on from takes."""
    wanted, natural = config.data, data.natural_spec(config.data.name) if base is None else base.spec
    spec = ImageSpec(
        wanted.channels or natural.channels,
        wanted.image_size or natural.height,
        wanted.image_size or natural.width,
        wanted.fit or natural.fit,
        wanted.resample or natural.resample,
        wanted.resize or natural.resize,
    )
    return data.load(wanted.name, spec=spec, split=wanted.split, labels=wanted.labels or "deepest")


def settle(config: TrainConfig, dataset: Dataset, embedder: Embedder) -> TrainConfig:
    """The config with everything that was left open decided, so that the folder's copy says it all."""
    spec = dataset.train.spec
    photos = spec.channels == 3
    table = config.model_dump()
    table["data"].update(
        name=data.absolute(config.data.name),
        split=dataset.split,
        labels=data.lasting_labels(config.data.labels or "deepest"),
        image_size=spec.height,
        channels=spec.channels,
        fit=spec.fit,
        resample=spec.resample,
        resize=spec.resize,
    )
    train_table = table["train"]
    if train_table["crop"] is None:
        train_table["crop"] = spec.height // 8 if photos else 0
    if train_table["flip"] is None:
        train_table["flip"] = photos
    name, brought = config.model.name, models.is_brought(config.model.name)
    table["model"].update(
        name=models.lasting(name) if brought else name,
        # A model without a layer behind it keeps none when the run goes on.
        dim=config.model.dim if brought else embedder.dim,
        unit_norm=embedder.unit_norm,
    )
    return parse(table)


def build_embedder(config: TrainConfig, spec: ImageSpec, defence: Defence) -> Embedder:
    """The config's network with its first weights, which depend on the seed alone, as the defence needs it."""
    unit_norm = config.model.unit_norm
    own = {"spec", "dim", "unit_norm", "weights", "mean", "std", "freeze_batch_norm", "candidate_side"}
    reserved = own & set(config.model.options)
    if reserved:
        raise ConfigError(f"model.options are the network's own; '{min(reserved)}' is not one of them")
    if unit_norm is None:
        unit_norm = defence_class(config.defence.name).unit_norm
    with _seeded(config.seed, "weights"):
        return models.build(
            config.model.name,
            spec=spec,
            dim=defence.dim if config.model.dim is None else config.model.dim,
            unit_norm=unit_norm,
            weights=config.model.weights,
            candidate_side=defence.candidate_side,
            **config.model.options,
        )


def model_to_go_on_from(config: TrainConfig) -> Embedder | None:
    """The model that a config names, with its weights; None for a network of ours, which starts anew."""
    name = config.model.name
    if not models.is_brought(name):
        return None
    if config.model.weights is not None:
        raise ConfigError(f"{name} brings its own weights; leave model.weights out")
    side, wanted = config.data.image_size, config.data
    # The fit is not part of this: a model says itself how it takes pictures.
    spec = None if side is None else ImageSpec(wanted.channels or 3, side, side)
    found = models.find(name, spec, **config.model.options)
    if not isinstance(found, Embedder):
        raise ConfigError(f"{name} gives no gradients, so it cannot be trained; name a network in torch")
    return found


def with_head(base: Embedder, config: TrainConfig, spec: ImageSpec, defence: Defence) -> Embedder:
    """A model to go on from, as the config and the defence need it."""
    base.spec = spec
    dim = defence.dim if config.model.dim is None else config.model.dim
    with _seeded(config.seed, "weights"):
        made = base if dim is None else projected(base, dim)
    unit_norm = config.model.unit_norm
    if unit_norm is None:
        unit_norm = defence_class(config.defence.name).unit_norm
    if unit_norm is not None:
        made.unit_norm = unit_norm
    if defence.candidate_side is not None:
        defence.candidate_side.check(made.dim, made.unit_norm)
        made.candidate_side = defence.candidate_side
    if config.train.part == "head" and dim is None:
        raise ConfigError(
            f"{config.model.name} has no head of its own; say how many dimensions one gives (model.dim)"
        )
    made.card, made.origin, made.pretrained = None, None, True
    return made.train()


def _rounded(count: float) -> str:
    """A number that people can compare: 8.0 million, 250,000."""
    return f"{count / 1e6:.1f} million" if count >= 1e6 else f"{round(count, -3) or count:,.0f}"


@contextmanager
def _seeded(seed: int, place: str) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, place))
        yield


def _check_plain(config: TrainConfig) -> None:
    """Noise and cached features are for defences that do nothing but embed images."""
    train, name = config.train, config.defence.name
    asked = [
        *(["noise"] if train.noise > 0 else []),
        *([f"part '{train.part}'"] if train.part == "head" else []),
    ]
    if asked and name not in PLAIN:
        raise ConfigError(
            f"train.{asked[0]} is for {' and '.join(PLAIN)}, whose losses see images only through the network; "
            f"{name} alters or bounds them"
        )
    if train.part == "head" and count() > 1:
        raise ConfigError("a head on kept features trains in one process; start it without torchrun")


def _through(model: nn.Module, features: Tensor) -> Tensor:
    with torch.no_grad():
        vectors: Tensor = model(features)
    return vectors


def validation_recall(vectors: Tensor, candidates: Tensor, images: ImageSet) -> dict[str, float]:
    """Hit rate at 1 among the held-out images, each asked against all others; nothing where none has a partner."""
    labels = torch.from_numpy(images.require_labels("validation"))
    everyone = torch.arange(len(images))
    blocks = rank(vectors, candidates, labels, labels, self_match=everyone, ks=(1,))
    first = np.concatenate([outcome.first_rank.numpy() for _, outcome in blocks])
    rate = hit_rate(first, 1)
    return {} if rate is None else {"hit_rate_1": rate}


def _hold_out(images: ImageSet, config: TrainConfig) -> tuple[ImageSet, ImageSet | None]:
    """What trains and what is watched: pairs at least, so that each held-out image has one to find, or classes."""
    labels = images.require_labels("training")
    if config.data.validation == 0:
        return images, None
    seed = derive(config.seed, "validation") % 2**32
    if config.data.held_out == "classes":
        kept, held = data.hold_out_classes(labels, config.data.validation, seed)
    else:
        kept, held = data.hold_out(labels, config.data.validation, seed, least=2)
    if len(held) == 0:
        return images, None
    return images.take(kept), images.take(_some_of_each(held, labels, seed))


def _some_of_each(held: NDArray[np.int64], labels: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """At most `VALIDATION_IMAGES`: as many of each class as fit, but two; of many classes some, at random."""
    random = np.random.default_rng(seed)
    held = random.permutation(held)
    classes = random.permutation(np.unique(labels[held]))
    each = max(2, VALIDATION_IMAGES // len(classes))
    chosen = [held[labels[held] == label][:each] for label in classes[: VALIDATION_IMAGES // 2]]
    return np.sort(np.concatenate(chosen)[:VALIDATION_IMAGES])


def _stored_config(out: Path, asked: TrainConfig) -> TrainConfig | None:
    """The config of a run that was begun in `out`; None for a new folder.

    A folder that holds something else is refused before any work is done, and so is a begun run of
    which something else is asked.
    """
    if (out / models.CARD).exists():
        raise RunError(
            f"{out} holds a finished run; choose another folder, or remove it to train anew", option="out"
        )
    if not out.exists():
        return None
    if not out.is_dir():
        raise RunError(f"{out} is a file; a run needs a folder", option="out")
    if not (out / CONFIG).exists():
        if any(not entry.name.startswith(".") for entry in out.iterdir()):
            raise RunError(f"{out} is not empty and not a run; choose another folder", option="out")
        return None
    stored = read_config(out)
    if "name" in asked.data.model_fields_set:
        named = {"data": {"name": data.absolute(asked.data.name)}}
        asked = parse(merge(asked.model_dump(exclude_unset=True), named))
    if asked.data.labels is not None:
        known = {"data": {"labels": data.lasting_labels(asked.data.labels)}}
        asked = parse(merge(asked.model_dump(exclude_unset=True), known))
    if models.is_brought(asked.model.name):
        known = {"model": {"name": models.lasting(asked.model.name)}}
        asked = parse(merge(asked.model_dump(exclude_unset=True), known))
    # A run may go on in another precision or on another device, and says so (`arithmetic.choose`).
    free = ("train.precision ", "train.device ")
    unlike = [line for line in differences(stored, asked) if not line.startswith(free)]
    if unlike:
        raise RunError(
            f"{out} was begun with another config: {'; '.join(unlike)}; choose another folder", option="out"
        )
    return stored


def held_out(folder: Path) -> ImageSet:
    """The images that the run in `folder` kept from training: what settings are chosen on, not the test part."""
    config = read_config(folder)
    dataset = load_data(config)
    defence = build_defence(config.defence, max(2, len(dataset.train.classes)))
    images = _hold_out(defence.images(dataset), config)[1]
    if images is None:
        raise ConfigError(
            f"{folder} held no training images out (data.validation is {config.data.validation})"
        )
    return images


def read_config(folder: Path) -> TrainConfig:
    """The config that a run's folder was trained with.

    One of before does not say the filter, which was bicubic, nor the class folders, which were at the top.
    """
    path = folder / CONFIG
    if not path.exists():
        raise ConfigError(f"{folder} is not a run: it has no {CONFIG}")
    return parse(merge({"data": {"resample": "bicubic", "labels": "top"}}, read_toml(path)))
