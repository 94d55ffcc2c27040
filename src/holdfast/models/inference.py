"""The one way in which a network computes for search and for proofs, whatever the caller's settings are.

A certificate is about one function. Autocast, a lower precision of float32 products (bfloat16 or TF32 inside oneDNN
and CUDA) and convolutions by Winograd transforms (NNPACK) change that function, and so does train mode. Inside these
blocks none of them is in force; afterwards everything is as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Condition, Lock, get_ident, local
from typing import Any

import torch
from torch import nn

from holdfast.models.modes import evaluating

_FULL = "ieee"
_INHERITED = "none"
"""Takes over the setting above it; where nothing is set at all, products are full."""


@contextmanager
def inference(module: nn.Module) -> Iterator[None]:
    """`module` as `embed` runs it: in eval mode, without gradients, in plain arithmetic."""
    with evaluating(module), plain_arithmetic(), torch.inference_mode(False), torch.no_grad():
        yield


@contextmanager
def plain_arithmetic() -> Iterator[None]:
    """No autocast, full float32 products and direct convolutions inside the block."""
    with ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        stack.enter_context(_TRAFFIC.computing())
        _PINS.enter()
        stack.callback(_PINS.leave)
        yield


@contextmanager
def tracing() -> Iterator[None]:
    """A block in which no other thread computes: torch.fx patches every module of the process while it traces."""
    with _TRAFFIC.alone():
        yield


class _Traffic(local):
    """How many blocks the current thread is in."""

    depth: int = 0


class _Crossing:
    """Any number of threads compute, or one traces. Who wants to trace comes before those who come after."""

    def __init__(self) -> None:
        self._own, self._free = _Traffic(), Condition()
        self._inside, self._waiting = 0, 0
        self._tracer: int | None = None

    @contextmanager
    def computing(self) -> Iterator[None]:
        with self._free:
            if not self._own.depth and self._tracer != get_ident():
                self._free.wait_for(lambda: self._tracer is None and not self._waiting)
            self._inside += 1
            self._own.depth += 1
        try:
            yield
        finally:
            with self._free:
                self._inside -= 1
                self._own.depth -= 1
                self._free.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        if self._tracer == get_ident():
            yield
            return
        with self._free:
            self._waiting += 1
            try:
                self._free.wait_for(lambda: self._tracer is None and self._inside == self._own.depth)
                self._tracer = get_ident()
            finally:
                self._waiting -= 1
                self._free.notify_all()
        try:
            yield
        finally:
            with self._free:
                self._tracer = None
                self._free.notify_all()


class _Pins:
    """Settings of the whole process: the first thread that enters notes them, the last that leaves puts them back."""

    def __init__(self) -> None:
        self._lock, self._inside = Lock(), 0
        self._before: _Settings | None = None
        self._nnpack = False

    def enter(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._nnpack = bool(torch._C._get_nnpack_enabled())
            self._inside += 1
            torch._C._set_nnpack_enabled(False)
            found = _Settings.now()
            if not found.plain:
                self._before = self._before or found
                _Settings.pin()

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside:
                return
            torch._C._set_nnpack_enabled(self._nnpack)
            if self._before is not None:
                self._before.put_back()
                self._before = None


class _Settings:
    """What decides how exact a float32 product is."""

    def __init__(self, legacy: str | None, precisions: list[str]) -> None:
        self.legacy, self.precisions = legacy, precisions

    @classmethod
    def now(cls) -> _Settings:
        """The settings that are in force."""
        return cls(_legacy_precision(), [holder.fp32_precision for holder in _holders()])

    @property
    def plain(self) -> bool:
        """Whether products are full where this process computes."""
        count = len(self.precisions) if torch.cuda.is_available() else _OF_THE_CPU
        exact = all(precision in (_FULL, _INHERITED) for precision in self.precisions[:count])
        return exact and self.legacy == "highest"

    @staticmethod
    def pin() -> None:
        """Full precision everywhere."""
        torch.set_float32_matmul_precision("highest")
        for holder in _holders():
            holder.fp32_precision = _FULL

    def put_back(self) -> None:
        """As they were: the old interface's setting first, then each that it does not already give."""
        if self.legacy is not None:
            torch.set_float32_matmul_precision(self.legacy)
        for holder, before in zip(_holders(), self.precisions, strict=True):
            # One that takes over the setting above it shows that one's value; it takes over again where that fits.
            holder.fp32_precision = _INHERITED
            if holder.fp32_precision != before:
                holder.fp32_precision = before


def _legacy_precision() -> str | None:
    """`torch.get_float32_matmul_precision()`; None where newer settings contradict it, which torch refuses to say."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def _holders() -> list[Any]:
    """Everything with a float32 precision of its own, outer ones first; none before torch 2.9."""
    b: Any = torch.backends
    if not hasattr(b, "fp32_precision"):
        return []
    return [b, b.mkldnn.matmul, b.mkldnn.conv, b.mkldnn.rnn, b.cuda.matmul, b.cudnn.conv, b.cudnn.rnn]


_OF_THE_CPU = 4
_PINS = _Pins()
_TRAFFIC = _Crossing()
