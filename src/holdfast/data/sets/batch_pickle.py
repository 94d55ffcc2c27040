"""Reading a CIFAR batch, which is a pickle, without letting the pickle call anything.

The only names a batch may mention are those of numpy's array reconstruction, and each is answered by a
stand-in here that merely records what it was given. Nothing of numpy, and nothing else, is reachable.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import DataError

_PIXELS = 3 * 32 * 32


class _Array:
    """Stands in for an array: keeps the state it is given."""

    state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Type:
    """Stands in for a dtype: keeps its name."""

    def __init__(self, name: Any = None, *_: Any) -> None:
        self.name = name

    def __setstate__(self, state: Any) -> None:
        pass


def _new_array(*_: Any) -> _Array:
    return _Array()


def _latin1(text: Any, *_: Any) -> bytes:
    return str(text).encode("latin1")


_KNOWN = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("numpy.core.multiarray", "_reconstruct"): _new_array,
    ("numpy._core.multiarray", "_reconstruct"): _new_array,
    ("_codecs", "encode"): _latin1,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _KNOWN[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}") from None


def read_batch(content: bytes, name: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The images (N×3072) and labels of one batch; DataError if the pickle is anything but a plain batch."""
    try:
        batch = _Reader(io.BytesIO(content), encoding="bytes").load()
    except Exception as cause:
        # A hostile or damaged pickle can raise nearly anything.
        raise DataError(f"{name} is not a plain CIFAR-10 batch ({cause}); get the set again") from cause
    try:
        images = _pixels(batch[b"data"] if b"data" in batch else batch["data"])
        labels = np.array(batch[b"labels"] if b"labels" in batch else batch["labels"], dtype=np.uint8)
    except (KeyError, TypeError, ValueError, OverflowError) as cause:
        raise DataError(f"{name} lacks the data or labels of a CIFAR-10 batch; get the set again") from cause
    if labels.shape != (len(images),):
        raise DataError(f"{name} holds {len(images)} images and {labels.size} labels; get the set again")
    return images, labels


def _pixels(array: Any) -> NDArray[np.uint8]:
    if not isinstance(array, _Array):
        raise TypeError("not an array")
    _, shape, kind, by_columns, content = array.state
    if (
        not isinstance(kind, _Type)
        or kind.name not in (b"u1", "u1", b"uint8", "uint8")
        or len(shape) != 2
        or shape[1] != _PIXELS
    ):
        raise ValueError("not an array of images")
    flat = np.frombuffer(content, dtype=np.uint8)
    return flat.reshape(shape, order="F" if by_columns else "C")
