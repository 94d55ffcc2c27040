"""`holdfast serve` and `holdfast key` as a user runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import httpx
import pytest
from serving import ask, png

COMMAND = [sys.executable, "-c", "from holdfast.cli import main; main()"]


def test_it_serves_until_it_is_told_to_stop(shop, tmp_path):
    process = subprocess.Popen(
        [*COMMAND, "serve", shop.gallery, "--model", shop.model, "--port", "0"],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        lines = []
        while not lines or lines[-1]["event"] != "ready":
            lines.append(json.loads(process.stderr.readline()))
        address = next(line["address"] for line in lines if line["event"] == "listening")
        with httpx.Client(base_url=address, timeout=60) as client:
            for _ in range(200):
                try:
                    assert client.get("/readyz").status_code == 200
                    break
                except httpx.TransportError:
                    time.sleep(0.05)
            assert len(ask(client, png(), k=3).json()["hits"]) == 3
            process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert out == ""
    assert json.loads(err.splitlines()[-1])
    assert "stopped" in [json.loads(line)["event"] for line in err.splitlines()]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_it_is_not_open_to_others_without_keys(shop, host):
    from holdfast.errors import ConfigError
    from holdfast.service.server import serve

    with pytest.raises(ConfigError, match="needs keys"):
        serve([str(shop.gallery)], host=host)


def test_that_is_told_at_once_with_code_2(shop):
    command = [*COMMAND, "serve", shop.gallery, "--host", "0.0.0.0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "needs keys" in done.stderr


def test_two_of_one_name_and_a_taken_port(shop):
    import socket

    from holdfast.errors import ConfigError
    from holdfast.service.engine import Engine
    from holdfast.service.server import serve

    with pytest.raises(ConfigError, match="the same name"):
        Engine.open([str(shop.gallery), str(shop.gallery)], [shop.model])
    with pytest.raises(ConfigError, match="no name for a gallery"):
        Engine.open([f"a b={shop.gallery}"], [shop.model])
    with Closing(Engine.open([f"one={shop.gallery}", f"two={shop.gallery}"], [shop.model])) as engine:
        assert [served.name for served in engine] == ["one", "two"]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="could not listen"):
            serve([str(shop.gallery)], port=taken.getsockname()[1])


class Closing:
    def __init__(self, thing):
        self.thing = thing

    def __enter__(self):
        return self.thing

    def __exit__(self, *_):
        self.thing.close()


def test_keys_are_made_listed_and_removed(tmp_path, monkeypatch, capsys):
    from holdfast.cli import main

    file = str(tmp_path / "keys.json")

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["holdfast", "key", *words])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code, capsys.readouterr()

    code, said = run("add", file, "--name", "alice", "--role", "read,attack")
    assert code == 0
    word = said.out.strip()
    assert word.startswith("hf_")
    assert word not in (tmp_path / "keys.json").read_text()
    code, said = run("list", file, "--json")
    assert [(key["name"], key["roles"]) for key in json.loads(said.out)] == [("alice", ["read", "attack"])]
    assert run("add", file, "--name", "bob", "--role", "root")[0] == 2
    assert run("remove", file, "bob")[0] == 2
    assert run("remove", file, "alice")[0] == 0
    assert json.loads(run("list", file, "--json")[1].out) == []
