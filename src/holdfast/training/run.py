"""A training run from config to checkpoint, in a folder that can be resumed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from holdfast import data, models
from holdfast.data import Dataset, ImageSet
from holdfast.errors import ConfigError, RunError
from holdfast.files import atomic_write, exclusive
from holdfast.metrics import rank
from holdfast.metrics.summary import hit_rate
from holdfast.models import Embedder
from holdfast.spec import ImageSpec
from holdfast.training.config import TrainConfig, differences, parse, read_toml
from holdfast.training.defences import build_defence, defence_class
from holdfast.training.loop import Outcome, fit
from holdfast.training.randomness import derive

CONFIG = "config.toml"
VALIDATION_IMAGES = 2000


@dataclass(frozen=True)
class Run:
    """A run's folder with what it holds."""

    folder: Path
    config: TrainConfig
    outcome: Outcome
    embedder: Embedder
    metrics: dict[str, float]


def train(
    config: TrainConfig, out: Path, *, warn: Callable[[str], None] = lambda line: print(line, file=sys.stderr)
) -> Run:
    """Train what `config` describes into the folder `out`; call again to go on after a stop.

    The folder gets `config.toml`, `log.jsonl`, `state.safetensors` and, at the end, the checkpoint
    `model.safetensors` with its `card.json`.
    """
    _check_folder(out, config)
    dataset = load_data(config)
    embedder = build_embedder(config, dataset.train.spec)
    config = settle(config, dataset, embedder)
    training, validation = _hold_out(dataset.train, config)
    labels = training.require_labels("training")
    classes = int(labels.max()) + 1
    defence = build_defence(config.defence, classes)
    sampler = defence.sampler(labels, config.train.batch, config.seed)
    embedder.freeze_batch_norm = config.train.freeze_batch_norm
    metrics: dict[str, float] = {}

    def validate() -> dict[str, float]:
        assert validation is not None
        metrics.update(validation_recall(embedder, validation))
        return dict(metrics)

    with exclusive(out, "training"):
        atomic_write(out / CONFIG, config.to_toml())
        outcome = fit(
            embedder,
            training,
            labels,
            sampler,
            defence,
            config.train,
            seed=config.seed,
            folder=out,
            validate=validate if validation is not None else None,
            warn=warn,
        )
        embedder.eval()
        if outcome.finished:
            models.save(
                embedder,
                out,
                config=config.model_dump(mode="json"),
                data=dataset.name,
                seed=config.seed,
                metrics=metrics,
            )
    return Run(out, config, outcome, embedder, metrics)


def load_data(config: TrainConfig) -> Dataset:
    """The config's data set in the shape it asks for."""
    wanted = config.data
    spec = None
    if wanted.image_size is not None or wanted.channels is not None:
        natural = data.natural_spec(wanted.name)
        spec = ImageSpec(
            wanted.channels or natural.channels,
            wanted.image_size or natural.height,
            wanted.image_size or natural.width,
            wanted.fit,
        )
    return data.load(wanted.name, spec=spec, split=wanted.split)


def settle(config: TrainConfig, dataset: Dataset, embedder: Embedder) -> TrainConfig:
    """The config with everything that was left open decided, so that the folder's copy says it all."""
    spec = dataset.train.spec
    photos = spec.channels == 3
    table = config.model_dump()
    table["data"].update(split=dataset.split, image_size=spec.height, channels=spec.channels, fit=spec.fit)
    train_table = table["train"]
    if train_table["crop"] is None:
        train_table["crop"] = spec.height // 8 if photos else 0
    if train_table["flip"] is None:
        train_table["flip"] = photos
    table["model"].update(dim=embedder.dim, unit_norm=embedder.unit_norm)
    return parse(table)


def build_embedder(config: TrainConfig, spec: ImageSpec) -> Embedder:
    """The config's network with its first weights, which depend on the seed alone."""
    unit_norm = config.model.unit_norm
    if unit_norm is None:
        unit_norm = defence_class(config.defence.name).unit_norm
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(config.seed, "weights"))
        return models.build(
            config.model.name,
            spec=spec,
            dim=config.model.dim,
            unit_norm=unit_norm,
            weights=config.model.weights,
            **config.model.options,
        )


def validation_recall(embedder: Embedder, images: ImageSet) -> dict[str, float]:
    """Hit rate at 1 among the held-out images, each asked against all others."""
    vectors = embedder.embed(images)
    labels = torch.from_numpy(images.require_labels("validation"))
    everyone = torch.arange(len(images))
    blocks = rank(vectors, vectors, labels, labels, self_match=everyone, ks=(1,))
    first = np.concatenate([outcome.first_rank.numpy() for _, outcome in blocks])
    return {"hit_rate_1": hit_rate(first, 1) or 0.0}


def _hold_out(images: ImageSet, config: TrainConfig) -> tuple[ImageSet, ImageSet | None]:
    labels = images.require_labels("training")
    if config.data.validation == 0:
        return images, None
    kept, held = data.hold_out(labels, config.data.validation, derive(config.seed, "validation") % 2**32)
    if len(held) < 2:
        return images, None
    return images.take(kept), images.take(held[:VALIDATION_IMAGES])


def _check_folder(out: Path, config: TrainConfig) -> None:
    """Refuse a folder that holds something else, before any work is done."""
    if (out / models.CARD).exists():
        raise RunError(f"{out} holds a finished run; choose another --out, or remove it to train anew")
    if not out.exists():
        return
    if not out.is_dir():
        raise RunError(f"{out} is a file; --out names a folder")
    if not (out / CONFIG).exists():
        if any(entry.name != ".lock" for entry in out.iterdir()):
            raise RunError(f"{out} is not empty and not a run; choose another --out")
        return
    stored = parse(read_toml(out / CONFIG))
    unlike = [line for line in differences(stored, config) if " None asked)" not in line]
    if unlike:
        raise RunError(f"{out} was begun with another config: {'; '.join(unlike)}; choose another --out")


def read_config(folder: Path) -> TrainConfig:
    """The config that a run's folder was trained with."""
    path = folder / CONFIG
    if not path.exists():
        raise ConfigError(f"{folder} is not a run: it has no {CONFIG}")
    return parse(read_toml(path))
