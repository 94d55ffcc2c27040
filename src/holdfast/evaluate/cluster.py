"""An evaluation's blocks on the workers of a Ray cluster, each with one thread.

The work is put into the cluster once; a worker loads it with its first block, checks that it has the code, the
versions and the embedder that this process has, and keeps it for the next ones. A block whose worker is lost is
computed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import secrets
import shutil
import socket
import sys
import tempfile
import uuid
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import holdfast
from holdfast import errors
from holdfast.errors import ConfigError, HoldfastError, MissingExtraError, ModelError, RunError
from holdfast.evaluate.spread import Made, Results, Spread, What, Work
from holdfast.provenance import versions

LOSSES = 3
"""How often a block may be lost with its worker and be computed again."""
AHEAD = 4
"""Blocks for each worker that may be done before the oldest one that is not: they wait in memory for their turn."""
CONNECT_SECONDS = 5.0


@dataclass(frozen=True)
class Stamp:
    """What must be the same wherever blocks of one evaluation are computed."""

    versions: dict[str, str]
    code: str
    embedder: str

    @classmethod
    def of(cls, work: Work[Any, Any]) -> Stamp:
        return cls(versions(), _code(), work.embedder.fingerprint())

    def differs(self, other: Stamp) -> str | None:
        """What `other` has that this has not, in a few words."""
        for name, version in self.versions.items():
            if other.versions.get(name) != version:
                return f"{name} {other.versions.get(name)}, not {version}"
        if other.code != self.code:
            return f"another holdfast {self.versions['holdfast']}: its files differ"
        return "another embedder" if other.embedder != self.embedder else None


class RaySpread(Spread):
    """A Ray cluster at an address, or one that is started on this machine and stopped again.

    A Ray that this process is connected to already is used as it is.
    """

    def __init__(
        self,
        on: str = "ray",
        workers: int | None = None,
        *,
        memory: int | None = None,
        say: Callable[[str], None] = lambda line: print(line, file=sys.stderr),
    ) -> None:
        if workers is not None and workers < 1:
            raise ConfigError(f"at least 1 worker computes, not {workers}")
        self._address = _address(on)
        self._workers, self._memory, self._say = workers, memory, say
        if self._address is None:
            _keep_to_itself()
        self._ray = _ray()
        self._folder: Path | None = None
        self._started = False
        self._unhush: Callable[[], None] = lambda: None

    def ready(self) -> None:
        ray = self._ray
        if not ray.is_initialized():
            self._connect()
        if self._cores() < 1:
            raise RunError(
                f"the Ray cluster {self._named} has no processor for an evaluation; add a node to it"
            )

    def run(self, work: Work[What, Made], blocks: Sequence[tuple[What, range]]) -> Results[Made]:
        if not blocks:
            return
        self.ready()
        ray = self._ray
        lost = tuple(
            getattr(ray.exceptions, name)
            for name in ("WorkerCrashedError", "NodeDiedError", "OutOfMemoryError", "ObjectLostError")
        )
        task = ray.remote(num_cpus=1, max_retries=0)(_block)
        rest = (uuid.uuid4().hex, [_put(ray, work)], Stamp.of(work))
        todo, losses = deque(range(len(blocks))), Counter[int]()
        flying: dict[Any, int] = {}

        def send() -> None:
            """Give every free worker a block, but none far ahead of the oldest."""
            most = self._workers or max(1, self._cores())
            while todo and len(flying) < most:
                if todo[0] - min([todo[0], *flying.values()]) >= AHEAD * most:
                    return
                number = todo.popleft()
                flying[task.remote(*rest, *blocks[number])] = number

        try:
            send()
            while flying:
                (done, *_), _ = ray.wait(list(flying), num_returns=1)
                number = flying.pop(done)
                try:
                    error, made = ray.get(done)
                except lost as cause:
                    losses[number] += 1
                    self._lost(losses[number], cause)
                    todo.appendleft(number)
                    send()
                    continue
                if error is not None:
                    raise _error(*error)
                # Before the result is written down, so that no worker waits for the disk.
                send()
                yield number, made
        except ray.exceptions.RayTaskError as cause:
            if "No module named 'holdfast" in str(cause):
                raise RunError(
                    f"a worker of the Ray cluster {self._named} has no holdfast; install "
                    f"holdfast {holdfast.__version__} on all its machines"
                ) from cause
            raise
        except (ConnectionError, ray.exceptions.RayError) as cause:
            flying.clear()
            raise RunError(
                f"the Ray cluster {self._named} was lost ({_said(cause)[0]}); what was done is kept: run it again"
            ) from cause
        finally:
            for one in flying:
                with contextlib.suppress(Exception):
                    ray.cancel(one)

    def close(self) -> None:
        if self._started:
            self._ray.shutdown()
            self._unhush()
            self._started = False
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    @property
    def _named(self) -> str:
        return "on this machine" if self._address is None else f"at {self._address}"

    def _cores(self) -> int:
        return int(self._ray.cluster_resources().get("CPU", 0))

    def _connect(self) -> None:
        quiet = {"log_to_driver": False, "logging_level": "ERROR"}
        if self._address is None:
            # Ray's files must lie at a short path, which that of other temporary files may not be.
            self._folder = Path(tempfile.mkdtemp(prefix="holdfast-ray-", dir="/tmp"))
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
            quiet |= {"include_dashboard": False, "_temp_dir": str(self._folder)}
            quiet |= {"num_cpus": self._workers or cores, "_node_ip_address": "127.0.0.1"}
            if self._memory is not None:
                quiet["object_store_memory"] = self._memory
        else:
            _knock(self._address)
            quiet["address"] = self._address
        # Before it is, so that one stopped on the way is taken down too.
        self._started = True
        try:
            self._ray.init(**quiet)
        # Ray has many kinds of errors here, some of many lines.
        except Exception as cause:
            self.close()
            if self._address == "auto" and isinstance(cause, ConnectionError):
                raise RunError(
                    "no Ray cluster was found on this machine; start one, or name its address"
                ) from None
            what = "cannot be started" if self._address is None else "cannot be reached"
            raise RunError(
                f"the Ray cluster {self._named} {what}: {_said(cause)[0]}; check it, or compute locally",
                option="on",
            ) from cause
        self._unhush = _hush(self._ray)

    def _lost(self, times: int, cause: Exception) -> None:
        if times > LOSSES:
            raise RunError(
                f"a block of rows was lost with its worker {times} times ({_said(cause)[0]}); what was done is kept: "
                "run it again with fewer workers, or more memory for each",
                option="workers",
            )
        self._say(f"a worker was lost; its block is computed again ({times} of {LOSSES} times)")


_loaded: tuple[str, Any] | None = None


def _block(
    key: str, box: list[Any], expected: Stamp, what: Any, span: range
) -> tuple[tuple[str, str] | None, Any]:
    """On a worker: one block's result; or the name and the line of an error of ours."""
    try:
        return None, _load(key, box, expected)(what, span)
    except HoldfastError as error:
        return (type(error).__name__, str(error)), None


def _load(key: str, box: list[Any], expected: Stamp) -> Work[Any, Any]:
    global _loaded
    if _loaded is not None and _loaded[0] == key:
        return _loaded[1]  # type: ignore[no-any-return]
    import threadpoolctl
    import torch

    from holdfast.memory import keep_freed_memory

    _loaded = None
    keep_freed_memory()
    torch.set_num_threads(1)
    threadpoolctl.threadpool_limits(1)
    where = f"the worker on {socket.gethostname()}"
    try:
        work = _ray().get(box[0])
    # What a stranger's model needs to be loaded may be missing in any way.
    except Exception as cause:
        raise ModelError(
            f"{where} cannot load the model: {_said(cause)[-1]}; have its code importable there, "
            "or compute locally",
            option="on",
        ) from cause
    other = expected.differs(Stamp.of(work))
    if other is not None:
        raise RunError(f"{where} has {other}; have the same on all machines")
    _loaded = key, work
    return work  # type: ignore[no-any-return]


def _keep_to_itself() -> None:
    """Have a cluster of our own listen on this machine alone, and obey this process alone.

    Ray reads both once in a process. It would else listen to the network, whatever address it is given, and put
    its token into the user's home folder; this one is written nowhere.
    """
    if "ray" in sys.modules:
        return
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    if not any(name.startswith("RAY_AUTH_") for name in os.environ):
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))


def _hush(ray: Any) -> Callable[[], None]:
    """Keep Ray from telling on stdout, where results belong, of workers that died; returns what undoes it."""
    inner = ray._private.worker
    said = getattr(inner, "print_to_stdstream", None)
    if said is None:
        return lambda: None
    inner.print_to_stdstream = lambda *words, **options: None
    return lambda: setattr(inner, "print_to_stdstream", said)


def _ray() -> Any:
    """The library, told to send nothing to anyone."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Else it warns of how a later version will treat machines without graphics cards.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise MissingExtraError("evaluation on Ray", "ray") from None


def _address(on: str) -> str | None:
    """What Ray calls the address; None for one of our own."""
    if on == "ray":
        return None
    address = on if on.startswith("ray://") else on.removeprefix("ray:")
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address != "auto" and not (host and port.isdecimal()):
        raise ConfigError(
            f"a Ray cluster is named as ray:auto, ray:HOST:PORT or ray://HOST:10001, not '{on}'"
        )
    return address


def _knock(address: str) -> None:
    """Refuse at once an address where nobody listens: Ray itself would try for minutes."""
    if address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as cause:
        why = getattr(cause, "strerror", None) or str(cause)
        raise RunError(
            f"no Ray cluster answers at {address} ({why}); check the address and that it runs"
        ) from None


def _put(ray: Any, work: Work[Any, Any]) -> Any:
    try:
        return ray.put(work)
    except ray.exceptions.RayError as cause:
        raise RunError(
            f"the images and the model do not fit into the Ray cluster: {_said(cause)[0]}"
        ) from cause
    # What cannot be pickled says so in many ways.
    except Exception as cause:
        raise ModelError(
            f"this model cannot be sent to other processes ({_said(cause.__cause__ or cause)[0]}); "
            "compute locally",
            option="on",
        ) from cause


def _error(name: str, line: str) -> HoldfastError:
    """The error that a worker told of."""
    kind = getattr(errors, name, RunError)
    # Not every kind is made from its line.
    made: HoldfastError = kind.__new__(kind, line)
    return made


@cache
def _code() -> str:
    """A hash of the package's source files."""
    found = hashlib.blake2b(digest_size=16)
    home = Path(holdfast.__file__).parent
    for path in sorted(home.rglob("*.py")):
        found.update(path.relative_to(home).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def _said(cause: BaseException) -> list[str]:
    """The lines of an error; where it is from a worker, the traceback comes first."""
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return lines or [type(cause).__name__]
