"""`sparklog transaction` and the same in Admin, against a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import sparklog
from sparklog import Admin, Producer
from sparklog.client.admin.transaction_admin import HangingTransaction
from sparklog.client.local import LocalBroker
from sparklog.protocol.transaction_messages import ProducerState
from sparklog.types import INTERNAL_TOPICS, TopicPartition
from tests.support.cli import Run


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalBroker]:
    """A broker for each test: lists show only the test's own transactions."""
    with sparklog.start_local(data_dir=tmp_path / "broker-data") as local:
        yield local


def test_an_operator_sees_and_aborts_open_transactions(run: Run, broker: LocalBroker) -> None:
    assert "no such transactions" in run("transaction", "list").stderr
    run("topic", "create", "t", "--partitions", 2)
    with Producer(broker.bootstrap_servers, transactional_id="shop") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for partition in (0, 1):
            producer.send("t", b"x", partition=partition).result(60)
        listed = run("transaction", "list", "--state", "ongoing").stdout
        assert "shop" in listed
        assert "plain" in listed
        assert "shop" not in run("transaction", "list", "--state", "Empty").stdout
        assert "shop" not in run("transaction", "list", "--running-for", "1h").stdout
        shown = run("transaction", "describe", "shop").stdout
        assert "Ongoing" in shown
        assert shown.count("t  ") >= 2
        assert "no hanging transactions" in run("transaction", "find-hanging").stderr
        owner = Admin(broker.bootstrap_servers).describe_producers(TopicPartition("t", 0)).producers[0]
        assert owner.transactional_id == "shop"
        wrong = run(
            "transaction", "abort", "--topic", "t", "--partition", 0, "--producer-id", owner.producer_id, code=1
        ).stderr
        assert "abort that transaction" in wrong
        assert "2 partitions" in run("transaction", "abort", "shop").stdout
        assert "INVALID_TXN_STATE" in run("transaction", "abort", "shop", code=1).stderr
        producer.abort_transaction()
    assert "CompleteAbort" in run("transaction", "describe", "shop").stdout
    assert "sparklog transaction list" in run("transaction", "describe", "other", code=1).stderr
    assert run("topic", "list").stdout == "t\n"
    assert set(run("topic", "list", "--internal").stdout.split()) & INTERNAL_TOPICS
    assert "is internal" in run("topic", "delete", "__transaction_state", "--yes", code=1).stderr


def test_consume_leaves_out_uncommitted_records_on_request(run: Run, broker: LocalBroker) -> None:
    run("topic", "create", "t", "--partitions", 1)
    with Producer(broker.bootstrap_servers, transactional_id="shop") as producer:
        with producer.transaction():
            producer.send("t", b"aborted").result(60)
            producer.abort_transaction()
        with producer.transaction():
            producer.send("t", b"committed")
        producer.begin_transaction()
        producer.send("t", b"open").result(60)
        committed = ("--config", "isolation.level=read_committed")
        assert [line.count('"value"') for line in run("consume", "t").stdout.splitlines()] == [1, 1, 1]
        for more in ((), ("--from", "-2")):  # counted from where such a reader ends: the record and its marker
            (shown,) = run("consume", "t", *committed, *more).stdout.splitlines()
            assert '"value":"committed"' in shown


def test_hanging_transactions_are_shown_with_the_command_that_ends_them(
    run: Run,
    broker: LocalBroker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [HangingTransaction(TopicPartition("t", 3), ProducerState(4711, 0, 5, 1_700_000_000_000, 42))]
    monkeypatch.setattr(Admin, "find_hanging_transactions", lambda self, topics: found)
    shown = run("transaction", "find-hanging")
    assert "4711" in shown.stdout
    assert "sparklog transaction abort --topic t --partition 3 --producer-id 4711" in shown.stderr
