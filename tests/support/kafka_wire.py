"""A client of Kafka's protocol that sends any request, by the gateway's own table of messages."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

from sparklog.gateway.records.small import write_small
from sparklog.kafka.records.batch_v2 import COMPRESSION, write_batch
from sparklog.kafka.wire.apis import API_VERSIONS
from sparklog.kafka.wire.codec import decoder, encoder, partial_decoder
from sparklog.kafka.wire.errors import Kafka
from sparklog.kafka.wire.schema import REQUEST, RESPONSE, messages
from tests.support.waiting import PATIENCE_S, until

COORDINATOR_IS_STARTING = {
    Kafka.COORDINATOR_LOAD_IN_PROGRESS,
    Kafka.COORDINATOR_NOT_AVAILABLE,
    Kafka.NOT_COORDINATOR,
}


class KafkaWire:
    """One connection to a gateway."""

    def __init__(
        self, address: str, *, client_id: str | bytes | None = "wire", tls: ssl.SSLContext | None = None
    ) -> None:
        """`address`: HOST:PORT of the gateway. `client_id`: the client's id in each request; None: null."""
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), PATIENCE_S)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=host)
        self._client_id = client_id.encode() if isinstance(client_id, str) else client_id

    def send(self, name: str, version: int, body: dict[str, Any]) -> None:
        """Send a request. Fields with a default can be missing in `body`."""
        data = b"".join(bytes(part) for part in encoder(REQUEST, name, version)(body))
        self.send_encoded(name, version, data)

    def send_encoded(self, name: str, version: int, data: bytes) -> None:
        """Send a request whose body is encoded already."""
        message = messages()[REQUEST, name]
        client_id = self._client_id
        size = -1 if client_id is None else len(client_id)
        head = struct.pack(">hhih", message.api_key, version, 7, size) + (client_id or b"")
        head += b"\0" if message.is_flexible(version) else b""
        self.socket.sendall(struct.pack(">i", len(head) + len(data)) + head + data)

    def receive(self, name: str, version: int, *, elements_max: int | None = None) -> dict[str, Any]:
        """Return the next response. `elements_max`: number of elements in its lists that are read; None: it has no more
        than a request can have. Raises ConnectionError if the gateway has closed the connection."""
        (size,) = struct.unpack(">i", self._exactly(4))
        data = self._exactly(size)
        is_tagged = name != API_VERSIONS and messages()[REQUEST, name].is_flexible(version)
        body = memoryview(data)[5 if is_tagged else 4 :]
        if elements_max is not None:
            return partial_decoder(RESPONSE, name, version)(body, elements_max)
        return decoder(RESPONSE, name, version)(body)

    def ask(self, name: str, version: int, body: dict[str, Any]) -> dict[str, Any]:
        """Send a request, and return its response."""
        self.send(name, version, body)
        return self.receive(name, version)

    def ask_coordinator(self, name: str, version: int, body: dict[str, Any]) -> dict[str, Any]:
        """Send a request to the coordinator of a group or transaction, and return its response. The request is repeated
        while the coordinator is starting, as clients do it."""
        answers: list[dict[str, Any]] = []

        def is_answered() -> bool:
            answers.append(self.ask(name, version, body))
            return COORDINATOR_IS_STARTING.isdisjoint(codes_in(answers[-1]))

        until(is_answered, f"an answer of the coordinator to {name}")
        return answers[-1]

    def _exactly(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            part = self.socket.recv(size - len(found))
            if not part:
                raise ConnectionError(f"the gateway has closed the connection after {len(found)} of {size} bytes")
            found += part
        return bytes(found)

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def __enter__(self) -> KafkaWire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def batch_of(records: bytes, count: int, *, codec: int = 0, timestamp_ms: int = 1_700_000_000_000) -> bytes:
    """Return a batch of encoded records (compressed, if `codec` is not 0) without a producer's identity."""
    parts = write_batch(
        [records], base_offset=0, leader_epoch=-1, attributes=codec & COMPRESSION, last_offset_delta=count - 1,
        base_timestamp_ms=timestamp_ms, max_timestamp_ms=timestamp_ms, producer_id=-1, producer_epoch=-1,
        base_sequence=-1, record_count=count,
    )  # fmt: skip
    return b"".join(bytes(part) for part in parts)


def batch_of_values(values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None) -> bytes:
    """Return a batch of records with these values and keys (None: none)."""
    return batch_of(write_small(keys, values, [0] * len(values)), len(values))


def produce_body(topic: str, records: bytes, *, acks: int = -1, transactional_id: str | None = None) -> dict[str, Any]:
    """Return a PRODUCE request for partition 0 of a topic."""
    partitions = [{"index": 0, "records": [records]}]
    return {
        "transactional_id": transactional_id,
        "acks": acks,
        "timeout_ms": 10_000,
        "topic_data": [{"name": topic, "partition_data": partitions}],
    }


def produced(wire: KafkaWire, topic: str, records: bytes, version: int = 9) -> dict[str, Any]:
    """Send records to partition 0 of a topic, and return the partition's result."""
    answer = wire.ask("Produce", version, produce_body(topic, records))
    found: dict[str, Any] = answer["responses"][0]["partition_responses"][0]
    return found


def fetched(wire: KafkaWire, topic: str, version: int = 12, *, offset: int = 0) -> dict[str, Any]:
    """Fetch partition 0 of a topic from `offset` on, and return the partition's result."""
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 25}
    topics = [{"topic": topic, "partitions": [partition]}]
    body = {"max_wait_ms": 0, "min_bytes": 0, "topics": topics, "forgotten_topics_data": []}
    found: dict[str, Any] = wire.ask("Fetch", version, body)["responses"][0]["partitions"][0]
    return found


def codes_in(answer: Any) -> Iterator[int]:
    """Yield all error codes of an answer."""
    if isinstance(answer, dict):
        for name, value in answer.items():
            if name.endswith("error_code"):
                yield value
            else:
                yield from codes_in(value)
    elif isinstance(answer, list):
        for value in answer:
            yield from codes_in(value)
