"""A service that strangers try to stop: inputs tried, faults survived, load held, each in its bounds.

A service with keys, which may open 1,024 files, is sent files made to do harm and damaged ones; 1,100 idle
connections; 40 bodies of 31 MB that arrive slowly; 40 proofs and 40 attacks of one key. The processes that decode are
killed, and the service is ended while eight clients write. Meanwhile another client asks. The value is the number of
things that were not held: answers that are neither a success nor a refusal (4xx, 503, 504), clients not answered in
time, memory or log beyond bounds, log lines that are not JSON. All of it is on this machine, for a few minutes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from _common import report

# isort: split
import httpx
import numpy as np
import torch

import _hostile
import _serving
from holdfast.service.keys import add_key

FILES, IDLE = 1024, 1100
MEMORY = 3000
"""MiB of the service and its processes, at most."""
PATIENCE = 15.0
"""Seconds in which another client is answered, whatever happens."""
LOG = 2 * 2**20
"""Bytes that are logged while idle connections come and go, at most."""

Headers = dict[str, str]


class Held:
    """What was tried, and what was not held."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.tried: Counter[str] = Counter()

    def check(self, good: bool, what: str) -> None:
        if not good:
            self.failed.append(what)
            print(f"  NOT HELD: {what}", flush=True)

    def answer(self, status: int | None, what: str) -> None:
        self.tried[what] += 1
        good = status is not None and (status < 500 or status in (503, 504))
        self.check(good, f"{what}: {status or 'no answer'}")


def memory(pid: int) -> float:
    """MiB of memory of a process and its children."""
    total = 0.0
    for one in (pid, *children(pid)):
        with suppress(OSError):
            for line in Path(f"/proc/{one}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    total += int(line.split()[1]) / 1024
    return total


def children(pid: int) -> list[int]:
    """The processes that any thread of a process has started."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += [int(one) for one in task.read_text().split()]
    return found


def processor(pid: int) -> float:
    """Seconds of the processor that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def send(address: str, content: bytes, headers: Headers, path: str = "search", **fields: str) -> int | None:
    """The status of one request on a connection of its own; None where there was no answer."""
    try:
        return httpx.post(
            f"{address}/api/v1/{path}",
            files={"image": ("q", content)},
            data={"k": "5", **fields},
            headers=headers,
            timeout=60,
        ).status_code
    except httpx.HTTPError:
        return None


@contextmanager
def watched(
    held: Held, what: str, address: str, pid: int, headers: Headers, content: bytes, *also: int
) -> Iterator[None]:
    """Another client that asks all the time, and the memory; told at the end. Its answers are 200, or `also` these."""
    over, seconds, sizes = threading.Event(), [], []

    def ask() -> None:
        while not over.wait(0.05):
            start = time.monotonic()
            status = send(address, content, headers)
            seconds.append(time.monotonic() - start)
            held.check(status in (200, *also), f"another client during {what}: {status}")

    def look() -> None:
        while not over.wait(0.05):
            sizes.append(memory(pid))

    threads = [threading.Thread(target=ask), threading.Thread(target=look)]
    for thread in threads:
        thread.start()
    start = time.monotonic()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
    slowest, most = max(seconds, default=0.0), max(sizes, default=0.0)
    print(
        f"{what}: {time.monotonic() - start:.1f} s; another client {len(seconds)} answers, median "
        f"{float(np.median(seconds or [0])):.2f} s, slowest {slowest:.2f} s; memory {most:.0f} MiB at most",
        flush=True,
    )
    held.check(slowest < PATIENCE, f"another client waited {slowest:.1f} s during {what}")
    held.check(most < MEMORY, f"{most:.0f} MiB during {what}")


def files(held: Held, address: str, headers: Headers, count: int) -> None:
    """Crafted files, four of each at once; then damaged ones."""
    with ThreadPoolExecutor(4) as pool:
        for name, content in _hostile.crafted().items():
            start = time.monotonic()
            statuses = list(pool.map(lambda content: send(address, content, headers), [content] * 4))
            print(
                f"  {name}: {len(content):,} bytes, {statuses}, {time.monotonic() - start:.1f} s", flush=True
            )
            for status in statuses:
                held.answer(status, "files made to do harm")
        counts: Counter[int | None] = Counter()
        for status in pool.map(lambda content: send(address, content, headers), _hostile.damaged(count)):
            held.answer(status, "damaged files")
            counts[status] += 1
        print(f"  damaged files: {dict(counts)}", flush=True)


def idle(held: Held, address: str, pid: int, lines: list[str]) -> None:
    """More connections than the service has files for, all silent."""
    host, port = address.removeprefix("http://").split(":")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, IDLE + 500)), hard))
    before, used, start = sum(map(len, lines)), processor(pid), time.monotonic()
    connections = []
    for _ in range(IDLE):
        with suppress(OSError):
            connections.append(socket.create_connection((host, int(port)), timeout=10))
    held.tried["idle connections"] += len(connections)
    time.sleep(4)
    for _ in range(10):
        with suppress(httpx.HTTPError):
            held.answer(httpx.get(f"{address}/healthz", timeout=PATIENCE).status_code, "health checks")
    share = (processor(pid) - used) / (time.monotonic() - start)
    logged = sum(map(len, lines)) - before
    for connection in connections:
        connection.close()
    print(f"  {len(connections)} idle: {share:.0%} of a core, {logged:,} bytes logged", flush=True)
    held.check(len(connections) == IDLE, f"only {len(connections)} connections could be tried")
    held.check(share < 0.9, f"{share:.0%} of a core with idle connections")
    held.check(logged < LOG, f"{logged:,} bytes logged with idle connections")


def bodies(held: Held, address: str, headers: Headers, count: int = 40, size: int = 31 * 2**20) -> None:
    """Large bodies that arrive slowly and stay until the end."""
    host, port = address.removeprefix("http://").split(":")
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    begin = (
        f"POST /api/v1/search HTTP/1.1\r\nHost: {host}\r\n{head}Content-Type: multipart/form-data; boundary=x\r\n"
        f"Content-Length: {size}\r\n\r\n--x\r\n"
        'Content-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
    ).encode()
    block, until = bytes(2**16), time.monotonic() + 8

    def slow(_: int) -> int | None:
        with suppress(OSError), socket.create_connection((host, int(port)), timeout=20) as line:
            line.sendall(begin)
            line.settimeout(1)
            with suppress(TimeoutError):
                return int(line.recv(100).split()[1])
            line.settimeout(20)
            for _ in range(size // len(block) - 1):
                line.sendall(block)
                if time.monotonic() > until:
                    break
            time.sleep(max(0.0, until - time.monotonic()))
        return 400  # Left without an answer: the body never was whole.

    with ThreadPoolExecutor(count) as pool:
        counts = Counter(pool.map(slow, range(count)))
    for status, number in counts.items():
        for _ in range(number):
            held.answer(status, "large bodies")
    print(f"  bodies: {dict(counts)}", flush=True)
    held.check(counts[503] > 0, "no body was refused")


def greedy(held: Held, address: str, one: Headers, other: Headers, contents: list[bytes]) -> None:
    """One key asks for 40 proofs and 40 attacks at once, and another for a few."""
    proof = {"path": "search/certified", "threat": "linf:1/255", "method": "crown"}
    with ThreadPoolExecutor(84) as pool:
        asked = [pool.submit(send, address, contents[i], one, **proof) for i in range(40)]
        asked += [
            pool.submit(send, address, contents[i], one, path="attack", threat="linf:4/255", steps="20")
            for i in range(40)
        ]
        time.sleep(1)
        slowest = 0.0
        for number in range(3):
            start = time.monotonic()
            status = send(address, contents[50 + number], other, **proof)
            slowest = max(slowest, time.monotonic() - start)
            held.check(status == 200, f"another key's proof: {status}")
        counts = Counter(one.result() for one in asked)
    for status, number in counts.items():
        for _ in range(number):
            held.answer(status, "proofs and attacks of one key")
    print(f"  one key: {dict(counts)}; another's three proofs took {slowest:.1f} s at most", flush=True)


def killed(held: Held, address: str, pid: int, headers: Headers, contents: list[bytes], count: int) -> None:
    """The processes that decode are killed under load."""
    over = threading.Event()

    def ask(number: int) -> None:
        for turn in itertools.count():
            if over.is_set():
                return
            held.answer(send(address, contents[(number + turn) % 100], headers), "searches under kills")

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(count):
        time.sleep(0.4)
        for child in children(pid):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
                held.tried["kills of processes that decode"] += 1
    over.set()
    for thread in threads:
        thread.join()
    held.check(send(address, contents[0], headers) == 200, "no search after kills")


def ended(held: Held, folder: Path, options: list[str], headers: Headers, contents: list[bytes]) -> None:
    """A service is ended while eight clients write to it."""
    lines: list[str] = []
    counts: Counter[int | str] = Counter()
    over = threading.Event()

    def write(address: str, number: int) -> None:
        with httpx.Client(base_url=address, headers=headers, timeout=60) as client:
            for turn in itertools.count():
                if over.is_set():
                    return
                try:
                    answer = client.post(
                        "/api/v1/items",
                        files={"image": ("q", contents[turn % 100])},
                        data={"id": f"w{number}-{turn}", "replace": "true"},
                    )
                    counts[answer.status_code] += 1
                except httpx.ConnectError:
                    return
                except httpx.TransportError:
                    counts["closed"] += 1

    with ThreadPoolExecutor(8) as pool:
        with _serving.served(folder, *options, "--writable", lines=lines) as (address, _):
            for number in range(8):
                pool.submit(write, address, number)
            time.sleep(2)
        over.set()
    held.tried["ends under writers"] += 1
    print(f"  ended under writers: {dict(counts)}", flush=True)
    held.check(counts[500] == 0, f"{counts[500]} mistakes when ended")
    _read(held, lines)


def _read(held: Held, lines: list[str]) -> None:
    """Every line is JSON, and none tells of a mistake."""
    for line in lines:
        try:
            said: dict[str, Any] = json.loads(line)
        except ValueError:
            held.check(False, f"a line that is not JSON: {line[:100]!r}")
            continue
        held.check("trace" not in said, f"a mistake: {str(said.get('trace'))[-200:]}")


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--count", type=int, default=20_000, help="vectors of the gallery")
    options.add_argument("--damaged", type=int, default=600)
    options.add_argument("--kills", type=int, default=10)
    options.add_argument("--ends", type=int, default=3)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    held, contents = Held(), _serving.pictures(120)
    lines: list[str] = []
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _serving.filled(folder, _serving.trained(folder), chosen.count)
        one, other = (
            {"X-API-Key": add_key(folder / "keys.json", who, ["read", "attack", "write"])}
            for who in ("one", "other")
        )
        with_keys = ["--keys", str(folder / "keys.json")]
        with _serving.served(folder, *with_keys, files=FILES, lines=lines) as (address, pid):

            def during(what: str, *also: int) -> Any:
                return watched(held, what, address, pid, other, contents[110], *also)

            with during("files"):
                files(held, address, one, chosen.damaged)
            with during("idle connections"):
                idle(held, address, pid, lines)
            with during("large bodies"):
                bodies(held, address, one)
            with during("a greedy key"):
                greedy(held, address, one, other, contents)
            # Whose picture is at a process that is killed is told so.
            with during("kills", 422, 503):
                killed(held, address, pid, one, contents, chosen.kills)
        _read(held, lines)
        for _ in range(chosen.ends):
            ended(held, folder, with_keys, one, contents)
    print(
        f"tried in {time.monotonic() - start:.0f} s: {dict(held.tried)}; {len(lines):,} lines of log, all JSON"
    )
    against = f"things not held of {held.tried.total():,} tried"
    return 0 if report("hostile_service", len(held.failed), 0, "lower", against) else 1


if __name__ == "__main__":
    sys.exit(main())
