"""Running a coroutine without a task: results, errors, waits, cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from sparklog_broker.running_request import RunningRequest, Wakeup

Ends = list[tuple[Any, BaseException | None]]


def run(work: Callable[[], Coroutine[Any, Any, Any]], then: Callable[[RunningRequest[Any], Ends], Any]) -> Ends:
    """Starts `work()`, does what `then` says, and lets the loop turn a few times."""

    async def main() -> Ends:
        ends: Ends = []
        running: RunningRequest[Any] = RunningRequest(
            work(), asyncio.get_running_loop(), lambda result, error: ends.append((result, error))
        )
        running.start()
        then(running, ends)
        for _ in range(10):
            await asyncio.sleep(0)
        return ends

    return asyncio.run(main())


def test_what_never_waits_ends_at_once() -> None:
    async def work() -> str:
        return "answer"

    def at_once(_: RunningRequest[Any], ends: Ends) -> None:
        assert ends == [("answer", None)]

    assert run(work, at_once) == [("answer", None)]


def test_what_waits_gets_what_it_waited_for() -> None:
    async def work() -> list[Any]:
        loop = asyncio.get_running_loop()
        first = loop.create_future()
        loop.call_soon(first.set_result, 1)
        found = [await first]
        await asyncio.sleep(0)
        second = loop.create_future()
        loop.call_soon(second.set_exception, KeyError("no"))
        try:
            await second
        except KeyError:
            found.append("no")
        found += await asyncio.gather(asyncio.sleep(0, "a"), asyncio.sleep(0, "b"))
        return found

    def not_yet(_: RunningRequest[Any], ends: Ends) -> None:
        assert ends == []

    assert run(work, not_yet) == [([1, "no", "a", "b"], None)]


@pytest.mark.parametrize("waits", [False, True])
def test_an_error_is_told(waits: bool) -> None:
    async def work() -> None:
        if waits:
            await asyncio.sleep(0)
        raise KeyError("defect")

    ((result, error),) = run(work, lambda running, ends: None)
    assert result is None
    assert isinstance(error, KeyError)


def test_it_is_cancelled_where_it_waits_and_may_wait_while_it_cleans_up() -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(0)
            seen.append("cleaned up")

    ((result, error),) = run(work, lambda running, ends: running.cancel())
    assert result is None
    assert isinstance(error, asyncio.CancelledError)
    assert seen == ["cleaned up"]


def test_who_cancels_itself_waits_for_nothing_more() -> None:
    found: list[RunningRequest[Any]] = []

    async def work() -> None:
        await asyncio.sleep(0)
        found[0].cancel()
        await asyncio.get_running_loop().create_future()

    ((_, error),) = run(work, lambda running, ends: found.append(running))
    assert isinstance(error, asyncio.CancelledError)


def test_it_is_cancelled_even_if_what_it_waits_for_is_there() -> None:
    """The future is done, and the coroutine has not been resumed yet."""
    future: list[asyncio.Future[None]] = []
    went_on: list[bool] = []

    async def work() -> None:
        future.append(asyncio.get_running_loop().create_future())
        await future[0]
        went_on.append(True)

    def cancel(running: RunningRequest[Any], _: Ends) -> None:
        future[0].set_result(None)
        running.cancel()

    ((_, error),) = run(work, cancel)
    assert isinstance(error, asyncio.CancelledError)
    assert went_on == []


def test_a_cancellation_that_is_caught_ends_with_the_result() -> None:
    async def work() -> str:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            return "at its end"
        return ""

    assert run(work, lambda running, ends: running.cancel()) == [("at its end", None)]


def test_who_is_woken_now_has_gone_on_when_that_returns() -> None:
    steps: list[Any] = []
    wakeups: list[Wakeup[int]] = []

    async def work() -> str:
        for _ in range(3):
            wakeups.append(Wakeup())
            steps.append(await wakeups[-1])
        return "answer"

    def wake(_: RunningRequest[Any], ends: Ends) -> None:
        wakeups[0].set_result_now(1)
        assert (steps, len(wakeups)) == ([1], 2)
        wakeups[1].set_result(2)
        assert steps == [1]
        asyncio.get_running_loop().call_soon(lambda: wakeups[2].set_result_now(3))
        assert ends == []

    assert run(work, wake) == [("answer", None)]
    assert steps == [1, 2, 3]


def test_who_is_woken_now_may_fail_or_be_cancelled() -> None:
    wakeup: list[Wakeup[int]] = []

    async def fails() -> None:
        wakeup.append(Wakeup())
        await wakeup[-1]
        raise KeyError("defect")

    def wake(_: RunningRequest[Any], ends: Ends) -> None:
        wakeup[-1].set_result_now(1)
        assert [type(error) for _, error in ends] == [KeyError]

    ((_, error),) = run(fails, wake)
    assert isinstance(error, KeyError)
    ((_, error),) = run(fails, lambda running, ends: running.cancel())
    assert isinstance(error, asyncio.CancelledError)


def test_a_task_is_woken_in_the_next_turn() -> None:
    async def main() -> None:
        wakeup: Wakeup[int] = Wakeup()

        async def wait() -> int:
            return await wakeup

        task = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        wakeup.set_result_now(7)
        assert not task.done()
        assert await task == 7

    asyncio.run(main())
