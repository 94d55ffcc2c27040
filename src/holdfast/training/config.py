"""The settings of a training run: TOML in, checked values out."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, ValidationError, field_validator

from holdfast import data, presets
from holdfast.errors import ConfigError
from holdfast.training.defences import DefenceOptions, defence_class
from holdfast.training.schedules import Shape


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DataSection(_Section):
    """`[data]`: which images, how split, and the shape they are brought to."""

    name: str = "fashion-mnist-mini"
    split: Literal["closed", "open", "given"] | None = None
    labels: str | None = None
    """Which of nested folders is an image's class (deepest, top, or a depth), or a table; None: the deepest."""
    image_size: int | None = Field(default=None, ge=8, le=1024)
    channels: Literal[1, 3] | None = None
    fit: Literal["crop", "squash"] | None = None
    resample: Literal["bilinear", "bicubic"] | None = None
    """The filter that brings pictures to their size; None: bilinear, of which claims about the file are proved."""
    resize: int | tuple[int, int] | None = None
    """To what pictures are resized before their middle is cut out, as models of other libraries want it."""
    validation: float = Field(default=0.1, ge=0, le=0.5)
    """Share of the training images held out to watch the training; 0 turns it off."""
    held_out: Literal["images", "classes"] = "images"
    """Whether that share is of each class's images or of the classes, which then do not train: what an open split
    asks at the test."""


class ModelSection(_Section):
    """`[model]`: a network of ours, whose weights are new, or a model to go on from, as `holdfast.load` takes it.

    `options` are the network's own. A model to go on from gets a linear layer of `dim` dimensions behind it, or none
    where `dim` is left out.
    """

    name: str = "small"
    dim: int | None = Field(default=None, ge=2, le=4096)
    unit_norm: bool | None = None
    weights: str | None = None
    options: dict[str, Any] = {}


LENGTHS = ("epochs", "steps", "gradients")
"""Settings of `[train]` that say how long a run is; a preset's make way for one that is given."""


class TrainSection(_Section):
    """`[train]`: how long, how fast, and what is written on the way."""

    epochs: float = Field(default=10, gt=0)
    steps: int | None = Field(default=None, ge=1)
    """Overrides `epochs` where it is given."""
    gradients: int | None = Field(default=None, ge=1)
    """A budget of image gradients (images through the network and back, in the adversary's searches or in the loss)
    from which the number of steps follows; overrides `epochs`."""
    batch: int = Field(default=100, ge=4)
    lr: float = Field(default=1e-3, gt=0)
    optimiser: Literal["adam", "sgd"] = "adam"
    weight_decay: float = Field(default=0.0, ge=0)
    schedule: Shape = "cosine"
    milestones: tuple[float, ...] = ()
    decay: float = Field(default=0.1, gt=0, le=1)
    clip: float | None = Field(default=None, gt=0)
    """Largest norm of the gradient."""
    average: float = Field(default=0.0, ge=0, lt=1)
    """Decay of the running mean of the weights that the run ends with; 0: it ends with the last weights."""
    crop: int | None = Field(default=None, ge=0)
    """Pixels by which a random crop shifts an image; None: an eighth of a colour image, 0 of a grey one."""
    flip: bool | None = None
    noise: float = Field(default=0.0, ge=0, le=2)
    """Standard deviation of the Gaussian noise that every image gets by itself; not clamped."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the products while it trains. `auto`: an adversarial defence takes bfloat16 where a measurement at the start
    finds it faster, others float32. Weights, evaluation and certificates are float32 in any case."""
    device: str = Field(default="cpu", pattern="^(auto|cpu|cuda(:[0-9]+)?|mps)$")
    """Where it trains; auto: a CUDA device if there is one. The bits are those of the device."""
    part: Literal["all", "last-blocks", "head"] = "all"
    """What learns. The rest of the network is frozen, its batch norm too."""
    copies: int = Field(default=4, ge=1)
    """With `part = "head"`: of how many augmented, noisy copies of each image the features are kept."""
    freeze_batch_norm: bool = False
    log_every: int = Field(default=20, ge=1)
    validate_every: int | None = Field(default=None, ge=1)
    """In steps; None: ten times over the run."""
    checkpoint_seconds: float = Field(default=30.0, ge=0)


class TrainConfig(_Section):
    """Everything that decides what a run computes."""

    seed: int = Field(default=0, ge=0)
    data: DataSection = DataSection()
    model: ModelSection = ModelSection()
    defence: SerializeAsAny[DefenceOptions] = Field(default_factory=lambda: _defence({"name": "triplet"}))
    train: TrainSection = TrainSection()

    @field_validator("defence", mode="before")
    @classmethod
    def _choose_defence(cls, value: Any) -> Any:
        return _defence(value) if isinstance(value, Mapping) else value

    def to_toml(self) -> str:
        return tomli_w.dumps(_without_none(self.model_dump(mode="json")))


def _defence(table: Mapping[str, Any]) -> DefenceOptions:
    options = defence_class(table.get("name", "triplet")).Options
    try:
        return options.model_validate(dict(table))
    except ValidationError as error:
        raise ConfigError(explain(error, options, prefix=("defence",))) from None


def parse(table: Mapping[str, Any]) -> TrainConfig:
    """The config that a (nested) table describes; an unknown key is an error that lists the known ones."""
    try:
        return TrainConfig.model_validate(dict(table))
    except ValidationError as error:
        raise ConfigError(explain(error, TrainConfig)) from None


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"no config file at {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{path} is not a readable TOML file: {error}") from None


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes` laid over it, table by table; a None in `changes` changes nothing."""
    out = dict(base)
    for key, value in changes.items():
        if isinstance(value, Mapping):
            inner = out.get(key, {})
            if isinstance(inner, Mapping):
                value = merge(inner, value)
        if value is not None and value != {}:
            out[key] = value
    return out


def under(preset: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of a preset for the data and the defence that are given: what `given` is to be laid over."""
    asked = parse({key: given[key] for key in ("data",) if key in given}).data
    name = given.get("defence", {}).get("name")
    tables = presets.settings(preset, name, data.natural_spec(asked.name))
    if any(given.get("train", {}).get(length) is not None for length in LENGTHS):
        tables["train"] = {key: value for key, value in tables["train"].items() if key not in LENGTHS}
    return tables


def differences(stored: TrainConfig, asked: TrainConfig) -> list[str]:
    """The dotted keys that `asked` sets to something else than `stored` has, with both values.

    What was not set is not asked for: defaults do not count.
    """
    there, wanted = (
        _flat(stored.model_dump(mode="json")),
        _flat(asked.model_dump(mode="json", exclude_unset=True)),
    )
    unlike = [key for key, value in wanted.items() if value is not None and there.get(key) != value]
    return [f"{key} ({there.get(key)} there, {wanted[key]} asked)" for key in sorted(unlike)]


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            out.update(_flat(value, f"{prefix}{key}."))
        else:
            out[prefix + key] = value
    return out


def explain(error: ValidationError, model: type[BaseModel], prefix: tuple[str, ...] = ()) -> str:
    """The first problem of a validation error, in one line."""
    problem = error.errors()[0]
    place = tuple(str(part) for part in problem["loc"])
    key = ".".join((*prefix, *place))
    if problem["type"] == "extra_forbidden":
        known = sorted(_table_at(model, place[:-1]).model_fields)
        return f"unknown config key '{key}'; known here: {', '.join(known)}"
    return f"config key '{key}': {problem['msg'].lower()}, found {problem['input']!r}"


def _table_at(model: type[BaseModel], place: tuple[str, ...]) -> type[BaseModel]:
    for part in place:
        annotation = model.model_fields[part].annotation
        assert isinstance(annotation, type)
        assert issubclass(annotation, BaseModel)
        model = annotation
    return model


def _without_none(value: Any) -> Any:
    """The value without what is left open, in tables at any depth: TOML has no word for it."""
    if isinstance(value, list):
        return [_without_none(part) for part in value]
    if not isinstance(value, dict):
        return value
    return {key: _without_none(part) for key, part in value.items() if part is not None}
