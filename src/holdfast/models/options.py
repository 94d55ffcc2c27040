"""What a user says of a model that does not say it itself: size, pixels, layout, pooling.

They are arguments of `holdfast.load`, or stand behind the model's name: `model.onnx?size=224&mean=0.5&std=0.5`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args
from urllib.parse import parse_qsl

from holdfast.errors import ModelError, unknown_name
from holdfast.models.outputs import POOLS, Pool
from holdfast.spec import ImageSpec

Layout = Literal["nchw", "nhwc"]
"""Whether a file's input has its channels first or last."""


@dataclass(frozen=True)
class Options:
    """What is asked of a model as it is opened; None: what the model says."""

    spec: ImageSpec | None = None
    size: int | None = None
    channels: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    layout: Layout | None = None
    normalise: bool | None = None
    """Whether vectors are brought to length 1."""
    pool: Pool | None = None

    @property
    def images(self) -> ImageSpec | None:
        """The images that the model is to take, if that is said."""
        if self.size is None:
            return self.spec
        usual = self.spec or ImageSpec(3, 1, 1)
        channels = usual.channels if self.channels is None else self.channels
        return ImageSpec(channels, self.size, self.size, usual.fit, usual.resample)

    def given(self) -> dict[str, Any]:
        """The options by which the model is found again; the spec is the gallery's own."""
        return {
            field.name: value
            for field in fields(self)
            if field.name != "spec" and (value := getattr(self, field.name)) is not None
        }

    def behind(self, name: str) -> str:
        """`name` with these options behind it."""
        said = "&".join(f"{key}={_text(value)}" for key, value in self.given().items())
        return f"{name}?{said}" if said else name

    def check(self, name: str, takes: frozenset[str]) -> None:
        """Refuse what a model does not take: it says so itself, or has no use for it."""
        for option in self.given():
            if option not in takes:
                known = ", ".join(sorted(takes)) or "no options"
                raise ModelError(f"{name} does not take {option}, which it says itself; it takes {known}")


def options(given: Mapping[str, Any], spec: ImageSpec | None = None) -> Options:
    """Checked options from values or their texts."""
    known = {field.name for field in fields(Options)} - {"spec"}
    made: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            raise ModelError(unknown_name("option of a model", name, known))
        if value is not None:
            made[name] = _value(name, value)
    return Options(spec, **made)


def parted(text: str, spec: ImageSpec | None, given: Mapping[str, Any]) -> tuple[str, Options]:
    """A model's name and all options: those behind the name, and those given, which go first."""
    name, mark, rest = text.rpartition("?")
    if not mark or "=" not in rest:
        return text, options(given, spec)
    behind = options(dict(parse_qsl(rest)))
    return name, replace(behind, **options(given, spec).given(), spec=spec)


def _value(name: str, value: Any) -> Any:
    if name in ("size", "channels"):
        return _whole(name, value)
    if name in ("mean", "std"):
        return _numbers(name, value)
    if name == "normalise":
        words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
        found = words.get(str(value).lower())
        if found is None:
            raise ModelError(f"normalise is true or false, not '{value}'")
        return found
    allowed = POOLS if name == "pool" else get_args(Layout)
    if value not in allowed:
        raise ModelError(f"{name} is one of {', '.join(allowed)}, not '{value}'")
    return value


def _whole(name: str, value: Any) -> int:
    try:
        return int(value)
    except ValueError:
        raise ModelError(f"{name} is a whole number, not '{value}'") from None


def _numbers(name: str, value: Any) -> tuple[float, ...]:
    if isinstance(value, int | float):
        return (float(value),)
    parts = value.strip("[]() ").split(",") if isinstance(value, str) else list(_sequence(name, value))
    try:
        return tuple(float(part) for part in parts)
    except (TypeError, ValueError):
        raise ModelError(f"{name} is a number or three such as 0.485,0.456,0.406, not '{value}'") from None


def _sequence(name: str, value: Any) -> Sequence[Any]:
    if not isinstance(value, Sequence):
        raise ModelError(f"{name} is a number or one for each channel, not {value!r}")
    return value


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(f"{part:g}" if f"{part:g}" == repr(part) else repr(part) for part in value)
    return str(value).lower() if isinstance(value, bool) else str(value)
