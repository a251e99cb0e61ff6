"""Transactions of a producer and a real broker: visibility, fencing, lost answers, kill -9 at every step of an end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import sparklog
from sparklog.client.net.cluster import cluster, forget
from sparklog.client.producer.producer import Producer
from sparklog.client.transactions.shared_transaction import (
    LastCommit,
    SharedTransaction,
    draw_fencing_token,
    end_shared_transaction,
    join_shared_transaction,
)
from sparklog.errors import ProducerFencedError, TransactionAbortedError
from sparklog.protocol.apis import Api
from tests.support.cases import in_gate
from tests.system.broker_process import BrokerProcess, create_topic
from tests.system.cutting_proxy import CuttingProxy

PARTITIONS = 2
SETTINGS = "transaction.state.log.num.partitions = 1\ntransaction.abort.timed.out.transaction.cleanup.interval.ms = 50"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path / "data", settings=SETTINGS, work_dir=tmp_path)
    with process.connect() as client:
        create_topic(client, "t", PARTITIONS)
    yield process
    forget(process.address)
    assert process.stop() == 0


def values(address: str, isolation: str = "read_committed") -> list[bytes]:
    return sorted(sparklog.read_table(address, "t", isolation_level=isolation).column("value").to_pylist())


def write(producer: Producer, text: bytes) -> None:
    for partition in range(PARTITIONS):
        producer.send("t", text, partition=partition)


def test_a_transaction_is_atomic_over_all_partitions(broker: BrokerProcess) -> None:
    with Producer(broker.address, transactional_id="a") as producer:
        producer.init_transactions()
        for number in range(3):
            with producer.transaction():
                write(producer, b"kept %d" % number)
                assert b"kept %d" % number not in values(broker.address)
            with pytest.raises(KeyError), producer.transaction():
                write(producer, b"dropped")
                producer.flush()
                raise KeyError
        assert values(broker.address) == [b"kept 0"] * 2 + [b"kept 1"] * 2 + [b"kept 2"] * 2
    assert values(broker.address, "read_uncommitted").count(b"dropped") == 6


def test_a_producer_with_the_same_id_takes_over(broker: BrokerProcess) -> None:
    old = Producer(broker.address, transactional_id="a")
    old.init_transactions()
    old.begin_transaction()
    write(old, b"old")
    old.flush()
    with Producer(broker.address, transactional_id="a") as new:
        with new.transaction():
            write(new, b"new")
        with pytest.raises(ProducerFencedError):
            old.commit_transaction()
        assert values(broker.address) == [b"new"] * 2
    with pytest.raises(ProducerFencedError):
        old.begin_transaction()
    old.close()


def test_a_transaction_that_takes_too_long_is_aborted_and_the_producer_goes_on(broker: BrokerProcess) -> None:
    with Producer(broker.address, transactional_id="a", transaction_timeout_ms=1) as producer:
        with pytest.raises(TransactionAbortedError), producer.transaction():
            write(producer, b"slow")
            while True:  # until the broker has found out
                producer.flush()
                write(producer, b"slow")
        with Producer(broker.address, transactional_id="a") as again, again.transaction():
            write(again, b"quick")
    assert values(broker.address) == [b"quick"] * 2


def test_lost_answers_have_no_effect(broker: BrokerProcess) -> None:
    rng = random.Random(11)
    proxy = CuttingProxy(broker.host, broker.port, lambda api: rng.random() < 0.15 and api is not Api.HANDSHAKE)
    expected = []
    try:
        with Producer(proxy.address, transactional_id="a", retry_backoff_ms=1, linger_ms=0) as producer:
            producer.init_transactions()
            for number in range(40):
                producer.begin_transaction()
                write(producer, b"%d" % number)
                if number % 3:
                    producer.commit_transaction()
                    expected += [b"%d" % number] * PARTITIONS
                else:
                    producer.abort_transaction()
    finally:
        proxy.close()
        forget(proxy.address)
    assert proxy.cuts > 5
    assert values(broker.address) == sorted(expected)


@pytest.mark.crash
@pytest.mark.parametrize(
    "step",
    in_gate(
        [
            "txn.before-decision",
            "txn.after-decision",
            "txn.between-markers",
            "txn.before-completion",
            "txn.after-completion",
        ],
        "txn.before-decision",
        "txn.between-markers",
    ),
)
def test_a_broker_that_dies_in_a_commit_commits_atomically(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.setenv("SPARKLOG_FAULT", f"{step}:kill")
    monkeypatch.setenv("SPARKLOG_FAULT_MARK", str(tmp_path / "mark"))
    first = BrokerProcess(tmp_path / "data", settings=SETTINGS, work_dir=work)
    with first.connect() as client:
        create_topic(client, "t", PARTITIONS)
    proxy = CuttingProxy(first.host, first.port, lambda api: False)
    try:
        with Producer(proxy.address, transactional_id="a", retry_backoff_ms=5) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            write(producer, b"x")
            with ThreadPoolExecutor(1) as thread:
                committed = thread.submit(producer.commit_transaction)
                assert first.wait() == -signal.SIGKILL
                again = BrokerProcess(tmp_path / "data", settings=SETTINGS, work_dir=work)
                proxy.upstream = (again.host, again.port)
                committed.result()
            with producer.transaction():
                write(producer, b"y")
        assert values(again.address) == [b"x"] * 2 + [b"y"] * 2
        forget(again.address)
        assert again.stop() == 0
    finally:
        proxy.close()
        forget(proxy.address)


def test_participants_of_a_shared_transaction(broker: BrokerProcess) -> None:
    known = cluster(broker.address)
    transaction = SharedTransaction("query", 0, "run", draw_fencing_token(known))
    committed_participants = []
    with Producer(broker.address) as producer:
        for task, wins in ((b"loser", False), (b"winner", True), (b"winner", True)):
            participant = join_shared_transaction(known, transaction, timeout_ms=60_000)
            assert participant is not None
            with producer.participation(participant):  # type: ignore[arg-type]
                write(producer, task)
            if wins:
                committed_participants.append(participant.producer_id)  # type: ignore[union-attr]
        assert values(broker.address) == []
        assert end_shared_transaction(
            known, transaction, committed=True, committed_participants=committed_participants
        ).committed
        assert values(broker.address) == [b"winner"] * 4
        assert join_shared_transaction(known, transaction, timeout_ms=60_000) == LastCommit(0, "")
        producer.send("t", b"plain", partition=0).result(30)
    assert values(broker.address) == [b"plain"] + [b"winner"] * 4


def test_reading_computing_and_writing_each_record_once(broker: BrokerProcess) -> None:
    """Offsets are part of the transaction: records of an aborted one are read again, those of a committed one are
    not."""
    with broker.connect() as client:
        create_topic(client, "in", 1)
    with Producer(broker.address) as source:
        source.send_batch("in", {"value": [b"%d" % i for i in range(30)]}).result(30)
    rng = random.Random(3)
    attempts = 0
    with Producer(broker.address, transactional_id="a") as producer:
        done = 0
        while done < 30:
            with sparklog.Consumer(broker.address, group_id="g", enable_auto_commit=False) as consumer:
                consumer.subscribe(["in"])
                while done < 30:
                    records = consumer.poll(500, max_records=7)
                    if not records:
                        continue
                    attempts += 1
                    try:
                        with producer.transaction():
                            for record in records:
                                assert isinstance(record.value, bytes)
                                producer.send("t", record.value, partition=record.offset % PARTITIONS)
                            position = {sparklog.TopicPartition("in", 0): records[-1].offset + 1}
                            producer.send_offsets_to_transaction(position, consumer.group_metadata())
                            if rng.random() < 0.4:
                                raise KeyError
                    except KeyError:
                        break  # another consumer begins where the last committed transaction says
                    done = records[-1].offset + 1
    assert attempts > 30 / 7
    assert values(broker.address) == sorted(b"%d" % i for i in range(30))


def test_offsets_of_a_member_that_has_been_replaced_are_refused(broker: BrokerProcess) -> None:
    with sparklog.Consumer(broker.address, group_id="g") as consumer:
        consumer.subscribe(["t"])
        consumer.poll(100)
        stale = consumer.group_metadata()
    position = {sparklog.TopicPartition("t", 0): 1}
    with Producer(broker.address, transactional_id="a") as producer:
        with pytest.raises(sparklog.SparklogError), producer.transaction():
            producer.send_offsets_to_transaction(position, stale)
        with producer.transaction():
            producer.send_offsets_to_transaction(position, "g")


WRITER = """
import sys, sparklog
servers, count = sys.argv[1], int(sys.argv[2])
with sparklog.Producer(servers, transactional_id="w", linger_ms=0) as producer:
    producer.init_transactions()
    done = sparklog.read_table(servers, "t").num_rows // 2
    for number in range(done, count):
        with producer.transaction():
            for partition in (0, 1):
                producer.send("t", b"%d" % number, partition=partition)
"""


@pytest.mark.crash
@pytest.mark.parametrize(
    "fault",
    in_gate(
        ["producer.before-send:2", "producer.after-send:4", "producer.before-end:2", "producer.after-end:3"],
        "producer.after-send:4",
    ),
)
def test_a_producer_that_dies_anywhere_is_followed_by_one_that_goes_on(
    broker: BrokerProcess, fault: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", WRITER, broker.address, "5"]
    fatal = os.environ | {"SPARKLOG_FAULT": f"{fault}:kill"}
    assert subprocess.run(command, env=fatal, check=False).returncode == -signal.SIGKILL
    subprocess.run(command, check=True)
    assert values(broker.address) == sorted(b"%d" % n for n in range(5) for _ in range(PARTITIONS))
