"""A consumer that keeps up with the log receives on the polling thread; after any end of a poll there, nothing is lost
or comes twice."""

from __future__ import annotations

import contextlib
import datetime
import threading
import time
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from sparklog.client.consumer import fetch_lane
from sparklog.client.consumer.consumer import Consumer
from sparklog.client.consumer.fetch_turn import SPARSE_BYTES, FetchTurn
from sparklog.client.net.connection import Connection
from sparklog.client.net.read_ahead import READ_AHEAD_BYTES_MAX
from sparklog.client.reading.consumed import records_of
from sparklog.errors import CorruptBatchError, SparklogError
from sparklog.format.batch import encode_batch
from sparklog.protocol.apis import Api
from sparklog.types import TopicPartition
from tests.support.clients import TP0, drain, fill
from tests.support.waiting import until
from tests.unit.client.fake_broker import DROP, SILENT, FakeBroker
from tests.unit.client.interruptions import Stopped, interrupted_at

TP1 = TopicPartition("events", 1)
LARGE_ROWS = 15_000
"""In one batch: more than a poll receives."""


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that have received something, one by one."""
    seen: list[str] = []
    step = fetch_lane.FetchLane._step

    def note(self: Any, *given: Any) -> None:
        seen.append(threading.current_thread().name)
        step(self, *given)

    monkeypatch.setattr(fetch_lane.FetchLane, "_step", note)
    return seen


def caught_up(fake: FakeBroker, **settings: Any) -> Consumer:
    """A consumer whose poll receives."""
    consumer = Consumer(fake.address, **settings)
    consumer.assign([TP0])
    fill(fake, 1)
    assert len(drain(consumer, fake.end(("events", 0)))) == fake.end(("events", 0))
    until(lambda: consumer.poll(0) == [] and is_fetch_for_poll(consumer))
    return consumer


def offsets(records: list[Any]) -> list[int]:
    return [r.offset for r in records]


def test_a_consumer_at_the_end_receives_on_the_polling_thread(fake: FakeBroker, steps: list[str]) -> None:
    with caught_up(fake) as consumer:
        steps.clear()
        for i in range(1, 20):
            fill(fake, 1, rows=2)
            assert offsets(drain(consumer, 2)) == [8 + 2 * i, 9 + 2 * i]
        assert set(steps) == {threading.current_thread().name}


def test_where_much_comes_it_is_read_ahead(fake: FakeBroker, steps: list[str]) -> None:
    with caught_up(fake, local_read="off") as consumer:
        fill(fake, 2, rows=LARGE_ROWS)
        fill(fake, 20, rows=1)
        assert len(fake.logs[("events", 0)][1]) > SPARSE_BYTES
        end = 10 + 2 * LARGE_ROWS
        assert offsets(drain(consumer, 10, max_records=10)) == list(range(10, 20))
        until(lambda: len(consumer._fetcher.ready._batches) >= 21)
        assert offsets(drain(consumer, end)) == list(range(20, end + 20))


def test_without_polls_the_background_thread_goes_on(fake: FakeBroker, steps: list[str]) -> None:
    with caught_up(fake) as consumer:
        consumer._fetcher.first.turn.idle_s = 0.05
        fill(fake, 3)
        until(lambda: bool(consumer._fetcher.ready))
        assert offsets(drain(consumer, 30)) == list(range(10, 40))
    assert "sparklog-consumer" in steps


def test_wake_ends_a_poll_at_the_socket(fake: FakeBroker) -> None:
    with caught_up(fake) as consumer:
        woken = threading.Event()

        def wake() -> None:
            until(lambda: consumer._fetcher.first.turn.poll_receives)
            woken.set()
            consumer._fetcher.wake()

        waker = threading.Thread(target=wake)
        waker.start()
        assert consumer._fetcher.take(60, woken.is_set) is None
        waker.join()
        fill(fake, 1)
        assert offsets(drain(consumer, 10)) == list(range(10, 20))


def test_a_late_answer_is_abandoned(fake: FakeBroker) -> None:
    with caught_up(fake, request_timeout_ms=200, fetch_max_wait_ms=100) as consumer:
        fake.hook = lambda api, message: SILENT if api is Api.FETCH else None
        assert drain_for(consumer, 0.6) == []
        fake.hook = lambda api, message: None
        fill(fake, 1)
        assert offsets(drain(consumer, 10)) == list(range(10, 20))


def drain_for(consumer: Consumer, seconds: float) -> list[Any]:
    found: list[Any] = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found += consumer.poll(50)
    return found


@pytest.mark.usefixtures("local_read")
def test_a_broker_that_goes_away_while_poll_receives(fake: FakeBroker) -> None:
    def drop_some(api: Api, _: Any) -> Any:
        return DROP if api is Api.FETCH and fetches(fake) % 3 == 0 else None

    with caught_up(fake) as consumer:
        fake.hook = drop_some
        found: list[int] = []
        for i in range(8):
            fill(fake, 1, rows=1)
            found += offsets(drain(consumer, 1))
            assert found == list(range(10, 11 + i))


@pytest.mark.usefixtures("local_read")
def test_requests_of_other_partitions_stay(fake4: FakeBroker) -> None:
    with caught_up(fake4) as consumer:
        fill(fake4, 2, partition=1)
        consumer.assign([TP0, TP1])
        assert sorted(offsets(drain(consumer, 20))) == list(range(20))
        consumer.pause(TP1)
        fill(fake4, 1, partition=1)
        fill(fake4, 1)
        assert {(r.partition, r.offset) for r in drain(consumer, 10)} == {(0, o) for o in range(10, 20)}
        consumer.resume(TP1)
        assert {(r.partition, r.offset) for r in drain(consumer, 10)} == {(1, o) for o in range(20, 30)}
        consumer.seek(TP0, 3)
        assert offsets(drain(consumer, 17)) == list(range(3, 20))


def test_large_answers_are_received_in_the_background(fake: FakeBroker, steps: list[str]) -> None:
    with caught_up(fake) as consumer:
        steps.clear()
        fill(fake, 1, rows=LARGE_ROWS)
        assert len(fake.logs[("events", 0)][1]) > READ_AHEAD_BYTES_MAX
        assert offsets(drain(consumer, LARGE_ROWS)) == list(range(10, 10 + LARGE_ROWS))
        assert set(steps) == {"sparklog-consumer"}


def test_a_partial_answer_is_finished_in_the_background(
    fake: FakeBroker, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with caught_up(fake) as consumer:
        read_ahead, is_readable = Connection.read_ahead, FetchTurn.is_readable

        def begin(connection: Connection) -> bool:
            read_ahead(connection)
            return False

        def time_is_over(turn: FetchTurn, connection: Connection, deadline: float) -> bool:
            return not connection.has_read_ahead and is_readable(turn, connection, deadline)

        monkeypatch.setattr(Connection, "read_ahead", begin)
        monkeypatch.setattr(FetchTurn, "is_readable", time_is_over)
        steps.clear()
        fill(fake, 1)
        assert offsets(drain(consumer, 10)) == list(range(10, 20))
        assert set(steps) == {"sparklog-consumer"}


def is_fetch_for_poll(consumer: Consumer) -> bool:
    return consumer._fetcher.first.fetch_for_poll() is not None


def fetches(fake: FakeBroker) -> int:
    return sum(api is Api.FETCH for api, _ in fake.requests)


@pytest.mark.usefixtures("local_read")
def test_positions_that_change_while_a_request_is_under_way(fake4: FakeBroker) -> None:
    with caught_up(fake4) as consumer:
        fill(fake4, 1)
        assert offsets(drain(consumer, 10)) == list(range(10, 20))
        consumer.seek(TP0, 5)
        assert offsets(drain(consumer, 15)) == list(range(5, 20))
        fill(fake4, 1)
        assert offsets(drain(consumer, 10)) == list(range(20, 30))
        fill(fake4, 1, partition=1)
        consumer.assign([TP0, TP1])
        assert {(r.partition, r.offset) for r in drain(consumer, 10)} == {(1, o) for o in range(10)}
        fill(fake4, 1)
        assert {(r.partition, r.offset) for r in drain(consumer, 10)} == {(0, o) for o in range(30, 40)}
        consumer.pause(TP0)
        fill(fake4, 1)
        fill(fake4, 1, partition=1)
        assert {(r.partition, r.offset) for r in drain(consumer, 10)} == {(1, o) for o in range(10, 20)}
        consumer.resume(TP0)
        assert {(r.partition, r.offset) for r in drain(consumer, 10)} == {(0, o) for o in range(40, 50)}


def test_no_request_is_sent_on_the_polling_thread(fake: FakeBroker, steps: list[str]) -> None:
    with caught_up(fake) as consumer:
        consumer._cluster.invalidate("events")
        fill(fake, 1)
        steps.clear()
        assert offsets(drain(consumer, 10)) == list(range(10, 20))
        assert set(steps) == {"sparklog-consumer"}


def test_a_failed_partition_does_not_hold_up_the_others(fake4: FakeBroker) -> None:
    with caught_up(fake4) as consumer:
        consumer.assign([TP0, TP1])
        fake4.fetch_codes[("events", 1)] = CorruptBatchError.code
        with pytest.raises(CorruptBatchError):
            drain(consumer, 1)
        found: list[Any] = []
        for _ in range(5):
            fill(fake4, 1, rows=1)
            found += drain_anyway(consumer, 1)
        assert [(r.partition, r.offset) for r in found] == [(0, 10 + i) for i in range(5)]


def test_a_slow_consumer_leaves_the_rest_to_the_background(fake: FakeBroker, steps: list[str]) -> None:
    with caught_up(fake, local_read="off") as consumer:
        consumer._fetcher.first.turn.idle_s = 0.05
        fill(fake, 3)
        found = offsets(consumer.poll(5000, max_records=10))
        for _ in range(2):  # poll takes what is there, and does not look at the socket
            until(lambda: bool(consumer._fetcher.ready))
            found += offsets(consumer.poll(5000, max_records=10))
            fill(fake, 1)
        until(lambda: bool(consumer._fetcher.ready))
        assert found == list(range(10, 10 + len(found)))
        found += offsets(drain(consumer, 50 - len(found)))
        assert found == list(range(10, 60))
    assert "sparklog-consumer" in steps


def test_rows_that_python_cannot_represent_fail_their_partition_alone(fake4: FakeBroker) -> None:
    schema = pa.schema([("at", pa.timestamp("us"))])
    fake4.add_topic("typed", 2, schema)
    bad, good = TopicPartition("typed", 0), TopicPartition("typed", 1)

    def append(partition: int, at: int) -> None:
        rows = pa.record_batch([pa.array([at], pa.int64()).cast(schema.types[0])], schema=schema)
        data = encode_batch(rows, schema_id=1, min_timestamp_ms=0, max_timestamp_ms=0)
        fake4.append(bytearray(data), "typed", partition)

    append(0, 2**62)
    append(0, 1)
    with Consumer(fake4.address) as consumer:
        consumer.assign([bad, good])
        with pytest.raises(SparklogError, match=r"typed-0: Python has no object .* at offset 0 .*seek"):
            drain(consumer, 1)
        connections = fake4.connections
        for i in range(3):
            append(1, i)
            assert offsets(drain_anyway(consumer, 1)) == [i]
        with pytest.raises(SparklogError, match="offset 0"):
            drain(consumer, 1)
        assert fake4.connections <= connections + 1
        consumer.seek(bad, 0)
        assert consumer.poll_batches(5000)[0].data.column("at").cast(pa.int64()).to_pylist() == [2**62]
        consumer.seek(bad, 1)
        assert [r.value for r in drain(consumer, 1)] == [{"at": datetime.datetime(1970, 1, 1, 0, 0, 0, 1)}]


def drain_anyway(consumer: Consumer, count: int) -> list[Any]:
    """Drain like `drain`, and continue after any error of a partition."""
    found: list[Any] = []
    deadline = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline:
        with contextlib.suppress(SparklogError):
            found += consumer.poll(0)
    return found


MODULES = (
    "fetcher.py",
    "fetch_lane.py",
    "fetch_turn.py",
    "fetch_answer.py",
    "position.py",
    "connection.py",
    "consumed.py",
    "consumer.py",
    "record_buffer.py",
)


def test_unrequested_batches_do_not_move_the_position_back(fake: FakeBroker) -> None:
    fill(fake, 2)
    answer = fake._answer

    def answering(api: Api, message: Any, payload: bytearray, code: int) -> tuple[Any, bytes]:
        if api is Api.FETCH and message.partitions[0].fetch_offset == 20:
            first_batch = replace(message.partitions[0], fetch_offset=0, max_bytes=1)
            message = replace(message, partitions=[first_batch])
        return answer(api, message, payload, code)

    fake._answer = answering  # type: ignore[method-assign]
    with Consumer(fake.address, auto_offset_reset="earliest", local_read="off") as consumer:
        consumer.assign([TP0])
        assert offsets(drain(consumer, 20)) == list(range(20))
        for _ in range(3):
            assert consumer.poll(50) == []
            assert consumer.position(TP0) == 20


RETURNS = ("return chosen", "return records", "return batches")


@pytest.mark.parametrize(
    ("call", "modules"),
    [("poll", MODULES), ("poll_batches", ("consumer.py", "record_buffer.py", "position.py"))],
)
def test_a_poll_that_is_interrupted_anywhere_loses_no_record(
    fake: FakeBroker, call: str, modules: tuple[str, ...]
) -> None:
    """Ctrl-C at each line that a poll runs through, as long as there are lines; the records that were not returned
    come with the next polls."""
    with caught_up(fake, local_read="off") as consumer:
        expected, line = 10, 1
        interrupted = 0
        while True:
            fill(fake, 1, rows=3)
            until(lambda: is_fetch_for_poll(consumer) or bool(consumer._fetcher.ready))
            found: list[Any] = []
            with interrupted_at(line, modules, but=RETURNS) as reached, contextlib.suppress(Stopped):
                found = getattr(consumer, call)(2000)
            interrupted += bool(reached)
            found = [r for f in found for r in (records_of(f) if call == "poll_batches" else [f])]
            found += drain(consumer, 3 - len(found))
            assert offsets(found) == list(range(expected, expected + 3)), f"interrupted at line {line}"
            expected += 3
            line += 1
            if not reached:
                break
    assert interrupted > 20
