"""Memory of a service under mixed load for some minutes: does it grow after the first part?

Plain, certified, batch and refused requests, small pictures and ones asked for by digest; the resident memory is
read through; the value is the median of its last quarter over that of its third.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from pathlib import Path

from _common import report

# isort: split
import httpx
import numpy as np
import torch

import _serving

CLIENTS = 4


def resident(pid: int) -> float:
    """MiB of memory that a process holds."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise SystemExit("the service has ended")


def mixed(address: str, contents: list[bytes], until: float, first: int, errors: list[str]) -> None:
    """One client that asks for everything in turn."""
    rng = np.random.default_rng(first)
    with httpx.Client(base_url=address, timeout=120) as client:
        number = first
        try:
            while time.monotonic() < until:
                number += 1
                content = contents[number % len(contents)]
                kind = number % 8
                if kind == 0:
                    _serving.ask(client, content, "search/certified", threat="linf:1/255")
                elif kind == 1:
                    files = [("images", ("a", content)) for _ in range(4)]
                    client.post("/api/v1/search/batch", files=files).raise_for_status()
                elif kind == 2:
                    junk = rng.bytes(5000)
                    said = client.post("/api/v1/search", files={"image": ("junk", junk)})
                    if said.status_code != 422:
                        errors.append(said.text)
                elif kind == 3:
                    digest = dict(_serving.ask(client, content)["query"])["digest"]  # type: ignore[call-overload]
                    client.get(f"/api/v1/queries/{digest}/image").raise_for_status()
                elif kind == 4:
                    client.get("/metrics").raise_for_status()
                else:
                    _serving.ask(client, content)
        except (httpx.HTTPError, SystemExit) as error:
            errors.append(str(error))


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--count", type=int, default=100_000)
    options.add_argument("--minutes", type=float, default=5.0)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    contents = _serving.pictures(250)
    errors: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _serving.filled(folder, _serving.trained(folder), chosen.count)
        with _serving.served(folder) as (address, pid):
            until = time.monotonic() + 60 * chosen.minutes
            threads = [
                threading.Thread(target=mixed, args=(address, contents, until, 1000 * i, errors))
                for i in range(CLIENTS)
            ]
            for thread in threads:
                thread.start()
            times, sizes = [], []
            while time.monotonic() < until and not errors:
                times.append(time.monotonic())
                sizes.append(resident(pid))
                time.sleep(0.5)
            for thread in threads:
                thread.join()
    if errors:
        print("\n".join(errors[:5]), file=sys.stderr)
        return 1
    half = len(times) // 2
    slope, _ = np.polyfit(np.array(times[half:]) - times[half], sizes[half:], 1)
    quarter = max(1, len(sizes) // 4)
    start, end = float(np.median(sizes[half : half + quarter])), float(np.median(sizes[-quarter:]))
    print(
        f"{chosen.minutes:g} minutes of {CLIENTS} clients: {sizes[0]:.0f} MiB at first, {start:.0f} after half, "
        f"{end:.0f} at the end; {60 * slope:+.2f} MiB a minute in the second half"
    )
    against = "memory at the end over that at half time"
    return 0 if report("serve_soak", end / start, 1.02, "lower", against) else 1


if __name__ == "__main__":
    sys.exit(main())
