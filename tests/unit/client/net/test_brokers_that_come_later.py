"""A call that comes before the broker, or while it restarts, waits for it up to the limit of the call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import sparklog
from sparklog import Admin, Consumer, Producer, TopicPartition
from sparklog.client.net import retry
from sparklog.client.net.cluster import forget
from sparklog.client.net.retry import Retries, RetryPolicy
from sparklog.errors import BrokerNotAvailableError, ClosedError, SecurityDisabledError, SparklogError, WakeupError
from sparklog.protocol.apis import Api
from sparklog.security.acl_records import AclFilter
from sparklog.security.quotas import Entity
from tests.unit.client.fake_broker import FakeBroker

TP = TopicPartition("events", 0)
KNOWN = (
    Api.HANDSHAKE,
    Api.METADATA,
    Api.FIND_COORDINATOR,
    Api.LIST_OFFSETS,
    Api.OFFSET_FETCH,
    Api.INIT_PRODUCER_ID,
    Api.PRODUCE,
    Api.FETCH,
)
"""Requests that the broker answers; it refuses the others."""


class LateBroker:
    """An address where a broker listens from the first pause of a call on."""

    def __init__(self) -> None:
        self._broker = FakeBroker()
        self._broker.close()
        self.port, self.address = self._broker.port, self._broker.address
        self.pauses = 0
        self.comes = True
        self.on_pause: Callable[[], object] = lambda: None

    def pause(self) -> None:
        self.pauses += 1
        self.on_pause()
        if self.comes and self.pauses == 1:
            self._broker = FakeBroker(port=self.port)
            self._broker.hook = lambda api, message: None if api in KNOWN else SecurityDisabledError.code

    def go(self) -> None:
        """It is away again, and nothing is known of its topics."""
        self._broker.close()
        forget(self.address)
        self.pauses = 0


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Iterator[LateBroker]:
    made = LateBroker()
    pause = Retries.pause

    def paused(self: Retries, error: SparklogError) -> None:
        made.pause()
        pause(self, error)

    monkeypatch.setattr(Retries, "pause", paused)
    yield made
    made.go()


def admin_calls() -> dict[str, Callable[[Admin], Any]]:
    def named(name: str, *args: Any, **how: Any) -> Callable[[Admin], Any]:
        return lambda admin: getattr(admin, name)(*args, **how)

    calls: list[tuple[Any, ...]] = [
        ("create_topic", "made"),
        ("list_topics",),
        ("partition_counts",),
        ("describe_cluster",),
        ("describe_log_dirs",),
        ("alter_partition_reassignments", {TP: None}),
        ("list_partition_reassignments",),
        ("cancel_partition_reassignments",),
        ("elect_leaders",),
        ("cordon_broker", 1),
        ("describe_broker", None),
        ("alter_broker", None, {"max.connections": 1_000}),
        ("describe_topic", "events"),
        ("describe_topics", ["events"]),
        ("alter_topic", "events", {"retention.ms": 1}),
        ("delete_records", {TP: 0}),
        ("add_partitions", "events", 2),
        ("delete_topic", "events"),
        ("list_offsets", {TP: "latest"}),
        ("describe_segments", TP),
        ("describe_batches", TP, 0),
        ("list_groups",),
        ("describe_group", "g"),
        ("list_group_offsets", "g"),
        ("alter_group_offsets", "g", {TP: 1}),
        ("delete_group", "g"),
        ("list_transactions",),
        ("describe_transaction", "t"),
        ("abort_transaction", "t"),
        ("abort_hanging_transaction", TP, 1),
        ("describe_producers", TP),
        ("find_hanging_transactions",),
        ("set_user_password", "alice", "a long password"),
        ("describe_users",),
        ("remove_user", "alice"),
        ("delete_acls", AclFilter()),
        ("describe_acls",),
        ("describe_client_quotas",),
        ("alter_client_quotas", Entity("alice"), {"producer_byte_rate": 1.0}),
        ("describe_mirrors",),
        ("promote_mirror", "m"),
        ("pause_mirror", "m"),
        ("resume_mirror", "m"),
        ("delete_mirror", "m"),
    ]
    return {name: named(name, *args) for name, *args in calls}


def client_calls(servers: str) -> dict[str, Callable[[], Any]]:
    def produced(send: Callable[[Producer], Any], **settings: Any) -> None:
        with Producer(servers, **settings) as producer:
            send(producer)

    def consumed(read: Callable[[Consumer], Any], **settings: Any) -> None:
        with Consumer(servers, **settings) as consumer:
            read(consumer)

    return {
        "send": lambda: produced(lambda p: p.send("events", b"x")),
        "send_batch": lambda: produced(lambda p: p.send_batch("events", {"value": [b"x"]})),
        "init_transactions": lambda: produced(lambda p: p.init_transactions(), transactional_id="t"),
        "assign": lambda: consumed(lambda c: c.assign([TP])),
        "committed": lambda: consumed(lambda c: c.committed([TP]), group_id="g"),
        "read_table": lambda: sparklog.read_table(servers, "events"),
        "sql": lambda: sparklog.sql(servers, "SELECT 1"),
    }


def test_every_call_waits_for_a_broker_that_comes_later(late: LateBroker) -> None:
    calls = client_calls(late.address)
    for name, asked in admin_calls().items():
        calls[name] = lambda asked=asked: asked(Admin(late.address))  # type: ignore[misc]
    for name, call in calls.items():
        try:
            call()
        except BrokerNotAvailableError as e:
            pytest.fail(f"{name} does not wait: {e}")
        except SparklogError:
            pass  # the broker is there, and does not know such a thing
        assert late.pauses, name
        late.go()


def test_all_methods_of_admin_are_tried() -> None:
    # they need arguments of many lines or a Kafka cluster, and are changes as others
    untried = {"close", "create_acls", "alter_schema", "create_mirror"}
    methods = {name for name in vars(Admin) if not name.startswith("_") and not name.endswith("_lake")}
    assert methods - untried == set(admin_calls())


def test_where_no_broker_comes_the_error_names_the_address_and_the_limit(late: LateBroker) -> None:
    late.comes = False
    with (
        Producer(late.address, max_block_ms=200) as producer,
        Consumer(late.address, default_api_timeout_ms=200) as consumer,
        Admin(late.address, request_timeout_ms=200) as admin,
    ):
        for call, limit in (
            (lambda: producer.send("events", b"x"), "max.block.ms"),
            (lambda: consumer.assign([TP]), "default.api.timeout.ms"),
            (admin.list_topics, "request_timeout_ms"),
            (lambda: sparklog.read_table(late.address, "events", request_timeout_ms=200), "request_timeout_ms"),
        ):
            with pytest.raises(BrokerNotAvailableError, match=rf"{late.address}.*gave up after 0\.2 s \({limit}\)"):
                call()
    late.pauses = 0
    with Admin(late.address, wait_for_broker=False) as admin, pytest.raises(BrokerNotAvailableError):
        admin.list_groups()
    assert not late.pauses


def test_a_wait_ends_by_an_interrupt_a_wakeup_or_a_close(late: LateBroker) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    late.comes, late.on_pause = False, interrupt
    for call in client_calls(late.address).values():
        with pytest.raises(KeyboardInterrupt):
            call()
    with Consumer(late.address) as consumer:
        late.on_pause = consumer.wakeup
        with pytest.raises(WakeupError):
            consumer.assign([TP])
    with Producer(late.address) as producer:
        late.on_pause = producer.close
        with pytest.raises(ClosedError):
            producer.send("events", b"x")


def test_a_long_wait_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    retries = Retries(RetryPolicy(30_000), sleep=sleep, clock=lambda: now[0])
    with caplog.at_level(logging.WARNING, retry.__name__), pytest.raises(BrokerNotAvailableError):
        while True:
            if now[0] < retry.WARN_AFTER_S:
                assert not caplog.records, "what passes in a moment is no news"
            retries.pause(BrokerNotAvailableError("no broker at here:1"))
    assert [r.getMessage().rpartition("for")[0] for r in caplog.records] == ["no broker at here:1; trying again "]
