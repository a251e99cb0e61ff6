"""Every public call ends in its own time, for any failure of the server to act.

The limits are a second and less, the test's bound is far away from them: less than one forgotten default.
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from sparklog import Admin, Consumer, Producer, TopicPartition, read_table
from sparklog.cli.app import run_app
from sparklog.cli.options import set_timeout
from sparklog.client.net.cluster import forget
from sparklog.errors import SparklogError
from tests.support.cases import for_each
from tests.unit.client.silent_server import (
    SERVERS,
    accepts_and_is_silent,
    does_not_accept,
    tells_metadata_and_is_silent,
)

TP = TopicPartition("events", 0)
TIMEOUT_MS = 300
IN_TIME_S = 9.0
GROUP: dict[str, Any] = {"group_id": "g", "enable_auto_commit": False}

Server = Callable[[], contextlib.AbstractContextManager[str]]


@pytest.fixture(params=SERVERS, ids=lambda s: s.__name__)
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    with request.param() as found:
        yield found
    forget(found)


@contextlib.contextmanager
def in_time() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < IN_TIME_S


ADMIN_CALLS: dict[str, Callable[[Admin], Any]] = {
    "create_topic": lambda a: a.create_topic("events"),
    "list_topics": lambda a: (
        (a.list_topics(include_internal=True) and pytest.fail("metadata are answered")) or a.list_groups()
    ),
    "delete_topic": lambda a: a.delete_topic("events"),
    "alter_topic": lambda a: a.alter_topic("events", {"retention.ms": 1}),
    "add_partitions": lambda a: a.add_partitions("events", 2),
    "alter_schema": lambda a: a.alter_schema("events", add_columns={"more": pa.int32()}),
    "delete_records": lambda a: a.delete_records({TP: -1}),
    "list_offsets": lambda a: a.list_offsets({TP: "latest"}),
    "list_groups": lambda a: a.list_groups(),
    "describe_group": lambda a: a.describe_group("g"),
    "list_group_offsets": lambda a: a.list_group_offsets("g"),
    "alter_group_offsets": lambda a: a.alter_group_offsets("g", {TP: 1}),
    "delete_group": lambda a: a.delete_group("g"),
    "list_transactions": lambda a: a.list_transactions(),
    "describe_transaction": lambda a: a.describe_transaction("t"),
    "abort_transaction": lambda a: a.abort_transaction("t"),
    "abort_hanging_transaction": lambda a: a.abort_hanging_transaction(TP, 1),
    "describe_producers": lambda a: a.describe_producers(TP),
    "find_hanging_transactions": lambda a: a.find_hanging_transactions(["events"]),
}
del ADMIN_CALLS["list_topics"]
METADATA_CALLS: dict[str, Callable[[Admin], Any]] = {
    "list_topics": lambda a: a.list_topics(),
    "describe_topic": lambda a: a.describe_topic("events"),
}


@for_each("call", ADMIN_CALLS.values(), ids=list(ADMIN_CALLS))
def test_admin(call: Callable[[Admin], Any]) -> None:
    """One server is enough for each: they all ask in the same way."""
    for server in (accepts_and_is_silent, tells_metadata_and_is_silent):
        with server() as found, Admin(found, request_timeout_ms=TIMEOUT_MS) as admin:
            with in_time(), pytest.raises(SparklogError) as caught:
                call(admin)
            assert caught.value.retriable
            forget(found)


def test_admin_asks_every_kind_of_server_in_time(address: str) -> None:
    with Admin(address, request_timeout_ms=TIMEOUT_MS) as admin, in_time(), pytest.raises(SparklogError):
        admin.list_offsets({TP: "latest"})


@pytest.mark.parametrize("call", METADATA_CALLS.values(), ids=METADATA_CALLS.keys())
def test_metadata(call: Callable[[Admin], Any]) -> None:
    with accepts_and_is_silent() as found, Admin(found, request_timeout_ms=TIMEOUT_MS) as admin:
        with in_time(), pytest.raises(SparklogError):
            call(admin)
        forget(found)


def test_several_servers_share_the_time() -> None:
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(does_not_accept()) for _ in range(4)]
        with in_time(), pytest.raises(SparklogError), Admin(",".join(servers), request_timeout_ms=TIMEOUT_MS) as admin:
            admin.list_topics()
        forget(",".join(servers))


def test_an_answering_server_is_reached_behind_silent_ones(fake: Any) -> None:
    with does_not_accept() as silent, Admin(f"{silent},{fake.address}", request_timeout_ms=2_000) as admin:
        with in_time():
            assert admin.list_topics() == ["events"]
        forget(f"{silent},{fake.address}")


def test_the_producer(address: str) -> None:
    settings: dict[str, Any] = {
        "request_timeout_ms": TIMEOUT_MS,
        "max_block_ms": TIMEOUT_MS,
        "delivery_timeout_ms": 2 * TIMEOUT_MS,
    }
    with in_time():
        producer = Producer(address, **settings)
        with pytest.raises(SparklogError):
            producer.send("events", b"x").result()
        with contextlib.suppress(SparklogError):
            producer.close()


@pytest.mark.parametrize("command", [["offsets", "events"], ["group", "describe", "g"], ["produce", "events"]])
def test_the_command_line(
    command: list[str], address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"x\n")))
    with in_time():
        code = run_app(["--timeout", "0.3", *command, "-b", address])
    set_timeout(None)
    assert code == 1
    assert "next:" in capsys.readouterr().err


def test_a_long_request_timeout_does_not_lengthen_the_delivery() -> None:
    """The sender waits for no answer longer than its batches may."""
    with tells_metadata_and_is_silent() as address, in_time():
        for acks in ("all", "1"):  # with and without idempotence
            producer = Producer(address, delivery_timeout_ms=TIMEOUT_MS, acks=acks)
            with pytest.raises(SparklogError, match=r"delivery\.timeout\.ms"):
                producer.send("events", b"x").result()
            producer.close()
        forget(address)


def test_flush_and_close_take_their_own_timeouts() -> None:
    with tells_metadata_and_is_silent() as address:
        producer = Producer(address)
        future = producer.send("events", b"x")
        with in_time(), pytest.raises(SparklogError, match="acknowledged within"):
            producer.flush(timeout_s=0.2)
        with in_time(), pytest.raises(SparklogError, match="acknowledged within"):
            producer.close(timeout_s=0.2)
        assert not future.done() or future.exception() is not None
        forget(address)


def test_transactions(address: str) -> None:
    producer = Producer(address, transactional_id="t", max_block_ms=TIMEOUT_MS)
    with in_time(), pytest.raises(SparklogError):
        producer.init_transactions()
    with in_time():
        producer.close()


def test_an_open_transaction_does_not_hold_up_close(fake: Any) -> None:
    producer = Producer(fake.address, transactional_id="t")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("events", b"x").result(30)
    fake.hook = lambda api, message: "silent"
    with in_time():
        producer.close(timeout_s=0.3)


def test_the_consumer(address: str) -> None:
    settings: dict[str, Any] = {"request_timeout_ms": TIMEOUT_MS, "default_api_timeout_ms": 2 * TIMEOUT_MS}
    with in_time(), Consumer(address, **settings) as consumer, contextlib.suppress(SparklogError):
        consumer.assign([TP])
        assert consumer.poll(100) == []
        assert consumer.poll_batches(100) == []
        consumer.position(TP)
        pytest.fail("nobody answers")


def test_the_consumer_of_a_group(address: str) -> None:
    settings: dict[str, Any] = {"request_timeout_ms": TIMEOUT_MS, "default_api_timeout_ms": 2 * TIMEOUT_MS}
    with Consumer(address, **settings, **GROUP) as consumer:
        consumer.subscribe(["events"])
        with in_time():
            assert consumer.poll(100) == []
        with in_time(), pytest.raises(SparklogError):
            consumer.commit({TP: 1})
        with in_time(), pytest.raises(SparklogError):
            consumer.committed([TP])
        with in_time():
            consumer.unsubscribe()


def test_closing_a_consumer_takes_its_own_timeout() -> None:
    """With the settings' defaults, of half a minute and more."""
    with tells_metadata_and_is_silent() as address:
        consumer = Consumer(address, group_id="g")
        consumer.subscribe(["events"])
        with in_time():
            assert consumer.poll(100) == []
        with in_time():
            consumer.close(timeout_s=0.2)
        forget(address)


def test_read_table(address: str) -> None:
    with in_time(), pytest.raises(SparklogError):
        read_table(address, "events", request_timeout_ms=TIMEOUT_MS)
