"""One measurement in a process of its own: `python -m tests.campaigns.benchmarks.client NAME '{"argument": …}'`.

Prints its result as one line of JSON. The processor time and memory of this process are the client's alone. The timed
part is the part of a user's program: payloads are read and chosen before.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import socket
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparklog.protocol import messages as m
from sparklog.protocol.apis import Api
from tests.support.raw_client import RawClient

from . import latency, logins
from .payloads import read_payloads

Polled = tuple[int, int]
"""Records and the bytes of their values."""
POLL_MS = 1000
IDLE_S_MAX = 30.0
REQUESTS_WARM_UP = 200
BATCHES_PREPARED = 64
"""Different inputs to `send_batch`, used in turn: too many for the processor's caches."""


def sparklog_send_batch(
    bootstrap: str, topic: str, records: int, payload: str, batch_records: int, columnar: bool = False, **settings: Any
) -> dict[str, float]:
    """Call `send_batch` with lists of bytes, or Arrow tables (`columnar`), until all records are acknowledged."""
    import pyarrow as pa

    import sparklog

    pool, chosen = read_payloads(Path(payload)), random.Random(2)
    inputs: list[Any] = [{"value": chosen.choices(pool, k=batch_records)} for _ in range(BATCHES_PREPARED)]
    if columnar:
        inputs = [pa.table({"value": pa.array(i["value"], pa.binary())}) for i in inputs]
    with sparklog.Producer(bootstrap, **settings) as producer:
        begun = time.perf_counter()
        for i in range(records // batch_records):
            producer.send_batch(topic, inputs[i % BATCHES_PREPARED])
        rest = records % batch_records
        if rest:
            producer.send_batch(topic, {"value": chosen.choices(pool, k=rest)})
        producer.flush()
        return _rate(records, begun)


def raw_write(directory: str, size: int, files: int) -> dict[str, float]:
    """Write `size` bytes in MiB to `files` new files in turn, and remove them afterwards."""
    block = os.urandom(1024 * 1024)
    Path(directory).mkdir()
    descriptors = [os.open(Path(directory, str(i)), os.O_RDWR | os.O_CREAT) for i in range(files)]
    begun = time.perf_counter()
    for i in range(size // len(block)):
        os.write(descriptors[i % files], block)
    seconds = time.perf_counter() - begun
    for descriptor in descriptors:
        os.close(descriptor)
    shutil.rmtree(directory)
    return {"seconds": seconds, "bytes_per_s": size / seconds}


def sparklog_send(bootstrap: str, topic: str, records: int, payload: str, **settings: Any) -> dict[str, float]:
    """Call `send`, one record at a time."""
    import sparklog

    values = _values(payload, records)
    with sparklog.Producer(bootstrap, **settings) as producer:
        begun = time.perf_counter()
        send = producer.send
        for value in values:
            send(topic, value)
        producer.flush()
        return _rate(records, begun)


def confluent_send(bootstrap: str, topic: str, records: int, payload: str, **settings: Any) -> dict[str, float]:
    """Call confluent-kafka's `produce`, one record at a time; it waits while the queue is full, as its manual says."""
    from confluent_kafka import Producer

    values = _values(payload, records)
    failed: list[Any] = []

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    begun = time.perf_counter()
    produce = producer.produce
    for value in values:
        try:
            produce(topic, value, on_delivery=delivered)
        except BufferError:
            producer.poll(0.01)
            produce(topic, value, on_delivery=delivered)
    if producer.flush(120) or failed:
        raise RuntimeError(f"{len(failed)} records were not stored, the first because of {failed[:1]}")
    return _rate(records, begun)


def sparklog_consume(bootstrap: str, topic: str, partitions: int, records: int, **settings: Any) -> dict[str, float]:
    """Call `poll_batches` from the beginning, and add up the bytes of the values."""

    def poll(consumer: Any) -> Polled:
        found = consumer.poll_batches(POLL_MS)
        return sum(b.num_rows for b in found), sum(b.data.column("value").total_values_length for b in found)

    return _sparklog_drain(poll, bootstrap, topic, partitions, records, settings)


def sparklog_poll(bootstrap: str, topic: str, partitions: int, records: int, **settings: Any) -> dict[str, float]:
    """Call `poll`, and look at every record's value."""

    def poll(consumer: Any) -> Polled:
        found, size = consumer.poll(POLL_MS), 0
        for record in found:
            size += len(record.value)
        return len(found), size

    return _sparklog_drain(poll, bootstrap, topic, partitions, records, settings)


def _sparklog_drain(
    poll: Callable[[Any], Polled], bootstrap: str, topic: str, partitions: int, records: int, settings: dict[str, Any]
) -> dict[str, float]:
    import sparklog

    begun = time.perf_counter()
    with sparklog.Consumer(bootstrap, **settings) as consumer:
        consumer.assign([sparklog.TopicPartition(topic, p) for p in range(partitions)])  # begins to fetch
        return _drain(lambda _: poll(consumer), records, begun)


def _drain(poll: Callable[[int], Polled], records: int, begun: float) -> dict[str, float]:
    """Poll until `records` records came; `poll` gets the number that is left."""
    left, size, heard = records, 0, time.perf_counter()
    while left > 0:
        count, count_bytes = poll(left)
        left -= count
        size += count_bytes
        heard = time.perf_counter() if count else heard
        if time.perf_counter() > heard + IDLE_S_MAX:
            raise TimeoutError(f"{left} records did not come within {IDLE_S_MAX:.0f} s")
    return _rate(records - left, begun) | {"value_bytes": size}


def confluent_consume(bootstrap: str, topic: str, partitions: int, records: int, **settings: Any) -> dict[str, float]:
    """Call confluent-kafka's `consume`, and look at every record's value."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False, **settings})

    def poll(left: int) -> Polled:
        found, size = consumer.consume(min(500, left), 1.0), 0
        for message in found:
            if message.error():
                raise RuntimeError(str(message.error()))
            size += len(message.value() or b"")
        return len(found), size

    begun = time.perf_counter()
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(partitions)])
    result = _drain(poll, records, begun)
    consumer.close()
    return result


def raw_receive(port: int, total_bytes: int, chunk_bytes: int) -> dict[str, float]:
    """Read chunk after chunk from a plain `sendfile` loop: the limit of loopback itself."""
    buffer = memoryview(bytearray(chunk_bytes))
    with socket.create_connection(("127.0.0.1", port)) as sock:
        begun = time.perf_counter()
        for _ in range(total_bytes // chunk_bytes):
            sock.send(b"x")
            received = 0
            while received < chunk_bytes:
                count = sock.recv_into(buffer[received:])
                if not count:
                    raise EOFError("the sendfile loop ended early")
                received += count
        seconds = time.perf_counter() - begun
    return {"mb_per_s": total_bytes // chunk_bytes * chunk_bytes / seconds / 1e6, "seconds": seconds}


def _place(bootstrap: str) -> tuple[str, int]:
    return bootstrap.rpartition(":")[0].strip("[]"), int(bootstrap.rpartition(":")[2])


def _timed(request: Callable[[int], None], warm_up: int, count: int) -> dict[str, float]:
    times = []
    for i in range(warm_up + count):
        begun = time.perf_counter()
        request(i)
        times.append(time.perf_counter() - begun)
    counted = sorted(times[warm_up:])
    return {"median_us": statistics.median(counted) * 1e6, "p99_us": counted[int(len(counted) * 0.99)] * 1e6}


def random_fetches(bootstrap: str, topic: str, end_offset: int, count: int, max_bytes: int) -> dict[str, float]:
    """Send `count` fetches of partition 0 at random offsets below `end_offset`."""
    chosen = random.Random(3)
    with RawClient(*_place(bootstrap), buffer_bytes=4096) as client:

        def fetch(_: int) -> None:
            offset = chosen.randrange(end_offset)
            client.send(Api.FETCH, m.FetchRequest(0, 1, max_bytes, 0, [m.FetchPartition(topic, 0, offset, max_bytes)]))
            if not len(client.receive(Api.FETCH, m.FetchResponse)[1]):
                raise RuntimeError(f"no records came for offset {offset}")

        return _timed(fetch, REQUESTS_WARM_UP, count)


def many_connections(bootstrap: str, connections: int, count: int) -> dict[str, float]:
    """Send `count` tiny requests, each on the next of `connections` open connections."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    clients = [RawClient(*_place(bootstrap), buffer_bytes=4096) for _ in range(connections)]

    def handshake(i: int) -> None:
        clients[i % connections].request(Api.HANDSHAKE, m.HandshakeRequest(), m.HandshakeResponse)

    found = _timed(handshake, max(connections, REQUESTS_WARM_UP), count)
    for client in clients:
        client.close()
    return found


def _values(payload: str, records: int) -> list[bytes]:
    return random.Random(2).choices(read_payloads(Path(payload)), k=records)


def _rate(records: int, begun: float) -> dict[str, float]:
    seconds = time.perf_counter() - begun
    return {"records": records, "seconds": seconds, "records_per_s": records / seconds}


def program(name: str) -> Callable[..., dict[str, float]]:
    """The function of that name in the modules of programs, this one last. Raises StopIteration."""
    modules = (latency, logins, sys.modules[__name__])
    found: Callable[..., dict[str, float]] = next(getattr(each, name) for each in modules if hasattr(each, name))
    return found


if __name__ == "__main__":
    print(json.dumps(program(sys.argv[1])(**json.loads(sys.argv[2]))))
