"""What can go wrong with a request, and how it is told: application/problem+json (RFC 9457) with one sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, Field

from holdfast.errors import (
    ConfigError,
    DataError,
    DecoderError,
    GalleryError,
    HoldfastError,
    ImageError,
    OutOfTimeError,
    StorageError,
)

MEDIA_TYPE = "application/problem+json"


class ProblemAnswer(BaseModel):
    """What went wrong, in one sentence (`detail`)."""

    type: str = Field("about:blank", description="A URI of this kind of problem.")
    title: str
    status: int
    detail: str


class Problem(HoldfastError):
    """A request that is refused, for a reason that its sender may know."""

    status = 400

    def __init__(self, detail: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.headers = dict(headers or {})


class NotAllowedError(Problem):
    """A key is missing or not known."""

    status = 401


class ForbiddenError(Problem):
    """Known, but not allowed to do this."""

    status = 403


class NotThereError(Problem):
    """No such gallery, item or picture."""

    status = 404


class SlowSenderError(Problem):
    """The request did not arrive whole in its time."""

    status = 408


class ConflictError(Problem):
    """What is there stands against it."""

    status = 409


class TooLargeError(Problem):
    """More bytes or pixels than are taken."""

    status = 413


class WrongMediaError(Problem):
    """A body of another kind than is read here."""

    status = 415


class NotUnderstoodError(Problem):
    """The parts of the request do not fit each other, or the gallery."""

    status = 422


class TooManyError(Problem):
    """More requests than this key may make."""

    status = 429

    def __init__(self, detail: str, seconds: float) -> None:
        super().__init__(detail, headers={"Retry-After": str(max(1, math.ceil(seconds)))})


class LongHeadersError(Problem):
    """More headers than are read."""

    status = 431


class BusyError(Problem):
    """As many requests wait as may wait."""

    status = 503

    def __init__(self, detail: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail, headers={"Retry-After": "1", **(headers or {})})


class EndingError(Problem):
    """The service is being ended; another one may take its place."""

    status = 503

    def __init__(self) -> None:
        super().__init__("the service is ending; try again in a moment", headers={"Retry-After": "5"})


class UnavailableError(Problem):
    """A gallery does not answer now."""

    status = 503

    def __init__(self, detail: str) -> None:
        super().__init__(detail, headers={"Retry-After": "5"})


def status_of(error: HoldfastError) -> int:
    """The status that tells what kind of error it is."""
    if isinstance(error, Problem):
        return error.status
    if isinstance(error, ImageError):
        return 413 if str(error).startswith("too large") else 422
    if isinstance(error, OutOfTimeError):
        return 504
    if isinstance(error, (ConfigError, DataError)):
        return 422
    if isinstance(error, (GalleryError, DecoderError)):
        return 503
    if isinstance(error, StorageError):
        return 507
    return 500


def headers_of(error: HoldfastError) -> dict[str, str]:
    """When to try again, where that helps."""
    if isinstance(error, Problem):
        return error.headers
    return {"Retry-After": "5"} if status_of(error) == 503 else {}


def document(status: int, detail: str) -> dict[str, Any]:
    """The body of an answer that is a problem."""
    return ProblemAnswer(title=HTTPStatus(status).phrase, status=status, detail=detail).model_dump()
