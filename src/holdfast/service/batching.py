"""Searches that arrive while one is under way go on together: one pass of the network, one of the gallery."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Generic, TypeVar

from holdfast.service.queues import Turns

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class Batcher(Generic[Asked, Answer]):
    """`work` on lists of what `submit` was given, one list at a time, in a thread of `pool`.

    Nobody waits for company: a list is whatever came while the one before was worked on, of all callers in turn.
    An error in a list of several is asked again of each alone, so that one bad entry spoils no other.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Asked]], Sequence[Answer]],
        pool: Executor,
        most: int = 32,
        seen: Callable[[int], None] = lambda size: None,
    ) -> None:
        self._work, self._pool, self._most, self._seen = work, pool, most, seen
        self._waiting: Turns[tuple[Asked, asyncio.Future[Answer]]] = Turns()
        self._task: asyncio.Task[None] | None = None

    async def submit(self, asked: Asked, who: str = "") -> Answer:
        """The answer to what `who` asked; given up if whoever waits is cancelled before its turn."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.put(who, (asked, future))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
        return await future

    async def _run(self) -> None:
        while self._waiting:
            taken: list[tuple[Asked, asyncio.Future[Answer]]] = []
            while self._waiting and len(taken) < self._most:
                asked, future = self._waiting.take()
                if not future.done():
                    taken.append((asked, future))
            if taken:
                self._seen(len(taken))
                await self._answer(taken)

    async def _answer(self, taken: list[tuple[Asked, asyncio.Future[Answer]]]) -> None:
        loop = asyncio.get_running_loop()
        try:
            answers = await loop.run_in_executor(self._pool, self._work, [asked for asked, _ in taken])
        except Exception as error:
            if len(taken) > 1:
                for one in taken:
                    await self._answer([one])
                return
            if not taken[0][1].done():
                taken[0][1].set_exception(error)
            return
        for (_, future), answer in zip(taken, answers, strict=True):
            if not future.done():
                future.set_result(answer)
