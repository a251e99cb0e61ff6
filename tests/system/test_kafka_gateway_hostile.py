"""A gateway and hostile clients: well-formed requests with any values, half requests, and very many connections."""

from __future__ import annotations

import gzip
import random
import resource
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from confluent_kafka import Producer

import sparklog
from sparklog.client.local import LocalBroker
from sparklog.gateway.registry import served_apis
from sparklog.kafka.records import compression
from sparklog.kafka.records.batch_v2 import write_batch
from sparklog.kafka.wire.codec import encoder
from sparklog.kafka.wire.schema import REQUEST, Field, messages
from sparklog.settings import MIB
from tests.support.processes import peak_memory_bytes
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.nightly

ROUNDS = 4
ANSWER_S = 1.0
"""Some requests wait for other clients: nobody waits longer for their answers."""
CONNECTIONS = 4_990
"""All that one address may have, but for those of the honest client."""
DESCRIPTORS = 2 * CONNECTIONS + 500
BOMBS = 7
"""Bombs at once of each codec."""
PEAK_MIB = 1_300
"""The memory for conversions, and that of the process itself."""
_BITS = {"int8": 7, "int16": 15, "uint16": 16, "int32": 31, "uint32": 32, "int64": 63}
TEXTS = ("", "t", "hostile", "__consumer_offsets", "\0", "a/../b", "é" * 100, "x" * 250, "x" * 30_000, "%s{0}")


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """A broker with a gateway."""
    with sparklog.start_local(tmp_path_factory.mktemp("hostile") / "data", kafka=True) as local:
        yield local


def still_serves(kafka: LocalBroker) -> None:
    """An honest client is served, by a gateway in which nothing has failed."""
    outcomes: list[Any] = []
    producer = Producer({"bootstrap.servers": kafka.kafka_bootstrap_servers})
    producer.produce("honest", b"x", on_delivery=lambda error, _: outcomes.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert outcomes == [None]
    assert "the gateway failed" not in kafka.log, kafka.log[-6_000:]
    assert kafka.log.count("kafka-gateway started") == 1, "the gateway has died"


def gateway_peak_mib(kafka: LocalBroker) -> int:
    """The largest memory of the gateway's process so far."""
    pid = [line for line in kafka.log.splitlines() if "kafka-gateway started" in line][-1].split()[-1]
    return peak_memory_bytes(pid) // MIB


def connected(kafka: LocalBroker) -> socket.socket:
    host, _, port = kafka.kafka_bootstrap_servers.rpartition(":")
    return socket.create_connection((host, int(port)), PATIENCE_S)


def hostile_value(field: Field, version: int, rng: random.Random) -> Any:
    """Some value that the field can carry."""
    if field.null is not None and version in field.null and rng.random() < 0.15:
        return None
    if field.is_list:
        return [hostile_item(field, version, rng) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
    return hostile_item(field, version, rng)


def hostile_item(field: Field, version: int, rng: random.Random) -> Any:
    kind = field.type
    if kind == "{}":
        return hostile_body(field.fields, version, rng)
    if kind in _BITS:
        top = 2 ** _BITS[kind]
        low = 0 if kind.startswith("u") else -top
        return rng.choice((low, 0, 1, 2, 3, 100, top - 1) if low == 0 else (low, -2, -1, 0, 1, 2, 3, 100, top - 1))
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "float64":
        return rng.choice((0.0, -1.0, float("inf"), float("nan")))
    if kind == "string":
        return rng.choice(TEXTS)
    if kind == "uuid":
        return UUID(bytes=rng.randbytes(16))
    data = rng.randbytes(rng.choice((0, 1, 60, 300)))
    return [data] if kind == "records" else data


def hostile_body(fields: tuple[Field, ...], version: int, rng: random.Random) -> dict[str, Any]:
    return {f.name: hostile_value(f, version, rng) for f in fields if version in f.versions}


def test_well_formed_requests_with_any_values_are_survived(kafka: LocalBroker) -> None:
    rng = random.Random("hostile")
    answered = 0
    for served in served_apis().values():
        api = served.api
        message = messages()[REQUEST, api.name]
        for version in range(api.first, api.last + 1):
            encode = encoder(REQUEST, api.name, version)
            head = struct.pack(">hhih", api.key, version, 7, -1) + (b"\0" if message.is_flexible(version) else b"")
            for _ in range(ROUNDS):
                data = head + b"".join(bytes(p) for p in encode(hostile_body(message.fields, version, rng)))
                with connected(kafka) as sock:
                    sock.settimeout(ANSWER_S)
                    sock.sendall(struct.pack(">i", len(data)) + data)
                    with suppress(TimeoutError, ConnectionResetError):
                        answered += bool(sock.recv(4))
    assert answered > 100
    still_serves(kafka)


def test_half_requests_and_very_many_connections_leave_room_for_others(kafka: LocalBroker) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < DESCRIPTORS:
        pytest.skip(f"{hard} descriptors are allowed here; {DESCRIPTORS} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, DESCRIPTORS), hard))
    versions = struct.pack(">ihhih", 10, 18, 0, 7, -1)
    try:
        with ExitStack() as stack:
            sockets = [stack.enter_context(connected(kafka)) for _ in range(CONNECTIONS)]
            for i, sock in enumerate(sockets):
                sock.sendall(versions if i % 2 else struct.pack(">i", 90_000_000) + bytes(1_000))
            for sock in sockets[1::2]:
                assert sock.recv(4), "an idle neighbour is answered"
            still_serves(kafka)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    still_serves(kafka)


def test_bombs_of_many_connections_share_their_memory(kafka: LocalBroker) -> None:
    zeros = bytes(120 * MIB)
    requests = []
    for codec in (compression.GZIP, compression.SNAPPY, compression.LZ4, compression.ZSTD):
        name = compression.NAMES[codec]
        data = gzip.compress(zeros) if name == "gzip" else pa.Codec(name).compress(zeros, asbytes=True)
        batch = write_batch(
            [data], base_offset=0, leader_epoch=0, attributes=codec, last_offset_delta=999, base_timestamp_ms=1,
            max_timestamp_ms=1, producer_id=-1, producer_epoch=-1, base_sequence=-1, record_count=1_000,
        )  # fmt: skip
        partitions = [{"index": 0, "records": batch}]
        body = {"acks": -1, "timeout_ms": 1, "topic_data": [{"name": "hostile", "partition_data": partitions}]}
        requests.append(struct.pack(">hhih", 0, 8, 1, -1) + b"".join(encoder(REQUEST, "Produce", 8)(body)))

    def send(request: bytes) -> None:
        with connected(kafka) as sock:
            sock.sendall(struct.pack(">i", len(request)) + request)
            assert sock.recv(4)
            answered.append(request)

    answered: list[bytes] = []
    producer = Producer({"bootstrap.servers": kafka.kafka_bootstrap_servers})
    producer.produce("hostile", b"x")
    assert producer.flush(PATIENCE_S) == 0
    threads = [threading.Thread(target=send, args=[request]) for request in requests for _ in range(BOMBS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answered) == len(threads)
    assert gateway_peak_mib(kafka) < PEAK_MIB
    still_serves(kafka)
