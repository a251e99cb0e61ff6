"""One measurement in a process of its own: `python -m tests.benchmarks.client NAME '{"argument": …}'`.

Prints its result as one line of JSON. The processor time and memory of this process are the client's alone. The timed
part is the part of a user's program: payloads are read and chosen before.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from . import gaps, growth, latency, logins
from .payloads import read_payloads

POLL_MS = 1000
IDLE_S_MAX = 30.0
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

    def poll(consumer: Any) -> Iterator[tuple[int, int]]:
        for batch in consumer.poll_batches(POLL_MS):
            yield batch.num_rows, batch.data.column("value").total_values_length

    return _sparklog_drain(poll, bootstrap, topic, partitions, records, settings)


def sparklog_poll(bootstrap: str, topic: str, partitions: int, records: int, **settings: Any) -> dict[str, float]:
    """Call `poll`, and look at every record's value."""

    def poll(consumer: Any) -> Iterator[tuple[int, int]]:
        found = consumer.poll(POLL_MS)
        size = 0
        for record in found:
            size += len(record.value)
        yield len(found), size

    return _sparklog_drain(poll, bootstrap, topic, partitions, records, settings)


def _sparklog_drain(
    poll: Callable[[Any], Iterator[tuple[int, int]]],
    bootstrap: str,
    topic: str,
    partitions: int,
    records: int,
    settings: dict[str, Any],
) -> dict[str, float]:
    import sparklog

    begun = time.perf_counter()
    with sparklog.Consumer(bootstrap, **settings) as consumer:
        consumer.assign([sparklog.TopicPartition(topic, p) for p in range(partitions)])  # begins to fetch
        return _drain(lambda _: poll(consumer), records, begun)


def _drain(poll: Callable[[int], Iterable[tuple[int, int]]], records: int, begun: float) -> dict[str, float]:
    """Poll until `records` records came. `poll` gets the number that is left, and gives records and bytes of values."""
    left, size, heard = records, 0, time.perf_counter()
    while left > 0:
        for count, count_bytes in poll(left):
            left -= count
            size += count_bytes
            heard = time.perf_counter() if count else heard
        if left > 0 and time.perf_counter() > heard + IDLE_S_MAX:
            raise TimeoutError(f"{left} records did not come within {IDLE_S_MAX:.0f} s")
    return _rate(records - left, begun) | {"value_bytes": size}


def confluent_consume(bootstrap: str, topic: str, partitions: int, records: int, **settings: Any) -> dict[str, float]:
    """Call confluent-kafka's `consume`, and look at every record's value."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False, **settings})

    def poll(left: int) -> Iterator[tuple[int, int]]:
        found, size = consumer.consume(min(500, left), 1.0), 0
        for message in found:
            if message.error():
                raise RuntimeError(str(message.error()))
            size += len(message.value() or b"")
        yield len(found), size

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


def _values(payload: str, records: int) -> list[bytes]:
    return random.Random(2).choices(read_payloads(Path(payload)), k=records)


def _rate(records: int, begun: float) -> dict[str, float]:
    seconds = time.perf_counter() - begun
    return {"records": records, "seconds": seconds, "records_per_s": records / seconds}


_ALL: tuple[Callable[..., dict[str, float]], ...] = (
    raw_write,
    sparklog_send_batch,
    sparklog_send,
    confluent_send,
    sparklog_consume,
    sparklog_poll,
    confluent_consume,
    raw_receive,
    *gaps.PROGRAMS,
    *growth.PROGRAMS,
    *latency.PROGRAMS,
    *logins.PROGRAMS,
)
PROGRAMS = {program.__name__: program for program in _ALL}


if __name__ == "__main__":
    print(json.dumps(PROGRAMS[sys.argv[1]](**json.loads(sys.argv[2]))))
