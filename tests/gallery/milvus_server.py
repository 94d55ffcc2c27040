"""A real Milvus server for the tests: started on free ports in a folder of its own, stopped by its process id.

Its program is PyPI's `milvus`, in an environment of its own (`make .venv-milvus/.ready`), since it needs an old
setuptools.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ENVIRONMENT = Path(os.environ.get("HOLDFAST_MILVUS_ENV", Path(__file__).parents[2] / ".venv-milvus"))

_PROGRAM = """
import json, os, sys
import milvus
server = milvus.MilvusServer(milvus.MilvusServerConfig(), data_dir=sys.argv[1])
server.config.set("proxy.timeTickInterval", 20)  # Strong reads wait for a tick.
server.start()
print(json.dumps({"port": server.listen_port, "pid": server.server_proc.pid}), flush=True)
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
