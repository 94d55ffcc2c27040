"""Training: one loop; samplers, losses and schedules that defences are made of."""

from holdfast.training.config import TrainConfig, merge, parse, read_toml, under
from holdfast.training.defences import DEFENCES
from holdfast.training.loop import LOG, STATE, Outcome
from holdfast.training.run import CONFIG, Run, held_out, load_data, read_config, train

__all__ = [
    "CONFIG",
    "DEFENCES",
    "LOG",
    "STATE",
    "Outcome",
    "Run",
    "TrainConfig",
    "held_out",
    "load_data",
    "merge",
    "parse",
    "read_config",
    "read_toml",
    "train",
    "under",
]
