"""Many at once: connections, bodies and callers have bounds, and one who takes much stops nobody else."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest
from serving import ask, png, problem, serving

from holdfast.deadline import Deadline
from holdfast.errors import ConfigError
from holdfast.service import callers, connections, logs, server
from holdfast.service.bodies import Room
from holdfast.service.keys import KeyRing, add_key
from holdfast.service.limits import Limits
from holdfast.service.problems import BusyError, EndingError
from holdfast.service.queues import Turns, Workers
from holdfast.service.routes import items

SEARCH = (
    b"POST /api/v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n"
)


@pytest.fixture
def connect():
    """Makes connections to a service (or a port of this machine), which are closed at the end."""
    with ExitStack() as all_:

        def to(client) -> socket.socket:
            port = client if isinstance(client, int) else client.base_url.port
            return all_.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))

        yield to


def closed(line: socket.socket, seconds: float) -> bool:
    """Whether the other side closes it within this time."""
    line.settimeout(seconds)
    try:
        return line.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_idle_connections_make_room_and_do_not_stay(shop, tmp_path, connect):
    limits = Limits(connections=12, connections_of_one=8, head_seconds=1)
    with serving(shop, tmp_path, limits=limits) as (client, _):
        lines = [connect(client) for _ in range(40)]
        for _ in range(3):
            assert httpx.get(f"{client.base_url}/healthz", timeout=10).status_code == 200
        assert sum(closed(line, 0.05) for line in lines[:30]) >= 30, "the oldest made room"
        assert all(closed(line, 5) for line in lines), "none is open for ever"
        assert ask(client, png(), k=1).status_code == 200


def test_the_head_of_a_request_has_its_time_however_it_trickles(shop, tmp_path, connect):
    with serving(shop, tmp_path, limits=Limits(head_seconds=0.6)) as (client, _):
        line = connect(client)
        start = time.monotonic()
        try:
            line.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
            while time.monotonic() - start < 10 and not closed(line, 0.1):
                line.sendall(b"X: y\r\n")
        except OSError:
            pass
        assert time.monotonic() - start < 5
        line = connect(client)
        for _ in range(3):  # A connection that asks again has its time anew.
            line.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            said = b""
            while b'"ok"' not in said:
                said += line.recv(1000)
            time.sleep(0.3)


def test_busy_connections_are_not_closed_for_new_ones(own_shop, tmp_path, monkeypatch, connect):
    hold, real = threading.Event(), items.add_item

    def slow(*args, **options):
        hold.wait(20)
        return real(*args, **options)

    monkeypatch.setattr(items, "add_item", slow)
    limits = Limits(connections=3, connections_of_one=3)
    with (
        serving(own_shop, tmp_path / "c", limits=limits, writable=True) as (client, desk),
        ThreadPoolExecutor(3) as pool,
    ):
        waiting = [pool.submit(ask, client, png(), path="items", id=f"new-{i}") for i in range(3)]
        while desk.writes.gate.inside < 3:
            time.sleep(0.01)
        assert closed(connect(client), 5)
        hold.set()
        assert {one.result().status_code for one in waiting} == {201}


def test_without_files_a_listener_neither_spins_nor_stops(connect):
    """A process that may open 40 files is sent 60 connections: what it serves goes on, and it says little."""
    program = """
import asyncio, resource, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
from holdfast.service import logs
from holdfast.service.address import listen
from holdfast.service.connections import Listener
logs.set_up()
async def main():
    listener = listen("127.0.0.1", 0, Listener)
    listener.keep_spare()
    class Echo(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport
        def data_received(self, data):
            self.transport.write(data)
    server = await asyncio.get_running_loop().create_server(Echo, sock=listener, backlog=2048)
    print(listener.getsockname()[1], flush=True)
    await asyncio.sleep(2.5)
    print(time.process_time(), flush=True)
began = time.process_time()
asyncio.run(main())
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    port = int(process.stdout.readline())
    lines = [connect(port) for _ in range(60)]
    lines[0].sendall(b"still here\n")
    assert lines[0].recv(100) == b"still here\n"
    assert any(closed(line, 0.01) for line in lines[30:])
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert float(out.split()[-1]) < 1.5
    said = [json.loads(line) for line in err.splitlines()]
    assert 0 < len(said) < 100
    assert {line["event"] for line in said} == {"connection refused"}


def test_a_service_takes_the_files_it_needs_or_says_so(monkeypatch):
    asked = []
    monkeypatch.setattr(connections.resource, "getrlimit", lambda _: (256, 1024))
    monkeypatch.setattr(connections.resource, "setrlimit", lambda _, both: asked.append(both))
    connections.check_files(Limits())
    assert asked == [(512 + 64 + 128, 1024)]
    with pytest.raises(
        ConfigError, match="2000 connections need 2192 open files, and this process may have 1024"
    ):
        connections.check_files(Limits(connections=2000))


def test_room_for_bodies_is_taken_before_they_are_read(shop, tmp_path, connect):
    limits = Limits(bytes=100_000, bodies=4, seconds=20)
    with serving(shop, tmp_path, limits=limits) as (client, _):
        held = [connect(client) for _ in range(2)]
        for line in held:
            line.sendall(SEARCH + b"Content-Length: 90000\r\n\r\n--x")
        time.sleep(0.3)
        refused = ask(client, png(200, 200), k=1)
        problem(refused, 503, "holds as many bytes of requests as it may")
        assert refused.headers["retry-after"] == "1"
        assert client.get("/healthz").status_code == 200
        assert ask(client, png(), k=1).status_code == 200, "what is small has room"
        for line in held:
            line.close()
        for _ in range(100):
            if ask(client, png(200, 200), k=1).status_code == 200:
                break
            time.sleep(0.05)
        else:
            raise AssertionError("the room was not given back")


def test_bodies_without_a_length_take_room_as_they_arrive(shop, tmp_path, connect):
    with serving(shop, tmp_path, limits=Limits(bytes=100_000, bodies=2)) as (client, _):
        line = connect(client)
        part = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n' + b"a" * 60_000
        line.sendall(SEARCH + b"Transfer-Encoding: chunked\r\n\r\n")
        line.sendall(b"%x\r\n%s\r\n" % (len(part), part))
        time.sleep(0.3)
        problem(ask(client, png(230, 230), k=1), 503, "holds as many bytes")
        line.close()


def test_one_caller_has_half_of_the_room():
    room = Room(1000)
    room.take("a", 500)
    with pytest.raises(BusyError):
        room.take("a", 1)
    room.take("b", 400)
    with pytest.raises(BusyError):
        room.take("c", 200)
    room.give_back("a", 500)
    room.take("c", 200)
    assert room.taken == 600


def test_callers_are_served_in_turn():
    turns = Turns()
    for number in range(4):
        turns.put("a", f"a{number}")
    turns.put("b", "b0")
    turns.put("c", "c0")
    turns.put("b", "b1")
    assert [turns.take() for _ in range(7)] == ["a0", "b0", "c0", "a1", "b1", "a2", "a3"]
    assert not turns


def test_addresses_and_keys_are_callers():
    assert callers.of_address("192.0.2.7") == callers.of_address("::ffff:192.0.2.7") == "address 192.0.2.7"
    assert callers.of_address("2001:db8:1:2::5") == callers.of_address("2001:db8:1:2:ffff::1")
    assert callers.of_address("2001:db8:1:2::5") != callers.of_address("2001:db8:1:3::5")
    assert callers.of_address(None) != callers.of_address("192.0.2.7")
    assert callers.of_key("192.0.2.7") != callers.of_address("192.0.2.7")


def test_one_who_asks_for_much_makes_nobody_else_wait_behind_all_of_it(shop, tmp_path, monkeypatch):
    from holdfast.service import engine

    hold, order, real = threading.Event(), [], engine.certified

    def slow(*args, **options):
        hold.wait(20)
        order.append(callers.caller())
        return real(*args, **options)

    monkeypatch.setattr(engine, "certified", slow)
    file = tmp_path / "keys.json"
    greedy, modest = ({"x-api-key": add_key(file, name, ["read", "attack"])} for name in ("greedy", "modest"))
    limits = Limits(heavy=1, heavy_waiting=8)
    with (
        serving(shop, tmp_path / "c", keys=KeyRing(file), limits=limits) as (client, desk),
        ThreadPoolExecutor(30) as pool,
    ):
        proof = {"path": "search/certified", "threat": "linf:1/255", "k": 1}
        many = [pool.submit(ask, client, png(seed=i), headers=greedy, **proof) for i in range(20)]
        while sum(one.done() for one in many) < 12 or desk.certified.gate.inside < 8:
            time.sleep(0.01)
        other = pool.submit(ask, client, png(seed=50), headers=modest, **proof)
        while desk.certified.gate.inside < 9:
            time.sleep(0.01)
        hold.set()
        assert other.result().status_code == 200
        statuses = sorted(one.result().status_code for one in many)
    assert statuses == [200] * 8 + [503] * 12
    assert order.index("key modest") <= 2, "behind the one under way and the next, not behind all"


def test_what_is_stopped_is_told_that_the_service_ends():
    async def run():
        with ThreadPoolExecutor(1) as pool:
            workers, release = Workers("tests", pool, 1, 5), threading.Event()
            first = asyncio.create_task(workers.run(Deadline(60), lambda: release.wait(20)))
            second = asyncio.create_task(workers.run(Deadline(60), lambda: None))
            await asyncio.sleep(0.05)
            workers.stop()
            release.set()
            with pytest.raises(EndingError):
                await second
            await asyncio.wait([first])
            with pytest.raises(EndingError):
                await workers.run(Deadline(60), lambda: None)

    asyncio.run(run())


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_service_that_ends_under_writers_answers_all_of_them(own_shop, tmp_path, monkeypatch, stubborn):
    """Writers that outlive the time they have are told so; none gets a 500, and nothing is logged as a mistake."""
    real, stream = items.add_item, io.StringIO()

    def slow(*args, **options):
        time.sleep(2.5 if stubborn else 0.2)
        return real(*args, **options)

    monkeypatch.setattr(items, "add_item", slow)
    monkeypatch.setattr(server, "DRAIN", 0.5)
    monkeypatch.setattr(server, "STOPPED", 0.5)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.JsonLines())
    logging.getLogger().addHandler(handler)
    try:
        with ThreadPoolExecutor(6) as pool:
            with serving(own_shop, tmp_path / "c", writable=True) as (client, desk):

                def write(number):
                    with httpx.Client(base_url=client.base_url, timeout=60) as own:
                        return ask(own, png(seed=number), path="items", id=f"late-{number}")

                asked = [pool.submit(write, number) for number in range(6)]
                while desk.writes.gate.inside < 6:
                    time.sleep(0.01)
            answers = [one.result() for one in asked]
    finally:
        logging.getLogger().removeHandler(handler)
    assert {answer.status_code for answer in answers} <= {201, 503}
    assert 503 in {answer.status_code for answer in answers}
    for answer in answers:
        if answer.status_code == 503:
            problem(answer, 503, "the service is ending")
    assert '"trace"' not in stream.getvalue()


def test_who_leaves_is_counted_as_one_who_left(shop, tmp_path, monkeypatch):
    from holdfast.service import engine

    begun, real = threading.Event(), engine.certified

    def slow(*args, **options):
        begun.set()
        from holdfast import deadline

        for _ in range(400):
            deadline.check()
            time.sleep(0.02)
        return real(*args, **options)

    monkeypatch.setattr(engine, "certified", slow)
    with serving(shop, tmp_path) as (client, _):
        with pytest.raises(httpx.ReadTimeout):
            client.post(
                "/api/v1/search/certified",
                files={"image": ("q.png", png())},
                data={"threat": "linf:1/255"},
                timeout=2.0,
            )
        assert begun.is_set()
        route = 'route="/api/v1/search/certified"'
        for _ in range(100):
            lines = [line for line in client.get("/metrics").text.splitlines() if route in line]
            if any("requests_total" in line for line in lines):
                break
            time.sleep(0.05)
        counted = [line for line in lines if "requests_total" in line]
        assert len(counted) == 1
        assert 'status="499"' in counted[0]


@pytest.mark.parametrize(
    "host",
    ["user@localhost", "localhost/evil", "localhost:80:90", "localhost?x", "localhost#x", "[::1", " ", "a b"],
)
def test_hosts_that_are_no_hosts(client, shop, tmp_path, host, connect):
    line = connect(client)
    line.sendall(f"GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    assert line.recv(100).split()[1] in (b"400", b"403")


def test_lines_of_a_kind_are_counted_beyond_what_a_log_takes():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.JsonLines())
    handler.addFilter(logs.AtMost(3, 20.0))
    own = logging.Logger("tests")
    own.addHandler(handler)
    for _ in range(50):
        own.warning("many")
    own.error("another")
    assert len(stream.getvalue().splitlines()) == 4
    time.sleep(0.2)
    own.warning("many")
    assert json.loads(stream.getvalue().splitlines()[-1])["left_out"] == 47


def test_all_that_a_process_says_is_json():
    program = """
import asyncio, logging, threading, warnings
from holdfast.service import logs
logs.set_up()
warnings.warn("old")
logging.getLogger("some.library").error("broken")
logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
threading.Thread(target=lambda: 1 / 0).start()
async def main():
    asyncio.get_running_loop().call_exception_handler({"message": "accept failed"})
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    said = [json.loads(line) for line in done.stderr.splitlines()]
    assert len(said) == 5
    assert "ZeroDivisionError" in json.dumps(said)
