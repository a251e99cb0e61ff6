"""The producer's futures where the standard library expects its own."""

from __future__ import annotations

import asyncio
import concurrent.futures as standard
import threading

import pytest

from sparklog.client.producer.futures import BatchFuture, Delivery, RecordFuture
from sparklog.errors import MessageTooLargeError
from sparklog.types import RecordMetadata, TopicPartition

TP = TopicPartition("events", 0)


def delivery(records: int = 1) -> Delivery:
    made = Delivery(TP)
    made.record_count = records
    made.timestamps_us = [1_000 * i for i in range(records)]
    return made


def future_of(made: Delivery, index: int = 0) -> RecordFuture:
    future = RecordFuture()
    future.delivery, future.index = made, index
    return future


def later(action: object, *args: object) -> threading.Thread:
    thread = threading.Thread(target=action, args=args)  # type: ignore[arg-type]
    thread.start()
    return thread


def test_asyncio_waits_for_a_record() -> None:
    made = delivery()

    async def main() -> RecordMetadata:
        waiting = asyncio.wrap_future(future_of(made))
        thread = later(made.complete, 7, -1)
        found = await waiting
        thread.join()
        return found

    assert asyncio.run(main()) == RecordMetadata("events", 0, 7, 0)


def test_asyncio_gets_the_error_of_a_batch() -> None:
    made = delivery(3)

    async def main() -> None:
        waiting = asyncio.wrap_future(BatchFuture([made]))
        thread = later(made.fail, MessageTooLargeError("too large"))
        try:
            await waiting
        finally:
            thread.join()

    with pytest.raises(MessageTooLargeError, match="too large"):
        asyncio.run(main())


def test_wait_takes_records_of_one_batch_and_of_several() -> None:
    first, second = delivery(2), delivery()
    futures = [future_of(first, 0), future_of(first, 1), future_of(second)]
    first.complete(0, -1)
    assert standard.wait(futures, timeout=0.01).not_done == {futures[2]}
    assert standard.wait(futures, timeout=30, return_when=standard.FIRST_COMPLETED).done == set(futures[:2])
    thread = later(second.complete, 5, -1)
    assert standard.wait(futures, timeout=30).not_done == set()
    thread.join()


def test_as_completed_gives_results_and_errors() -> None:
    good, bad = delivery(), delivery()
    futures = [future_of(good), future_of(bad)]
    found = standard.as_completed(futures, timeout=30)  # type: ignore[arg-type, var-annotated]
    thread = later(lambda: (good.complete(3, -1), bad.fail(MessageTooLargeError("no"))))
    outcomes = {f: f.exception() for f in found}
    thread.join()
    assert outcomes[futures[0]] is None
    assert isinstance(outcomes[futures[1]], MessageTooLargeError)


def test_waiting_is_not_looking_at_the_error() -> None:
    made = delivery()
    thread = later(made.fail, MessageTooLargeError("no"))
    assert standard.wait([future_of(made)], timeout=30).not_done == set()
    thread.join()
    assert not made.seen


def test_ended_waiters_are_forgotten() -> None:
    future = future_of(delivery())
    assert standard.wait([future], timeout=0).not_done == {future}
    assert future._waiters == []


def test_only_the_producer_decides() -> None:
    made = delivery()
    future = future_of(made)
    assert isinstance(future, standard.Future)
    assert not future.cancel()
    for attempt in (future.set_running_or_notify_cancel, lambda: future.set_result(None)):  # type: ignore[arg-type]
        with pytest.raises(standard.InvalidStateError):
            attempt()
    with pytest.raises(standard.InvalidStateError):
        future.set_exception(ValueError())
    made.complete(0, 9)
    assert future.get(timeout=30) == RecordMetadata("events", 0, 0, 9)


def test_two_threads_that_wait_for_the_same_futures_do_not_meet() -> None:
    """`wait` takes the conditions of all futures, in the order of their addresses."""
    many = [delivery(2) for _ in range(200)]
    columns = [[future_of(d, i) for d in many] for i in (0, 1)]
    columns[1].reverse()
    waiting = [later(lambda c=c: [standard.wait(c, timeout=0.001) for _ in range(20)]) for c in columns]
    for thread in waiting:
        thread.join(60)
        assert not thread.is_alive()
