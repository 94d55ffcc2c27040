"""A real Milvus server for the tests: started on free ports in a folder of its own, stopped by its process id.

Its program is PyPI's `milvus`, in an environment of its own (`make .venv-milvus/.ready`), since it needs an old
setuptools.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ENVIRONMENT = Path(
    os.environ.get("HOLDFAST_MILVUS_ENV", Path(__file__).resolve().parents[1] / ".venv-milvus")
)

_PROGRAM = """
import json, os, socket, sys, time, urllib.request
import milvus

def free(count):
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports

folder = sys.argv[1]
config = milvus.MilvusServerConfig()
names = [name for name in config.configurable_items if name.endswith("_port")]
peers, web, *ports = free(len(names) + 2)
ports = dict(zip(names, ports))
client, peer = (f"http://127.0.0.1:{port}" for port in (ports["etcd_port"], peers))
with open(os.path.join(folder, "etcd.yaml"), "w") as file:  # Its own default ports are those of any other etcd.
    file.write(f"name: default\\nlisten-client-urls: {client}\\nadvertise-client-urls: {client}\\n")
    file.write(f"listen-peer-urls: {peer}\\ninitial-advertise-peer-urls: {peer}\\n")
    file.write(f"initial-cluster: default={peer}\\n")
    os.environ["ETCD_CONFIG_PATH"] = file.name
server = milvus.MilvusServer(config, wait_for_started=False, data_dir=folder, **ports)
server.webservice_port = web
config.set("proxy.timeTickInterval", 20)  # Strong reads wait for a tick.
server.start()
while server.server_proc.poll() is None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.webservice_port}/healthz", timeout=5) as answer:
            if b"OK" in answer.read():
                break
    except OSError:
        time.sleep(0.1)
if server.server_proc.poll() is None:
    print(json.dumps({"port": ports["proxy_port"], "pid": server.server_proc.pid}), flush=True)
    sys.stdin.read()  # Ends with the tests, however they end.
server.stop()
"""


def missing() -> str:
    """Why there can be no server; empty if there can."""
    if (ENVIRONMENT / ".ready").exists():
        return ""
    return f"no Milvus server: {ENVIRONMENT.name} is not there (make {ENVIRONMENT.name}/.ready)"


@contextmanager
def running(folder: Path) -> Iterator[str]:
    """A server, by its address HOST:PORT."""
    programs = ENVIRONMENT / "programs" / "bin"
    if programs.is_dir():  # Unpacked before: saves ten seconds.
        (folder / "bin").symlink_to(programs)
    log = folder / "started.log"
    with open(log, "w") as err:
        process = subprocess.Popen(
            [str(ENVIRONMENT / "bin" / "python"), "-c", _PROGRAM, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
            env={k: v for k, v in os.environ.items() if not k.startswith("PYTHON")},
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"the server did not start: {log.read_text()[-2000:]}"
        yield f"127.0.0.1:{json.loads(line)['port']}"
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


@contextmanager
def shared(folder: Path) -> Iterator[str]:
    """The one server of all processes that name this folder: the first starts it, and ends it after the last."""
    folder.mkdir(exist_ok=True)
    address, user = folder / "address", folder / f"{os.getpid()}.user"
    with _alone(folder):
        if address.exists():
            user.touch()
            host = address.read_text()
        else:
            place = folder / f"{os.getpid()}.server"
            place.mkdir()
            server = running(place)
            host = server.__enter__()
            address.write_text(host)
    try:
        yield host
    finally:
        if user.exists():
            user.unlink()
        else:
            while not _last(folder, address):
                time.sleep(0.2)
            server.__exit__(None, None, None)


def _last(folder: Path, address: Path) -> bool:
    """Whether nobody uses the server any more; nobody can from then on."""
    with _alone(folder):
        if any(_lives(int(user.stem)) for user in folder.glob("*.user")):
            return False
        address.unlink()
        return True


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with open(folder / "lock", "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
