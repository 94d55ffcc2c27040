"""API keys: long random words of which only salted hashes are kept."""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import math
import os
import re
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, get_args

from holdfast.errors import ConfigError
from holdfast.files import atomic_path, storage_error

Role = Literal["read", "write", "attack"]
ROLES: tuple[Role, ...] = get_args(Role)

_MARK = "hf_"
_LONGEST = 200


@dataclass(frozen=True)
class Key:
    """What is kept of a key: who has it, what it allows, and a hash that does not tell it."""

    name: str
    roles: tuple[Role, ...]
    salt: str
    hash: str
    created: str
    rate: float | None = None
    """Requests a second, on average; None: any number."""
    quota: int | None = None
    """Requests a day (UTC)."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.@-]{1,64}", self.name):
            raise ConfigError(f"a key's name is made of letters, digits, _ . @ and -, not '{self.name}'")
        for role in self.roles:
            if role not in ROLES:
                raise ConfigError(f"unknown role '{role}'; known: {', '.join(ROLES)}")
        if not self.roles:
            raise ConfigError(f"a key has at least one role of {', '.join(ROLES)}")
        if self.rate is not None and not (_is_number(self.rate) and 0 < self.rate < math.inf):
            raise ConfigError(
                f"the rate of the key of '{self.name}' is a number of requests a second above 0, not {self.rate!r}"
            )
        if self.quota is not None and not (_is_number(self.quota) and self.quota == int(self.quota) >= 1):
            raise ConfigError(
                f"the quota of the key of '{self.name}' is a whole number of requests a day, 1 at least, "
                f"not {self.quota!r}"
            )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def hashed(word: str, salt: str) -> str:
    """The salted hash of a key. One fast round: a key has 256 random bits, which no search finds."""
    return hashlib.blake2b(word.encode(), salt=bytes.fromhex(salt), person=b"holdfast key").hexdigest()


def add_key(
    path: Path, name: str, roles: Sequence[str], *, rate: float | None = None, quota: int | None = None
) -> str:
    """Put a new key into the file, which is made if it is not there, and give it: it is shown only now."""
    with _alone(path):
        keys = read_keys(path) if path.exists() else []
        if any(key.name == name for key in keys):
            raise ConfigError(
                f"{path} has a key of '{name}' already; remove it first, or choose another name"
            )
        word, salt = _MARK + secrets.token_urlsafe(32), secrets.token_hex(16)
        created = datetime.now(UTC).isoformat(timespec="seconds")
        allowed: tuple[Role, ...] = tuple(dict.fromkeys(roles))  # type: ignore[arg-type]
        key = Key(name, allowed, salt, hashed(word, salt), created, rate, quota)
        _write(path, [*keys, key])
        return word


def remove_key(path: Path, name: str) -> None:
    """Take a key out of the file; a service that runs no longer knows it."""
    with _alone(path):
        keys = read_keys(path)
        if all(key.name != name for key in keys):
            raise ConfigError(
                f"{path} has no key of '{name}'; it has {', '.join(k.name for k in keys) or 'none'}"
            )
        _write(path, [key for key in keys if key.name != name])


def read_keys(path: Path) -> list[Key]:
    """All keys of the file."""
    try:
        found = json.loads(path.read_text())
        keys = [Key(**{**entry, "roles": tuple(entry["roles"])}) for entry in found["keys"]]
        for key in keys:
            hashed("", key.salt)
        return keys
    except FileNotFoundError:
        raise ConfigError(f"there is no file of keys at {path}; make one with 'holdfast key add'") from None
    except OSError as cause:
        raise ConfigError(f"could not read the keys in {path}: {cause.strerror or cause}") from cause
    except (ValueError, TypeError, KeyError) as cause:
        raise ConfigError(f"{path} is not a file of keys (see 'holdfast key add')") from cause


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Nobody else changes the file during the block. Its folder is locked, since each change makes a new file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path.parent, os.O_RDONLY)
    except OSError as cause:
        raise storage_error(path, cause) from cause
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _write(path: Path, keys: Sequence[Key]) -> None:
    """The file anew, for those alone who could read it before."""
    with atomic_path(path) as temporary:
        handle = os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w") as file:
            json.dump({"keys": [_written(key) for key in keys]}, file, indent=2)
            if path.exists():
                old = path.stat()
                with suppress(PermissionError):  # Only root gives a file to another.
                    os.fchown(file.fileno(), old.st_uid, old.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(old.st_mode))


def _written(key: Key) -> dict[str, object]:
    return {name: value for name, value in asdict(key).items() if value is not None}


class KeyRing:
    """The keys of a file as it is now: one that is added or removed counts from the next request on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, ...] = ()
        self._keys: list[Key] = []
        self._follow()

    def find(self, word: str) -> Key | None:
        """The key that `word` is. Every one is compared, each in constant time, so that timing tells nothing."""
        self._follow()
        found = None
        for key in self._keys:
            if hmac.compare_digest(hashed(word[:_LONGEST], key.salt), key.hash):
                found = key
        return found

    def _follow(self) -> None:
        stamp: tuple[int, ...] = ()
        with suppress(OSError):
            now = self._path.stat()
            stamp = (now.st_ino, now.st_size, now.st_mtime_ns)
        if not stamp or stamp != self._stamp:
            self._keys, self._stamp = read_keys(self._path), stamp
