"""The limits of `docs/kafka-clients.md`, with a gateway process and hostile clients: its memory, and small requests
beside them."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest

import sparklog
from sparklog.client.local import LocalBroker
from sparklog.gateway.limits import Limits
from sparklog.gateway.records.small import write_small
from sparklog.kafka.records.batch_v2 import write_batch
from sparklog.kafka.wire.codec import ELEMENTS_MAX, encoder
from sparklog.kafka.wire.schema import REQUEST, messages
from sparklog.settings import MIB
from tests.support.processes import peak_memory_bytes
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.nightly

PROCESS_MIB = 250
"""Memory of the process without clients, with some room."""
LONG_CLIENTS, JOINS = 4, 24
SILENT, FETCHES = 100, 8
"""Clients that do not read their answers, and the fetches that each of them sends."""
LATE_ANSWERS_MAX = LONG_CLIENTS
"""Long requests that may be answered while a small request waits: each client has one at a time."""


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """A broker with a gateway."""
    with sparklog.start_local(tmp_path_factory.mktemp("limits") / "data", kafka=True) as local:
        yield local


def gateway_process(kafka: LocalBroker) -> str:
    """Return the id of the gateway's process."""
    return [line for line in kafka.log.splitlines() if "kafka-gateway started" in line][-1].split()[-1]


def request_of(api: str, version: int, body: dict[str, Any]) -> bytes:
    message = messages()[REQUEST, api]
    head = struct.pack(">hhih", message.api_key, version, 7, -1) + (b"\0" if message.is_flexible(version) else b"")
    data = head + b"".join(bytes(part) for part in encoder(REQUEST, api, version)(body))
    return struct.pack(">i", len(data)) + data


def produce_of(value: bytes, topic: str = "t") -> bytes:
    batch = write_batch(
        [write_small(None, [value], [0])], base_offset=0, leader_epoch=0, attributes=0, last_offset_delta=0,
        base_timestamp_ms=1, max_timestamp_ms=1, producer_id=-1, producer_epoch=-1, base_sequence=-1, record_count=1,
    )  # fmt: skip
    partition = {"index": 0, "records": [b"".join(batch)]}
    topics = [{"name": topic, "partition_data": [partition]}]
    return request_of("Produce", 8, {"acks": -1, "timeout_ms": 30_000, "topic_data": topics})


def long_fetch() -> bytes:
    """A fetch of nearly as many partitions as a request may name."""
    partitions = [{"partition": i, "fetch_offset": 0, "partition_max_bytes": 1} for i in range(ELEMENTS_MAX // 2 - 1)]
    topics = [{"topic": name, "partitions": partitions} for name in ("t", "missing")]
    body = {"max_wait_ms": 0, "min_bytes": 0, "topics": topics, "forgotten_topics_data": []}
    return request_of("Fetch", 11, body)


def full_fetch() -> bytes:
    """A fetch of the topic `full`, as large as the gateway answers it."""
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 64 * MIB}
    topics = [{"topic": "full", "partitions": [partition]}]
    body = {"max_wait_ms": 0, "min_bytes": 0, "topics": topics, "forgotten_topics_data": []}
    return request_of("Fetch", 11, body)


def join_of(group: str) -> bytes:
    protocols = [{"name": "range", "metadata": bytes(4 * MIB - 1_000)}]
    body = {"group_id": group, "session_timeout_ms": 1_800_000, "rebalance_timeout_ms": 1_800_000, "member_id": ""}
    return request_of("JoinGroup", 2, {**body, "protocol_type": "consumer", "protocols": protocols})


class Client:
    """A connection for requests as bytes."""

    def __init__(self, kafka: LocalBroker) -> None:
        host, _, port = kafka.kafka_bootstrap_servers.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), PATIENCE_S)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, data: bytes) -> bytes:
        """Send a request, and return the answer; empty: the connection has ended."""
        self.socket.sendall(data)
        size = self._read(4)
        return self._read(int.from_bytes(size, "big")) if size else b""

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self.socket.recv(min(size - len(data), MIB))
            if not part:
                return b""
            data += part
        return bytes(data)


def test_a_client_that_reads_does_not_wait_for_clients_that_do_not(kafka: LocalBroker) -> None:
    with ExitStack() as stack:
        honest = stack.enter_context(Client(kafka))
        honest.ask(request_of("Metadata", 4, {"topics": [{"name": "full"}], "allow_auto_topic_creation": True}))
        for _ in range(40):
            assert honest.ask(produce_of(bytes(MIB - 10_000), "full"))
        silent = [stack.enter_context(Client(kafka)) for _ in range(SILENT)]
        for one in silent:
            one.socket.sendall(full_fetch() * FETCHES)
        for _ in range(5):
            reader = stack.enter_context(Client(kafka))
            assert len(reader.ask(full_fetch())) > MIB - 10_000
            assert reader.ask(produce_of(b"x", "full"))
    held = Limits().unread_bytes + Limits().conversion_bytes
    assert peak_memory_bytes(gateway_process(kafka)) <= PROCESS_MIB * MIB + held
    assert "memory of answers" not in kafka.log, "less than half of the memory is taken, so no client is disconnected"


def test_the_memory_is_bounded_and_small_requests_are_answered_beside_hostile_clients(kafka: LocalBroker) -> None:
    small, fetch, process = produce_of(b"x"), long_fetch(), gateway_process(kafka)
    stop = threading.Event()
    answered = [0] * LONG_CLIENTS

    def fetch_again(i: int) -> None:
        with Client(kafka) as client:
            while not stop.is_set() and client.ask(fetch):
                answered[i] += 1

    def join_groups() -> None:
        for i in range(JOINS):
            with suppress(OSError), Client(kafka) as client:
                client.ask(join_of(f"hostile-{i}"))

    def send_half(size: int) -> Callable[[], None]:
        def send() -> None:
            with suppress(OSError):
                halves[size].socket.sendall(struct.pack(">i", 95 * MIB) + bytes(size))

        return send

    with ExitStack() as stack:
        honest = stack.enter_context(Client(kafka))
        for topic in ("t", "full"):
            honest.ask(request_of("Metadata", 4, {"topics": [{"name": topic}], "allow_auto_topic_creation": True}))
        for _ in range(SILENT):
            stack.enter_context(Client(kafka)).socket.sendall(full_fetch() * FETCHES)
        halves = {90 * MIB + i: stack.enter_context(Client(kafka)) for i in range(6)}
        work = [*map(send_half, halves), join_groups, *(lambda i=i: fetch_again(i) for i in range(LONG_CLIENTS))]
        threads = [threading.Thread(target=one) for one in work]
        for thread in threads:
            thread.start()
        late = []
        while sum(answered) < LONG_CLIENTS or any(one.is_alive() for one in threads[:7]):
            before = sum(answered)
            assert honest.ask(small)
            late.append(sum(answered) - before)
        stop.set()
        for thread in threads:
            thread.join()
    assert sorted(late)[len(late) // 2] <= LATE_ANSWERS_MAX
    limits = Limits()
    held = limits.memory_bytes + limits.list_bytes + limits.broker_answer_bytes + limits.group_bytes
    held += limits.unread_bytes + limits.conversion_bytes
    assert peak_memory_bytes(process) <= PROCESS_MIB * MIB + held
