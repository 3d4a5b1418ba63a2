"""Work off the loop: short work finds a thread beside long work, and what runs counts until it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from pagemill_common.intake import Offload


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


async def until_idle(offload: Offload) -> None:
    async with asyncio.timeout(10):
        while offload.pending:  # noqa: ASYNC110 - threads make it true
            await asyncio.sleep(0.001)


def test_short_work_does_not_wait_for_long_work(executor: ThreadPoolExecutor) -> None:
    async def main() -> None:
        offload, free = Offload(executor, 2), Event()
        long = [asyncio.create_task(offload.run(free.wait, long=True)) for _ in range(4)]
        await asyncio.sleep(0)  # all four have begun to wait or work
        try:
            async with asyncio.timeout(10):
                assert await offload.run(lambda: "short") == "short"
            assert offload.pending == 4
        finally:
            free.set()
        assert await asyncio.gather(*long) == [True] * 4
        await until_idle(offload)

    asyncio.run(main())


def test_a_caller_who_goes_frees_no_thread_that_still_works(executor: ThreadPoolExecutor) -> None:
    async def main() -> None:
        offload, begun, free, second = Offload(executor, 2), Event(), Event(), Event()

        def work() -> None:
            begun.set()
            free.wait()

        first = asyncio.create_task(offload.run(work, long=True))
        await asyncio.to_thread(begun.wait)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        waiting = asyncio.create_task(offload.run(second.set, long=True))
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(10):
                await offload.run(lambda: None)
            assert not second.is_set()
            assert offload.pending == 2
        finally:
            free.set()
        await waiting
        await until_idle(offload)

    asyncio.run(main())


def test_nothing_is_left_of_callers_who_go_while_they_wait(executor: ThreadPoolExecutor) -> None:
    async def main() -> None:
        offload, free = Offload(executor, 2), Event()
        tasks = [asyncio.create_task(offload.run(free.wait, long=long)) for long in (True, True, False, False, False)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        free.set()
        await until_idle(offload)
        assert await offload.run(lambda: 1, long=True) == 1

    asyncio.run(main())


def test_failures_reach_the_caller_and_free_the_turn(executor: ThreadPoolExecutor) -> None:
    async def main() -> None:
        offload = Offload(executor, 2)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await offload.run(lambda: 1 // 0, long=True)
        await until_idle(offload)
        executor.shutdown()
        with pytest.raises(RuntimeError):
            await offload.run(lambda: 1, long=True)
        assert offload.pending == 0

    asyncio.run(main())
