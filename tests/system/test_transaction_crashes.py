"""A broker that is killed at every step of a transaction's end: the decision stays, the markers come, nothing is
torn."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sparklog import Admin, read_table
from sparklog.environment.fault_points import VARIABLE, VARIABLE_MARK
from sparklog.errors import SparklogError
from sparklog.protocol.apis import Api
from sparklog.protocol.messages import ProducePartition, ProduceRequest, ProduceResponse
from sparklog.protocol.transaction_messages import (
    EndSharedTxnRequest,
    EndSharedTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    JoinSharedTxnRequest,
    JoinSharedTxnResponse,
)
from sparklog.types import TopicPartition, shared_transactional_id
from tests.support.raw_client import RawClient
from tests.support.transactions import rows
from tests.support.waiting import until
from tests.system.broker_process import PATIENCE_S, BrokerProcess, create_topic

PARTITIONS = 3
POINTS = (
    "txn.before-decision",
    "txn.after-decision",
    "txn.between-markers",
    "txn.before-completion",
    "txn.after-completion",
)
IN_PLAIN = ("txn.before-decision", "txn.between-markers", "txn.after-completion")
IN_SHARED = ("txn.after-decision", "txn.between-markers", "txn.before-completion")
Start = Callable[..., BrokerProcess]


def marked(usual: tuple[str, ...]) -> list[object]:
    """All points: the first of the `usual` in `make test`, these in `make test-all`, the others in long campaigns."""
    long = {point: pytest.mark.nightly if point in usual else pytest.mark.torture for point in POINTS}
    return [point if point == usual[0] else pytest.param(point, marks=long[point]) for point in POINTS]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts brokers on one directory; they are gone after the test."""
    started: list[BrokerProcess] = []

    def start_one(settings: str = "") -> BrokerProcess:
        work = tmp_path / f"broker{len(started)}"
        work.mkdir()
        started.append(BrokerProcess(tmp_path / "data", settings=settings, work_dir=work))
        return started[-1]

    yield start_one
    for broker in started:
        broker.stop(signal.SIGKILL)


def write(client: RawClient, transactional_id: str, producer: tuple[int, int], value: bytes, sequence: int = 0) -> None:
    """One row to each partition."""
    data = rows(value, producer, sequence)
    parts = [ProducePartition("t", p, len(data)) for p in range(PARTITIONS)]
    request = ProduceRequest(-1, 10_000, parts, transactional_id)
    results = client.request(Api.PRODUCE, request, ProduceResponse, data * PARTITIONS).results
    assert [r.error_code for r in results] == [0] * PARTITIONS, results


def begin(client: RawClient, transactional_id: str) -> tuple[int, int]:
    request = InitProducerIdRequest(transactional_id)
    answer = client.request(Api.INIT_PRODUCER_ID, request, InitProducerIdResponse)
    return answer.producer_id, answer.producer_epoch


def again(request: Callable[[], object]) -> object:
    """The answer, asked for until the coordinator has read its state."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return request()
        except SparklogError as e:
            assert e.retriable, e
            assert time.monotonic() < deadline
            time.sleep(0.01)


def stable_everywhere(admin: Admin) -> bool:
    """Return True if nothing is open in any partition."""
    tps = [TopicPartition("t", p) for p in range(PARTITIONS)]
    stable = admin.list_offsets(dict.fromkeys(tps, "latest"), isolation_level="read_committed")
    ends = admin.list_offsets(dict.fromkeys(tps, "latest"))
    return all(stable[tp].offset == ends[tp].offset for tp in tps)


def values(broker: BrokerProcess) -> list[bytes]:
    return sorted(read_table(broker.address, "t", columns=["value"])["value"].to_pylist())


@pytest.mark.crash
@pytest.mark.parametrize("point", marked(IN_PLAIN))
def test_a_plain_commit(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    monkeypatch.setenv(VARIABLE, f"{point}:kill")
    monkeypatch.setenv(VARIABLE_MARK, str(tmp_path / "mark"))
    broker = start()
    with broker.connect() as client:
        create_topic(client, "t", PARTITIONS)
        producer = begin(client, "id")
        write(client, "id", producer, b"a")
        end = EndTxnRequest("id", *producer, True)
        with pytest.raises((EOFError, OSError)):
            client.request(Api.END_TXN, end, EndTxnResponse)
    assert broker.wait() == -signal.SIGKILL
    assert (tmp_path / f"mark.{point}").exists()

    broker = start()
    with Admin(broker.address) as admin, broker.connect() as client:
        if point == "txn.before-decision":
            summary = admin.describe_transaction("id").summary
            assert summary is not None
            assert summary.state == "Ongoing"
            assert values(broker) == []
        else:  # nobody has to ask for it, and who reads never sees a part of it
            assert values(broker) == [b"a"] * PARTITIONS
            until(lambda: stable_everywhere(admin), "the decided transaction is completed")
            assert values(broker) == [b"a"] * PARTITIONS
        answer = again(lambda: client.request(Api.END_TXN, end, EndTxnResponse))
        assert isinstance(answer, EndTxnResponse)
        assert (answer.producer_id, answer.producer_epoch) == (producer[0], producer[1] + 1)
        assert values(broker) == [b"a"] * PARTITIONS
        write(client, "id", (answer.producer_id, answer.producer_epoch), b"b")
        client.request(
            Api.END_TXN, EndTxnRequest("id", answer.producer_id, answer.producer_epoch, False), EndTxnResponse
        )
        assert values(broker) == [b"a"] * PARTITIONS
        assert stable_everywhere(admin)


@pytest.mark.crash
@pytest.mark.parametrize("point", marked(IN_SHARED))
def test_a_shared_commit(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    monkeypatch.setenv(VARIABLE, f"{point}:kill")
    monkeypatch.setenv(VARIABLE_MARK, str(tmp_path / "mark"))
    app = shared_transactional_id("app")
    broker = start()
    with broker.connect() as client:
        create_topic(client, "t", PARTITIONS)
        fencing_token = begin_fencing_token(client)
        join = JoinSharedTxnRequest("app", 7, "run", fencing_token, 60_000)
        tasks = [client.request(Api.JOIN_SHARED_TXN, join, JoinSharedTxnResponse).producer_id for _ in range(3)]
        for n, task in enumerate(tasks):
            write(client, app, (task, 0), b"%d" % n)
        end = EndSharedTxnRequest("app", 7, "run", fencing_token, True, [tasks[0], tasks[2]])
        with pytest.raises((EOFError, OSError)):
            client.request(Api.END_SHARED_TXN, end, EndSharedTxnResponse)
    assert broker.wait() == -signal.SIGKILL

    chosen = sorted([b"0"] * PARTITIONS + [b"2"] * PARTITIONS)
    broker = start()
    with Admin(broker.address) as admin, broker.connect() as client:
        if point == "txn.before-decision":
            assert len(admin.describe_transaction(app).partitions) == 3 * PARTITIONS
            assert values(broker) == []
        else:
            assert values(broker) == chosen
            until(lambda: stable_everywhere(admin), "the decided transaction is completed")
        answer = again(lambda: client.request(Api.END_SHARED_TXN, end, EndSharedTxnResponse))
        assert isinstance(answer, EndSharedTxnResponse)
        assert answer.committed
        assert values(broker) == chosen
        newer = JoinSharedTxnRequest("app", 7, "run2", begin_fencing_token(client), 60_000)
        assert client.request(Api.JOIN_SHARED_TXN, newer, JoinSharedTxnResponse).committed
        details = admin.describe_transaction(app)
        assert (details.last_committed_version, details.partitions) == (7, [])
        assert stable_everywhere(admin)
        assert admin.find_hanging_transactions() == []


def begin_fencing_token(client: RawClient) -> int:
    return client.request(Api.INIT_PRODUCER_ID, InitProducerIdRequest(), InitProducerIdResponse).producer_id


def test_an_open_transaction_of_a_dead_producer_times_out_after_a_restart(start: Start) -> None:
    broker = start()
    with broker.connect() as client:
        create_topic(client, "t", PARTITIONS)
        request = InitProducerIdRequest("id", 1)
        answer = client.request(Api.INIT_PRODUCER_ID, request, InitProducerIdResponse)
        write(client, "id", (answer.producer_id, answer.producer_epoch), b"a")
    broker.stop(signal.SIGKILL)
    broker = start("transaction.abort.timed.out.transaction.cleanup.interval.ms = 10")
    with Admin(broker.address) as admin:
        until(lambda: stable_everywhere(admin), "the transaction is aborted")
        assert values(broker) == []
