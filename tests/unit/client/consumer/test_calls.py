"""One thread at a time in a consumer; `wakeup` and `close` of another thread; the commit of a `with` block."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sparklog import Consumer
from sparklog.client.consumer.calls import Calls
from sparklog.errors import ClosedError, ConcurrentModificationError, WakeupError
from sparklog.protocol import group_messages as groups
from sparklog.protocol.apis import Api
from tests.support.clients import TP0, drain, fill
from tests.support.waiting import until
from tests.unit.client.fake_broker import FakeBroker

UNGUARDED = {"close", "wakeup", "settings"}


def on_another_thread(call: Callable[[], Any]) -> Callable[[], Any]:
    """Starts `call`; the function that is returned waits for it, and returns or raises its outcome."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as e:  # noqa: BLE001 - raised by `wait`
            outcome.append(e)

    thread = threading.Thread(target=run)
    thread.start()

    def wait() -> Any:
        thread.join(60)
        assert outcome, "the call did not end"
        if isinstance(outcome[0], BaseException):
            raise outcome[0]
        return outcome[0]

    return wait


@pytest.fixture
def consumer(fake: FakeBroker) -> Iterator[Consumer]:
    with Consumer(fake.address, auto_offset_reset="earliest") as made:
        made.assign([TP0])
        yield made


def is_inside(consumer: Consumer) -> bool:
    return bool(consumer._calls._inside) and consumer._fetcher.first.turn.is_polling


def test_a_second_thread_is_refused_by_every_method_while_the_first_one_is_inside(consumer: Consumer) -> None:
    polled = on_another_thread(lambda: consumer.poll(60_000))
    until(lambda: is_inside(consumer))
    arguments: dict[str, tuple[Any, ...]] = {
        "assign": ([TP0],),
        "subscribe": (["events"],),
        "pause": (TP0,),
        "resume": (TP0,),
        "seek": (TP0, 0),
        "position": (TP0,),
        "committed": ([TP0],),
    }
    for name in {n for n in dir(consumer) if not n.startswith("_")} - UNGUARDED:
        with pytest.raises(ConcurrentModificationError, match="one thread at a time"):
            getattr(consumer, name)(*arguments.get(name, ()))
    with pytest.raises(ConcurrentModificationError):
        next(consumer)
    consumer.wakeup()
    with pytest.raises(WakeupError):
        polled()
    assert consumer.assignment() == [TP0], "the next thread may come when the first one is outside"


def test_the_reading_calls_end_by_a_wakeup_without_a_loss(fake: FakeBroker, consumer: Consumer) -> None:
    for call in (
        lambda: consumer.poll(60_000),
        lambda: consumer.poll_batches(60_000),
        lambda: next(consumer),
    ):
        waiting = on_another_thread(call)
        until(lambda: is_inside(consumer))
        consumer.wakeup()
        with pytest.raises(WakeupError):
            waiting()
        consumer.wakeup()  # nobody waits: it is the next call's
        with pytest.raises(WakeupError):
            call()
    fill(fake, 2)
    assert [r.offset for r in drain(consumer, 20)] == list(range(20))
    fill(fake, 1)
    until(lambda: bool(consumer._fetcher.ready) or consumer._fetcher.first.turn.is_sparse)
    consumer.wakeup()
    with pytest.raises(WakeupError):  # though there is something to read
        consumer.poll(60_000)
    assert [r.offset for r in drain(consumer, 10)] == list(range(20, 30))


def test_close_of_another_thread_ends_the_wait(fake: FakeBroker) -> None:
    for call, ended in (
        (lambda c: c.poll(60_000), ClosedError),
        (lambda c: c.poll_batches(60_000), ClosedError),
        (list, None),
    ):
        consumer = Consumer(fake.address)
        consumer.assign([TP0])
        waiting = on_another_thread(lambda call=call, consumer=consumer: call(consumer))  # type: ignore[misc]
        until(lambda consumer=consumer: is_inside(consumer))  # type: ignore[misc]
        consumer.close()
        if ended is None:
            assert waiting() == []
        else:
            with pytest.raises(ended):
                waiting()
        with pytest.raises(ClosedError):
            consumer.poll(0)
        consumer.close()


def test_a_close_does_not_wait_for_ever_for_a_call_that_works() -> None:
    calls, inside, goes = Calls(), threading.Event(), threading.Event()

    def work() -> None:
        call = [threading.get_ident()]
        calls.enter(call)
        inside.set()
        goes.wait(60)
        calls.leave(call)

    worked = on_another_thread(work)
    inside.wait(60)
    mine = [threading.get_ident()]
    with pytest.raises(ConcurrentModificationError, match="not closed"):
        calls.enter_to_close(mine, lambda: None, 0.01)
    calls.enter_to_close(mine, goes.set, 60)
    worked()
    calls.enter([threading.get_ident()])  # a callback of the same thread
    calls.leave(mine)
    assert not calls._inside


class FailedError(Exception):
    pass


GROUP: dict[str, Any] = {"group_id": "g", "auto_offset_reset": "earliest", "auto_commit_interval_ms": 600_000}


@pytest.fixture
def committed(fake: FakeBroker) -> list[dict[int, int]]:
    """The offsets that consumers commit, by partition."""
    found: list[dict[int, int]] = []
    answer = fake._answer

    def answering(api: Api, message: Any, payload: bytearray, code: int) -> tuple[Any, bytes]:
        if api is not Api.OFFSET_COMMIT:
            return answer(api, message, payload, code)
        found.append({o.partition: o.offset for o in message.offsets})
        return groups.OffsetCommitResponse([groups.OffsetResult(o.topic, o.partition, 0) for o in message.offsets]), b""

    fake._answer = answering  # type: ignore[method-assign]
    return found


def read(consumer: Consumer, reading: str) -> None:
    """The first records of the partition: one in the loop, else ten."""
    consumer.assign([TP0])
    if reading == "loop":
        assert next(consumer).offset == 0
    else:
        assert getattr(consumer, reading)(60_000)


@pytest.mark.parametrize("reading", ["poll", "poll_batches", "loop"])
def test_another_thread_that_closes_does_not_commit_records_in_work(
    fake: FakeBroker, committed: list[dict[int, int]], reading: str
) -> None:
    fill(fake, 1)
    for autocommit, expected in ((None, []), (True, [{0: 1 if reading == "loop" else 10}])):
        with pytest.raises(FailedError), Consumer(fake.address, **GROUP) as consumer:
            read(consumer, reading)
            on_another_thread(lambda c=consumer, a=autocommit: c.close(autocommit=a))()  # type: ignore[misc]
            raise FailedError
        assert committed == expected
    committed.clear()
    with Consumer(fake.address, **GROUP) as consumer:
        consumer.assign([TP0])
        waiting = on_another_thread(lambda: [consumer.poll(60_000), consumer.poll(60_000)])
        until(lambda: consumer._fetcher.positions[TP0].consumed == 10 and is_inside(consumer))
        consumer.close()  # a thread that polls again is done with the records before
        with pytest.raises(ClosedError):
            waiting()
    assert committed == [{0: 10}]


@pytest.mark.parametrize("reading", ["poll", "poll_batches", "loop"])
def test_a_block_that_raises_commits_no_offset(fake: FakeBroker, committed: list[dict[int, int]], reading: str) -> None:
    fill(fake, 1)
    for raised in (FailedError, KeyboardInterrupt, SystemExit, GeneratorExit):
        with pytest.raises(raised), Consumer(fake.address, **GROUP) as consumer:
            read(consumer, reading)
            raise raised
    with Consumer(fake.address, **GROUP) as consumer:
        read(consumer, reading)
        consumer.close(autocommit=False)
    assert committed == []
    with Consumer(fake.address, **GROUP) as consumer:
        read(consumer, reading)
    assert committed == [{0: 1 if reading == "loop" else 10}]
