"""A peer that writes under ids, epochs, fencing tokens and sequences that are not its own, beside honest producers."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import sparklog
from sparklog.client.admin.admin import Admin
from sparklog.client.net.cluster import cluster, forget
from sparklog.client.producer.producer import Producer
from sparklog.client.transactions.shared_transaction import (
    Participant,
    SharedTransaction,
    draw_fencing_token,
    end_shared_transaction,
    join_shared_transaction,
)
from sparklog.errors import (
    CoordinatorLoadingError,
    CoordinatorNotAvailableError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    OutOfOrderSequenceError,
)
from sparklog.protocol.apis import Api
from sparklog.protocol.group_messages import FindCoordinatorRequest, FindCoordinatorResponse
from sparklog.protocol.messages import ProducePartition, ProduceRequest, ProduceResponse
from sparklog.protocol.transaction_messages import (
    EndSharedTxnRequest,
    EndSharedTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    JoinSharedTxnRequest,
    JoinSharedTxnResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from sparklog.types import TopicPartition
from tests.support.producers import produced
from tests.support.raw_client import RawClient
from tests.support.waiting import until
from tests.system.broker_process import BrokerProcess, create_topic, produce

T = TopicPartition("t", 0)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = start(tmp_path)
    with process.connect() as client:
        create_topic(client, "t")
    yield process
    assert process.stop() == 0


def start(tmp_path: Path) -> BrokerProcess:
    return BrokerProcess(tmp_path / "data", settings="[topic]\nmax.producers.per.partition = 50\n", work_dir=tmp_path)


def values(broker: BrokerProcess) -> list[bytes]:
    found: list[bytes] = sparklog.read_table(broker.address, "t").column("value").to_pylist()
    return found


def new_id(client: RawClient, transactional_id: str | None = None) -> int:
    request = InitProducerIdRequest(transactional_id)
    return client.request(Api.INIT_PRODUCER_ID, request, InitProducerIdResponse).producer_id


def codes(client: RawClient, *batches: bytes | bytearray, transactional_id: str | None = None) -> set[int]:
    """The outcomes of one request with a piece of the partition for each batch."""
    parts = [ProducePartition(*T, len(b)) for b in batches]
    request = ProduceRequest(-1, 10_000, parts, transactional_id)
    answer = client.request(Api.PRODUCE, request, ProduceResponse, b"".join(batches))
    return {r.error_code for r in answer.results}


def coordinating(client: RawClient) -> None:
    """Returns when the broker coordinates transactions."""

    def answers() -> bool:
        try:
            client.request(Api.FIND_COORDINATOR, FindCoordinatorRequest("id", 1), FindCoordinatorResponse)
            client.request(Api.LIST_TRANSACTIONS, ListTransactionsRequest(), ListTransactionsResponse)
        except (CoordinatorLoadingError, CoordinatorNotAvailableError):
            return False
        return True

    until(answers, "the broker coordinates transactions")


def test_invented_producer_ids_poison_no_honest_producer(broker: BrokerProcess) -> None:
    with broker.connect() as stranger:
        coordinating(stranger)
        mine = new_id(stranger)
        given = {mine, new_id(stranger, "whose coordinator keeps some ids in reserve")}
        ahead = [produced(n, 0, epoch=32_767) for n in range(mine + 2_000) if n not in given]
        never = [produced(n, 0, epoch=e) for n in (2**62, 2**63 - 1) for e in (0, 32_767)]
        assert codes(stranger, *ahead, *never) == {InvalidProducerIdMappingError.code}
        assert codes(stranger, produced(mine, 0, epoch=32_767)) == {InvalidProducerEpochError.code}
    with Admin(broker.address) as admin:
        assert admin.describe_producers(T).producers == []
    for n in range(20):
        with Producer(broker.address) as producer:
            producer.send("t", b"%d" % n).result(30)
    for n in range(20, 24):
        with Producer(broker.address, transactional_id=f"id {n}") as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send("t", b"%d" % n)
    assert sorted(map(int, values(broker))) == list(range(24))


def test_acknowledged_records_are_stored(broker: BrokerProcess) -> None:
    """A stranger has read the producer's id in the log, and writes its next batch."""
    with Producer(broker.address, linger_ms=0) as producer, Admin(broker.address) as admin:
        producer.send("t", b"first").result(30)
        (known,) = admin.describe_producers(T).producers
        with broker.connect() as stranger:
            foreign = produced(known.producer_id, known.last_sequence + 1, value=b"foreign")
            assert codes(stranger, foreign) == {0}
        with pytest.raises(OutOfOrderSequenceError, match="another client writes"):
            producer.send("t", b"refused").result(30)
        producer.send("t", b"next").result(30)
    assert values(broker) == [b"first", b"foreign", b"next"]


def test_repetitions_are_recognized_after_a_crash(tmp_path: Path) -> None:
    broker = start(tmp_path)
    with broker.connect() as client:
        create_topic(client, "t")
        mine = new_id(client)
        (first,) = produce(client, [("t", 0, produced(mine, 0, value=b"own"))])  # type: ignore[list-item]
    assert broker.stop(signal.SIGKILL) == -signal.SIGKILL
    broker = start(tmp_path)
    with broker.connect() as client:
        assert codes(client, produced(mine, 0, value=b"another")) == {OutOfOrderSequenceError.code}
        (again,) = produce(client, [("t", 0, produced(mine, 0, value=b"own"))])  # type: ignore[list-item]
        assert (again.error_code, again.base_offset) == (0, first.base_offset)
        assert codes(client, produced(mine, 1, value=b"on")) == {0}
    assert values(broker) == [b"own", b"on"]
    assert broker.stop() == 0


def test_a_partition_remembers_so_many_producers(broker: BrokerProcess) -> None:
    with broker.connect() as client, Admin(broker.address) as admin:
        batches = [produced(new_id(client), 0) for _ in range(200)]
        assert codes(client, *batches) == {0}
        assert len(admin.describe_producers(T).producers) == 50


def test_a_fencing_token_that_was_not_drawn_locks_no_application_out(broker: BrokerProcess) -> None:
    with broker.connect() as stranger:
        coordinating(stranger)
        newest = new_id(stranger)
        for fencing_token in (2**63 - 1, 2**62, newest + 100_000, -1, -(2**63)):
            join = JoinSharedTxnRequest("query", 7, "stranger", fencing_token)
            with pytest.raises(InvalidProducerIdMappingError, match="never issued"):
                stranger.request(Api.JOIN_SHARED_TXN, join, JoinSharedTxnResponse)
            end = EndSharedTxnRequest("query", 7, "stranger", fencing_token, True)
            with pytest.raises(InvalidProducerIdMappingError, match="never issued"):
                stranger.request(Api.END_SHARED_TXN, end, EndSharedTxnResponse)
    with Admin(broker.address) as admin:
        assert admin.list_transactions() == []
    known = cluster(broker.address)
    try:
        transaction = SharedTransaction("query", 0, "run", draw_fencing_token(known))
        participant = join_shared_transaction(known, transaction, timeout_ms=60_000)
        assert isinstance(participant, Participant)
        with Producer(broker.address) as producer, producer.participation(participant):
            producer.send("t", b"a")
        assert end_shared_transaction(
            known, transaction, committed=True, committed_participants=[participant.producer_id]
        ).committed
    finally:
        forget(broker.address)
    assert values(broker) == [b"a"]


def test_a_refused_transactional_batch_blocks_no_reader(broker: BrokerProcess) -> None:
    with Producer(broker.address, transactional_id="honest") as producer, Admin(broker.address) as admin:
        producer.init_transactions()
        with producer.transaction():
            producer.send("t", b"0")
        me = admin.describe_transaction("honest").summary
        assert me is not None
        with broker.connect() as stranger:
            forged = [
                produced(me.producer_id, 0, epoch=epoch, transactional=True)
                for epoch in (me.producer_epoch, me.producer_epoch + 1, 32_767)
            ]
            for transactional_id in ("nobody", "honest"):
                assert 0 not in codes(stranger, *forged[1:], transactional_id=transactional_id)
            assert 0 not in codes(stranger, forged[0], transactional_id="nobody")
        with producer.transaction():
            producer.send("t", b"1")
    assert values(broker) == [b"0", b"1"]
