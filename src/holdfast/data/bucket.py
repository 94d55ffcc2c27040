"""Images in an S3 bucket, or in any store that speaks its protocol: s3://BUCKET/PREFIX.

Address, region and credentials are what boto3 finds: the environment (AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, …), the
files of the AWS command, or the machine's role.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from holdfast.data.source import Source, Stored, by_name, is_inside
from holdfast.errors import DataError

SCHEME = "s3://"
PAGE = 1000
"""Keys that are asked for at once."""

_GONE = {"NoSuchKey", "404", "NotFound"}
_LOCK = threading.Lock()


def is_bucket(location: object) -> bool:
    """Whether a place is in a bucket."""
    return str(location).startswith(SCHEME)


class BucketSource(Source):
    """The objects of a bucket whose keys begin with a prefix, taken as a folder."""

    def __init__(self, location: str) -> None:
        self._bucket, prefix = _parts(location)
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        super().__init__(f"{SCHEME}{self._bucket}/{self._prefix}".rstrip("/"), by_name(self._list()))

    def read(self, name: str) -> bytes:
        return _object(self._bucket, self._prefix + name)

    def stamp(self) -> str:
        return str(self.path)

    def place(self, name: str) -> str:
        return f"{SCHEME}{self._bucket}/{self._prefix}{name}"

    def covers(self, place: str) -> bool:
        return place.startswith(f"{SCHEME}{self._bucket}/{self._prefix}")

    def _list(self) -> Iterator[tuple[str, Stored]]:
        client = _client()
        with _told(f"{SCHEME}{self._bucket}/{self._prefix}"):
            pages = client.get_paginator("list_objects_v2")
            for page in pages.paginate(
                Bucket=self._bucket, Prefix=self._prefix, PaginationConfig={"PageSize": PAGE}
            ):
                for found in page.get("Contents", ()):
                    name = found["Key"].removeprefix(self._prefix)
                    if not name.endswith("/") and is_inside(name):
                        yield name, Stored(int(found["Size"]), int(found["LastModified"].timestamp() * 1e9))


def read_object(place: str) -> bytes:
    """The bytes at s3://BUCKET/KEY; FileNotFoundError if there are none, DataError if the store does not answer."""
    return _object(*_parts(place))


def object_exists(place: str) -> bool:
    """Whether there is an object at s3://BUCKET/KEY."""
    client, (bucket, key) = _client(), _parts(place)
    try:
        with _told(place):
            client.head_object(Bucket=bucket, Key=key)
    except FileNotFoundError:
        return False
    return True


def _object(bucket: str, key: str) -> bytes:
    client = _client()
    with _told(f"{SCHEME}{bucket}/{key}"):
        body: bytes = client.get_object(Bucket=bucket, Key=key)["Body"].read()
        return body


def _parts(place: str) -> tuple[str, str]:
    bucket, _, key = place.removeprefix(SCHEME).partition("/")
    if not bucket:
        raise DataError(f"'{place}' names no bucket; write {SCHEME}BUCKET/PREFIX")
    return bucket, key


def _client() -> Any:
    with _LOCK:  # Making one is not for several threads; using it is.
        return _made()


@lru_cache(maxsize=1)
def _made() -> Any:
    try:
        import boto3
        from botocore.config import Config
    except ImportError as cause:
        raise DataError("s3:// needs boto3; pip install 'holdfast[s3]'") from cause
    config = Config(connect_timeout=5, read_timeout=20, retries={"mode": "standard", "max_attempts": 3})
    with _told("S3"):
        return boto3.session.Session().client("s3", config=config)


@contextmanager
def _told(where: str) -> Iterator[None]:
    """What boto3 raises, in one line; an object that is not there is a FileNotFoundError, like a file."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as cause:
        problem = cause.response.get("Error", {})
        if problem.get("Code") in _GONE:
            raise FileNotFoundError(errno.ENOENT, "no such object", where) from cause
        said = problem.get("Message") or problem.get("Code") or cause
        raise DataError(f"could not read {where}: {said}; check the bucket and who you are there") from cause
    except (BotoCoreError, ValueError, OSError) as cause:
        raise DataError(f"could not read {where}: {cause}; check the address and your credentials") from cause
