"""Time, company and room: what outlives its time is stopped, what is too much waits or is refused, and all is noted."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from serving import ask, png, problem, serving

from holdfast import deadline
from holdfast.certify import largest_eps
from holdfast.data import Picture
from holdfast.deadline import Deadline, running
from holdfast.errors import ConfigError, OutOfTimeError
from holdfast.gallery import Gallery
from holdfast.gallery.provers import Options
from holdfast.service import engine, logs
from holdfast.service.batching import Batcher
from holdfast.service.engine import Served
from holdfast.service.limits import Limits
from holdfast.service.pictures import QueryStore, digest_of
from holdfast.service.problems import BusyError
from holdfast.service.queues import Gate, Workers


def test_a_deadline_is_of_its_thread_alone():
    with running(Deadline(1000)):
        deadline.check()
        over = Deadline(0)
        time.sleep(0.001)
        with running(over), pytest.raises(OutOfTimeError, match="longer than 0 seconds"):
            deadline.check()
        deadline.check()
        ending = Deadline(1000)
        with running(ending):
            ending.cancel()
            with pytest.raises(OutOfTimeError):
                deadline.check()
            with ThreadPoolExecutor(1) as pool:
                pool.submit(deadline.check).result()
    deadline.check()


def test_long_loops_look_at_the_deadline(shop):
    import torch

    over = Deadline(0)
    time.sleep(0.001)
    with running(over):
        with pytest.raises(OutOfTimeError):
            largest_eps(lambda eps: torch.ones(2, dtype=torch.bool), 2)
        served = Served("s", str(shop.gallery), shop.model)
        picture = Picture(torch.zeros(1, 28, 28, dtype=torch.uint8).numpy())
        from holdfast.threat import Threat

        with pytest.raises(OutOfTimeError):
            served.certified(picture, 2, Threat.parse("both:linf:0.01"))
        with pytest.raises(OutOfTimeError):
            served.certified(picture, 2, Threat.parse("linf:0.05"), Options(method="crown"))
        served.close()


def test_work_that_does_not_notice_is_answered_for_and_keeps_its_place():
    async def run():
        with ThreadPoolExecutor(1) as pool:
            workers = Workers("tests", pool, 1, 1)
            release = threading.Event()
            with pytest.raises(OutOfTimeError):
                await workers.run(Deadline(0.05), lambda: release.wait(20))
            assert workers.gate.inside == 1
            with pytest.raises(BusyError):
                await workers.run(Deadline(5), lambda: None)
            release.set()
            while workers.gate.inside:
                await asyncio.sleep(0.01)
            assert await workers.run(Deadline(5), lambda: 7) == 7

    asyncio.run(run())


def test_who_goes_away_stops_the_work():
    async def run():
        with ThreadPoolExecutor(1) as pool:
            workers, ended = Workers("tests", pool, 1, 1), threading.Event()

            def work():
                try:
                    while True:
                        deadline.check()
                        time.sleep(0.005)
                finally:
                    ended.set()

            task = asyncio.create_task(workers.run(Deadline(60), work))
            await asyncio.sleep(0.05)
            task.cancel()
            assert await asyncio.to_thread(ended.wait, 5)

    asyncio.run(run())


def test_batches_are_what_came_meanwhile_and_one_bad_entry_spoils_no_other():
    sizes = []

    def work(asked):
        sizes.append(len(asked))
        time.sleep(0.02)
        return [10 // x for x in asked]

    async def run():
        with ThreadPoolExecutor(1) as pool:
            batcher = Batcher(work, pool, most=4)
            asked = [5, 1, 2, 0, 10, 1, 2]
            return await asyncio.gather(*(batcher.submit(x) for x in asked), return_exceptions=True)

    found = asyncio.run(run())
    assert [x for x in found if not isinstance(x, Exception)] == [2, 10, 5, 1, 10, 5]
    assert isinstance(found[3], ZeroDivisionError)
    assert sizes == [4, 1, 1, 1, 1, 3]


def test_who_no_longer_waits_is_not_searched_for():
    seen = []

    async def run():
        with ThreadPoolExecutor(1) as pool:
            batcher = Batcher(lambda asked: seen.extend(asked) or time.sleep(0.05) or asked, pool)
            first = asyncio.create_task(batcher.submit(1))
            await asyncio.sleep(0.01)
            second, third = (asyncio.create_task(batcher.submit(x)) for x in (2, 3))
            await asyncio.sleep(0)
            second.cancel()
            assert await third == 3
            assert await first == 1

    asyncio.run(run())
    assert seen == [1, 3]


def test_too_many_at_once_are_told_to_come_back(shop, tmp_path, monkeypatch):
    hold, real = threading.Event(), Gallery.search

    def slow(self, *args, **options):
        hold.wait(20)
        return real(self, *args, **options)

    monkeypatch.setattr(Gallery, "nearest", slow)
    with serving(shop, tmp_path, limits=Limits(waiting=3)) as (client, desk), ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(ask, client, png(seed=i), k=1) for i in range(3)]
        while desk.plain_gate.inside < 3:
            time.sleep(0.01)
        answer = ask(client, png(), k=1)
        problem(answer, 503, "busy: 3 requests for searches")
        assert answer.headers["retry-after"] == "1"
        assert client.get("/healthz").status_code == 200
        hold.set()
        assert [one.result().status_code for one in waiting] == [200, 200, 200]
        assert ask(client, png(), k=1).status_code == 200


def test_a_plain_search_does_not_wait_behind_proofs_and_attacks(shop, tmp_path, monkeypatch):
    hold, real = threading.Event(), engine.certified

    def slow(gallery, *args, **options):
        with gallery.snapshot():
            hold.wait(20)
            return real(gallery, *args, **options)

    monkeypatch.setattr(engine, "certified", slow)
    with serving(shop, tmp_path) as (client, desk), ThreadPoolExecutor(4) as pool:
        dear = pool.submit(ask, client, png(), path="search/certified", threat="linf:auto", k=1)
        attack = pool.submit(ask, client, png(), path="attack", threat="linf:0.01", k=1, steps=2)
        while desk.proofs.gate.inside + desk.attacks.gate.inside < 2:
            time.sleep(0.01)
        assert ask(client, png(), k=1).status_code == 200
        hold.set()
        assert dear.result().status_code == attack.result().status_code == 200


def test_pictures_that_were_searched_for_have_bounded_room(tmp_path):
    store = QueryStore(tmp_path, 25_000)
    digests = [store.keep(bytes([i]) * 10_000) for i in range(2)]
    assert store.keep(bytes([0]) * 10_000) == digests[0] == digest_of(bytes([0]) * 10_000)
    digests.append(store.keep(bytes([2]) * 10_000))
    assert store.read(digests[1]) is None, "the one not used for longest makes room"
    assert store.read(digests[0]) == bytes([0]) * 10_000
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 25_000
    again = QueryStore(tmp_path, 25_000)
    assert again.read(digests[2]) == bytes([2]) * 10_000
    (tmp_path / digests[2]).write_bytes(b"other")
    assert again.read(digests[2]) is None
    assert again.read("../conftest.py") is None


def test_gates_and_limits_check_themselves():
    gate = Gate("x", 1)
    gate.enter()
    with pytest.raises(BusyError):
        gate.enter()
    gate.leave()
    gate.enter()
    with pytest.raises(ConfigError, match="the limit 'k' is more than 0"):
        Limits(k=0)


def test_each_request_is_one_line_of_json(client):
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.JsonLines())
    logs.logger.addHandler(handler)
    logs.logger.setLevel(logging.INFO)
    try:
        number = ask(client, png(), k=1).headers["x-request-id"]
        client.get("/api/v1/items/a%0ab%22")
        client.request("BREW", "/api/v1/search")
        lines = []
        for _ in range(100):
            lines = [json.loads(line) for line in stream.getvalue().splitlines()]
            if len([line for line in lines if line["event"] == "request"]) >= 3:
                break
            time.sleep(0.02)
    finally:
        logs.logger.removeHandler(handler)
        logs.logger.setLevel(logging.NOTSET)
    requests = [line for line in lines if line["event"] == "request"]
    assert [line["status"] for line in requests] == [200, 404, 405]
    assert requests[0]["request"] == number
    assert requests[0]["ms"] > 0
    assert requests[1]["path"] == '/api/v1/items/a\nb"'
    assert requests[2]["method"] == "other"
    assert {"time", "level", "client", "sent"} <= set(requests[0])


def test_measurements(client):
    ask(client, png(), k=1)
    ask(client, png(), k=0)
    ask(client, png(), path="search/certified", threat="linf:1/255", k=1)
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    lines = answer.text.splitlines()
    counts = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line[0] != "#"}
    assert counts['holdfast_requests_total{method="POST",route="/api/v1/search",status="200"}'] >= 1
    assert counts['holdfast_requests_total{method="POST",route="/api/v1/search",status="422"}'] >= 1
    assert counts['holdfast_request_seconds_count{route="/api/v1/search"}'] >= 2
    assert counts['holdfast_gallery_images{gallery="shop"}'] == 60
    assert counts['holdfast_gallery_up{gallery="shop"}'] == 1
    assert counts['holdfast_waiting{work="searches"}'] == 0
    assert counts["process_resident_memory_bytes"] > 1e7
    assert any(name.startswith("holdfast_verdicts_total") for name in counts)
    before = len(counts)
    for i in range(20):
        client.get(f"/nothing/{i}")
    assert len([line for line in client.get("/metrics").text.splitlines() if line[0] != "#"]) < before + 40
