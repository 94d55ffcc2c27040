"""Reading a CIFAR batch, which is a pickle, without the pickle module.

A batch is a dictionary of a numpy array, lists of numbers and names. The few instructions that write such a thing are
carried out here, each at a cost that its own bytes bound: nothing is called, nothing is looked through again and
again, and a few bytes cannot ask for much memory. numpy's array is recorded, and made afterwards from checked parts.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import DataError

MAX_BYTES = 128 * 2**20
"""An official batch of 10,000 images has 31 MB …"""
MAX_STEPS = 200_000
"""… and some 30,000 instructions."""

_PIXELS = 3 * 32 * 32
_SHOWN = 80


class _Refused(Exception):
    """The pickle does what no batch needs."""


class _Array:
    """Stands in for an array: keeps the state it is given."""

    state: Any = None


@dataclass
class _Type:
    """Stands in for a dtype: keeps its name."""

    name: Any


@dataclass(frozen=True)
class _Name:
    """Something of a module that a batch may mention: it is never called, only recognised."""

    module: str
    name: str


_MARK = object()
_ARRAY = _Name("numpy", "ndarray")
_DTYPE = _Name("numpy", "dtype")
_MAKE = {_Name(f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")}
_ENCODE = _Name("_codecs", "encode")
_KNOWN = {_ARRAY, _DTYPE, _ENCODE, *_MAKE}


class _Machine:
    """The instructions of a batch, on a stack and a memory of their own."""

    def __init__(self, size: int) -> None:
        self.stack: list[Any] = []
        self.memory: dict[int, Any] = {}
        self.left = size
        """Bytes that text may still be turned into."""

    def run(self, content: bytes) -> Any:
        """What the pickle describes."""
        for steps, (opcode, argument, _) in enumerate(pickletools.genops(content)):
            if steps >= MAX_STEPS:
                raise _Refused("it has too many instructions")
            if opcode.name == "STOP":
                return self.stack.pop()
            if opcode.name in _VALUES:
                self.stack.append(argument)
            elif opcode.name in _OLD_STRINGS:
                self.stack.append(str(argument).encode("latin-1"))
            elif opcode.name in _STEPS:
                _STEPS[opcode.name](self, argument)
            else:
                raise _Refused(f"it has the instruction {opcode.name}")
        raise _Refused("it has no end")

    def since_mark(self) -> list[Any]:
        place = len(self.stack) - 1
        while self.stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise _Refused("a mark is missing")
        values = self.stack[place + 1 :]
        del self.stack[place:]
        return values

    def take(self, count: int) -> tuple[Any, ...]:
        values = tuple(self.stack[len(self.stack) - count :])
        if len(values) != count:
            raise _Refused("it takes what is not there")
        del self.stack[len(self.stack) - count :]
        return values

    def keep(self, place: int) -> None:
        self.memory[place] = self.stack[-1]

    def extend(self, values: list[Any] | tuple[Any, ...]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise _Refused("it appends to something else than a list")
        target.extend(values)

    def assign(self, values: list[Any] | tuple[Any, ...]) -> None:
        target = self.stack[-1]
        keys = values[::2]
        # Other keys can take for ever to hash.
        if type(target) is not dict or len(values) % 2 or not all(type(key) in (str, bytes) for key in keys):
            raise _Refused("it is a dictionary of something else than names")
        target.update(zip(keys, values[1::2], strict=True))

    def name(self, module: Any, name: Any) -> None:
        if type(module) is not str or type(name) is not str or (found := _Name(module, name)) not in _KNOWN:
            raise _Refused(f"it asks for {str(module)[:_SHOWN]}.{str(name)[:_SHOWN]}")
        self.stack.append(found)

    def call(self, what: Any, arguments: Any) -> None:
        if type(arguments) is not tuple or type(what) is not _Name:
            raise _Refused("it calls something")
        if what in _MAKE:
            self.stack.append(_Array())
        elif what == _DTYPE and arguments:
            self.stack.append(_Type(arguments[0]))
        elif what == _ENCODE and arguments and type(arguments[0]) is str:
            self.left -= len(arguments[0])
            if self.left < 0:
                raise _Refused("it holds more text than bytes")
            self.stack.append(arguments[0].encode("latin-1"))
        else:
            raise _Refused(f"it calls {what.module}.{what.name}")

    def build(self, state: Any) -> None:
        target = self.stack[-1]
        if type(target) is _Array:
            target.state = state
        elif type(target) is not _Type:
            raise _Refused("it sets the state of something else than an array")


_VALUES = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1"),
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
}
_OLD_STRINGS = {"STRING", "BINSTRING", "SHORT_BINSTRING"}
"""Python 2's strings, which are bytes."""
_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": lambda m, _: None,
    "FRAME": lambda m, _: None,
    "MARK": lambda m, _: m.stack.append(_MARK),
    "NONE": lambda m, _: m.stack.append(None),
    "NEWTRUE": lambda m, _: m.stack.append(True),
    "NEWFALSE": lambda m, _: m.stack.append(False),
    "EMPTY_LIST": lambda m, _: m.stack.append([]),
    "EMPTY_DICT": lambda m, _: m.stack.append({}),
    "EMPTY_TUPLE": lambda m, _: m.stack.append(()),
    "LIST": lambda m, _: m.stack.append(m.since_mark()),
    "TUPLE": lambda m, _: m.stack.append(tuple(m.since_mark())),
    "TUPLE1": lambda m, _: m.stack.append(m.take(1)),
    "TUPLE2": lambda m, _: m.stack.append(m.take(2)),
    "TUPLE3": lambda m, _: m.stack.append(m.take(3)),
    "DICT": lambda m, _: _dictionary(m),
    "APPEND": lambda m, _: m.extend(m.take(1)),
    "APPENDS": lambda m, _: m.extend(m.since_mark()),
    "SETITEM": lambda m, _: m.assign(m.take(2)),
    "SETITEMS": lambda m, _: m.assign(m.since_mark()),
    "GLOBAL": lambda m, argument: m.name(*argument.split(" ", 1)),
    "STACK_GLOBAL": lambda m, _: m.name(*m.take(2)),
    "REDUCE": lambda m, _: m.call(*m.take(2)),
    "BUILD": lambda m, _: m.build(*m.take(1)),
    "PUT": lambda m, argument: m.keep(argument),
    "BINPUT": lambda m, argument: m.keep(argument),
    "LONG_BINPUT": lambda m, argument: m.keep(argument),
    "MEMOIZE": lambda m, _: m.keep(len(m.memory)),
    "GET": lambda m, argument: m.stack.append(m.memory[argument]),
    "BINGET": lambda m, argument: m.stack.append(m.memory[argument]),
    "LONG_BINGET": lambda m, argument: m.stack.append(m.memory[argument]),
}


def _dictionary(machine: _Machine) -> None:
    values = machine.since_mark()
    machine.stack.append({})
    machine.assign(values)


def read_batch(content: bytes, name: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The images (N×3072) and labels of one batch; DataError if the pickle is anything but a plain batch."""
    if len(content) > MAX_BYTES:
        raise DataError(f"{name} has {len(content):,} bytes, more than any CIFAR-10 batch; get the set again")
    try:
        batch = _Machine(len(content)).run(content)
    except (_Refused, ValueError, IndexError, KeyError, TypeError, OverflowError) as cause:
        raise DataError(
            f"{name} is not a plain CIFAR-10 batch ({str(cause)[:_SHOWN]}); get the set again"
        ) from cause
    if type(batch) is not dict:
        raise DataError(f"{name} lacks the data or labels of a CIFAR-10 batch; get the set again")
    try:
        images = _pixels(batch.get(b"data", batch.get("data")))
        labels = _labels(batch.get(b"labels", batch.get("labels")))
    except (TypeError, ValueError) as cause:
        raise DataError(f"{name} lacks the data or labels of a CIFAR-10 batch; get the set again") from cause
    if len(labels) != len(images):
        raise DataError(f"{name} holds {len(images)} images and {len(labels)} labels; get the set again")
    return images, labels


def _labels(values: Any) -> NDArray[np.uint8]:
    if type(values) is not list or not all(type(value) is int and 0 <= value < 256 for value in values):
        raise ValueError("not a list of labels")
    return np.array(values, dtype=np.uint8)


def _pixels(array: Any) -> NDArray[np.uint8]:
    if type(array) is not _Array or type(array.state) is not tuple:
        raise TypeError("not an array")
    _, shape, kind, by_columns, content = array.state
    if (
        type(kind) is not _Type
        or type(content) is not bytes
        or kind.name not in (b"u1", "u1", b"uint8", "uint8")
        or type(shape) is not tuple
        or [type(side) for side in shape] != [int, int]
        or shape != (len(content) // _PIXELS, _PIXELS)
    ):
        raise ValueError("not an array of images")
    flat = np.frombuffer(content, dtype=np.uint8)
    return flat.reshape(shape, order="F" if by_columns else "C")
