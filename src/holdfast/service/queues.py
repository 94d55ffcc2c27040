"""Work that waits: each caller has a queue of his own, and they are served in turn."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from holdfast.deadline import Deadline, running
from holdfast.errors import OutOfTimeError
from holdfast.service.callers import caller
from holdfast.service.problems import BusyError, EndingError

T = TypeVar("T")

GRACE = 0.5
"""Seconds that work which notices its deadline by itself has to say so."""
CALLERS = 4
"""So many callers may have full queues; when they have, every other one may still have one request."""


class Gate:
    """At most `most` inside for each caller; for the event loop's thread alone."""

    def __init__(self, name: str, most: int) -> None:
        self.name, self.most = name, most
        self._inside: Counter[str] = Counter()

    @property
    def inside(self) -> int:
        return self._inside.total()

    def enter(self, who: str = "") -> None:
        mine = self._inside[who]
        if mine >= self.most or (mine and self.inside >= CALLERS * self.most):
            raise BusyError(
                f"the service is busy: {mine} requests for {self.name} of yours are under way; try again in a moment"
            )
        self._inside[who] += 1

    def leave(self, who: str = "") -> None:
        self._inside[who] -= 1
        if not self._inside[who]:
            del self._inside[who]


class Turns(Generic[T]):
    """What waits, by caller: the callers are served in turn, and each in the order in which he asked."""

    def __init__(self) -> None:
        self._queues: OrderedDict[str, deque[T]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._queues)

    def put(self, who: str, thing: T) -> None:
        self._queues.setdefault(who, deque()).append(thing)

    def take(self) -> T:
        who, waiting = next(iter(self._queues.items()))
        thing = waiting.popleft()
        del self._queues[who]
        if waiting:
            self._queues[who] = waiting
        return thing


@dataclass(frozen=True, eq=False)
class _Job:
    who: str
    deadline: Deadline
    work: Callable[[], Any]
    answer: asyncio.Future[Any]


class Workers:
    """Threads for one kind of work, and a bounded queue of each caller before them."""

    def __init__(self, name: str, pool: Executor, threads: int, most: int) -> None:
        self.gate = Gate(name, most)
        self._pool, self._free = pool, threads
        self._waiting: Turns[_Job] = Turns()
        self._running: set[Deadline] = set()
        self._ending = False

    async def run(self, deadline: Deadline, work: Callable[[], T]) -> T:
        """What `work` gives, in a thread in which the deadline is running.

        Work that does not notice its deadline is left behind when it has passed: who asked is answered, and its
        place stays taken until it really ends.
        """
        if self._ending:
            raise EndingError
        who, context = caller(), copy_context()
        self.gate.enter(who)

        def stoppable() -> T:
            with running(deadline):
                deadline.check()
                return work()

        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._running.add(deadline)
        self._waiting.put(who, _Job(who, deadline, lambda: context.run(stoppable), answer))
        self._start()
        try:
            return await asyncio.wait_for(asyncio.shield(answer), deadline.left + GRACE)
        except (TimeoutError, OutOfTimeError):
            if self._ending:
                raise EndingError from None
            raise OutOfTimeError(
                f"the work took longer than {deadline.seconds:g} seconds and was stopped"
            ) from None
        except asyncio.CancelledError:
            deadline.cancel()
            raise

    def stop(self) -> None:
        """Stop everything under way at its next check; nothing new is begun."""
        self._ending = True
        for deadline in self._running:
            deadline.cancel()
        while self._waiting:
            job = self._waiting.take()
            self._ended(job)
            if not job.answer.done():
                job.answer.set_exception(EndingError())
                job.answer.exception()

    def _start(self) -> None:
        """Begin what waits, as long as threads are free."""
        while self._free and self._waiting:
            job = self._waiting.take()
            self._free -= 1
            done = asyncio.get_running_loop().run_in_executor(self._pool, job.work)
            done.add_done_callback(lambda done, job=job: self._done(done, job))  # type: ignore[misc]

    def _done(self, done: asyncio.Future[Any], job: _Job) -> None:
        self._free += 1
        self._ended(job)
        if job.answer.done():
            pass  # Nobody waits for it any more.
        elif done.cancelled():
            job.answer.cancel()
        elif (error := done.exception()) is not None:
            job.answer.set_exception(error)
            job.answer.exception()  # Told to whoever waits; if nobody does any more, it is no news.
        else:
            job.answer.set_result(done.result())
        if not self._ending:
            self._start()

    def _ended(self, job: _Job) -> None:
        self.gate.leave(job.who)
        self._running.discard(job.deadline)
