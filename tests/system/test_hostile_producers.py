"""A peer that writes under ids, epochs, fencing tokens and sequences that are not its own, beside honest producers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import sparklog
from sparklog.client.admin.admin import Admin
from sparklog.client.producer.producer import Producer
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
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from sparklog.types import TopicPartition
from tests.support.producers import produced
from tests.support.raw_client import RawClient
from tests.support.waiting import until
from tests.system.broker_process import BrokerProcess, create_topic

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
