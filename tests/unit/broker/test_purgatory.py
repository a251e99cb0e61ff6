"""Waiting requests: no wake-up is lost, a wait ends once, nothing is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Hashable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sparklog_broker.partitions.purgatory import Outcome, Purgatory

LONG_S = 60.0


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


class Condition:
    """Something to wait for, which counts how often it is asked."""

    def __init__(self) -> None:
        self.value = False
        self.asked: list[Hashable | None] = []

    def __call__(self, key: Hashable | None) -> bool:
        self.asked.append(key)
        return self.value


async def waiting(
    purgatory: Purgatory, keys: list[str], condition: Any, timeout_s: float = LONG_S
) -> asyncio.Task[Outcome]:
    task = asyncio.ensure_future(purgatory.wait(keys, condition, timeout_s))
    await asyncio.sleep(0)
    return task


def test_satisfied_operations_do_not_wait() -> None:
    async def scenario() -> None:
        purgatory, condition = Purgatory(0), Condition()
        condition.value = True
        assert await purgatory.wait(["a"], condition, 0) is Outcome.SATISFIED
        assert purgatory.waiting_count == 0

    run(scenario())


def test_check_wakes_only_satisfied_waiters() -> None:
    async def scenario() -> None:
        purgatory, first, second = Purgatory(10), Condition(), Condition()
        one, two = await waiting(purgatory, ["a", "b"], first), await waiting(purgatory, ["b"], second)
        first.value = True
        assert purgatory.check("c") == 0
        assert purgatory.check("b") == 1
        assert await one is Outcome.SATISFIED
        assert not two.done() and purgatory.waiting_count == 1
        second.value = True
        assert purgatory.check("b") == 1
        assert await two is Outcome.SATISFIED
        assert purgatory.waiting_count == 0

    run(scenario())


def test_an_event_between_the_first_look_and_the_registration_is_not_lost() -> None:
    """Another thread may change the state after the first look; the second look, after registering, sees it."""

    async def scenario() -> None:
        looks = 0

        def satisfied(_: Hashable | None) -> bool:
            nonlocal looks
            looks += 1
            return looks >= 2  # what happens between the looks calls check() before anybody is registered

        assert await Purgatory(10).wait(["a"], satisfied, LONG_S) is Outcome.SATISFIED

    run(scenario())


def test_a_wait_is_registered_under_all_keys_before_the_second_look() -> None:
    async def scenario() -> None:
        purgatory = Purgatory(10)
        woken: list[int] = []

        class Reentrant(Condition):
            def __call__(self, key: Hashable | None) -> bool:
                super().__call__(key)
                if len(self.asked) == 2:  # the second look: an event now has to find the waiter under any key
                    self.value = True
                    woken.append(purgatory.check("b"))
                    return False
                return self.value

        assert await purgatory.wait(["a", "b"], Reentrant(), LONG_S) is Outcome.SATISFIED
        assert woken == [1]
        assert purgatory.waiting_count == 0

    run(scenario())


def test_checking_again_before_the_waiter_has_run_does_not_ask_it_again() -> None:
    async def scenario() -> None:
        purgatory, condition = Purgatory(10), Condition()
        task = await waiting(purgatory, ["a"], condition)
        condition.value = True
        assert purgatory.check("a") == 1
        asked = len(condition.asked)
        assert purgatory.check("a") == 0
        assert len(condition.asked) == asked
        assert await task is Outcome.SATISFIED
        assert purgatory.waiting_count == 0

    run(scenario())


def test_expiry() -> None:
    async def scenario() -> None:
        purgatory, condition = Purgatory(10), Condition()
        assert await purgatory.wait(["a"], condition, 0.001) is Outcome.EXPIRED
        assert await purgatory.wait(["a"], condition, 0) is Outcome.EXPIRED
        assert purgatory.waiting_count == 0
        condition.value = True
        assert purgatory.check("a") == 0

    run(scenario())


def test_cancelling_removes_all_watchers() -> None:
    async def scenario() -> None:
        purgatory, condition = Purgatory(10), Condition()
        task = await waiting(purgatory, ["a", "b"], condition)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert purgatory.waiting_count == 0
        condition.value = True
        assert purgatory.check("a") == purgatory.check("b") == 0

    run(scenario())


def test_one_too_many_is_refused_at_once() -> None:
    async def scenario() -> None:
        purgatory = Purgatory(1)
        first = await waiting(purgatory, ["a"], Condition())
        assert await purgatory.wait(["a"], Condition(), LONG_S) is Outcome.REFUSED
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        second = await waiting(purgatory, ["a"], Condition())
        assert not second.done()
        second.cancel()

    run(scenario())


def test_stopping_ends_all_waits_and_later_ones() -> None:
    async def scenario() -> None:
        purgatory = Purgatory(10)
        tasks = [await waiting(purgatory, keys, Condition()) for keys in (["a"], ["a", "b"], ["c"])]
        purgatory.stop()
        assert [await t for t in tasks] == [Outcome.STOPPED] * 3
        assert await purgatory.wait(["a"], Condition(), LONG_S) is Outcome.STOPPED
        assert purgatory.waiting_count == 0

    run(scenario())


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 2), st.integers(1, 3)),
        st.tuples(st.just("wait"), st.sets(st.integers(0, 2), min_size=1), st.integers(1, 6)),
        st.tuples(st.just("cancel"), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("run"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@given(EVENTS)
def test_any_order_of_events_wakes_exactly_the_satisfied_fetches(events: list[tuple[str, Any, int]]) -> None:
    """Model: partitions that grow; a waiter wants the sum over its partitions to reach a number."""

    async def scenario() -> None:
        purgatory, sizes = Purgatory(100), [0, 0, 0]
        waiters: list[tuple[asyncio.Task[Outcome], set[int], int]] = []
        cancelled: set[int] = set()
        for kind, what, number in events:
            if kind == "append":
                sizes[what] += number
                purgatory.check(what)
            elif kind == "wait":
                goal = sum(sizes[p] for p in what) + number

                def enough(_: Hashable | None, keys: set[int] = what, goal: int = goal) -> bool:
                    return sum(sizes[p] for p in keys) >= goal

                waiters.append((asyncio.ensure_future(purgatory.wait(what, enough, LONG_S)), what, goal))
            elif kind == "cancel" and what < len(waiters) and not waiters[what][0].done():
                waiters[what][0].cancel()
                cancelled.add(what)
            elif kind == "run":
                await asyncio.sleep(0)
        for _ in range(3):
            await asyncio.sleep(0)
        pending = 0
        for i, (task, keys, goal) in enumerate(waiters):
            if i in cancelled:
                assert task.done()
            elif sum(sizes[p] for p in keys) >= goal:
                assert task.result() is Outcome.SATISFIED
            else:
                assert not task.done()
                pending += 1
        assert purgatory.waiting_count == pending
        for task, _, _ in waiters:
            task.cancel()
        await asyncio.gather(*(t for t, _, _ in waiters), return_exceptions=True)
        assert purgatory.waiting_count == 0

    run(scenario())
