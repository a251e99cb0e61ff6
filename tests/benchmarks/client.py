"""One measurement in a process of its own: `python -m tests.benchmarks.client NAME '{"argument": …}'`.

Prints its result as one line of JSON. Being a process of its own, its processor time and memory are the client's alone.
Only what a user's program does is timed: payloads are read and chosen before.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import gaps, growth, latency, logins
from .payloads import read_payloads

POLL_MS = 1000
IDLE_S_MAX = 30.0
BATCHES_PREPARED = 64
"""Different inputs to `send_batch`, used in turn: enough that nothing stays in the processor's caches."""


def sparklog_send_batch(
    bootstrap: str, topic: str, records: int, payload: str, batch_records: int, columnar: bool, **settings: Any
) -> dict[str, float]:
    """`send_batch` of lists of bytes, or of Arrow tables (`columnar`), until everything is acknowledged."""
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


def raw_write(directory: str, bytes: int, files: int) -> dict[str, float]:
    """Writes `bytes` in MiB to `files` new files in turn, which are removed afterwards."""
    block = os.urandom(1024 * 1024)
    Path(directory).mkdir()
    descriptors = [os.open(Path(directory, str(i)), os.O_RDWR | os.O_CREAT) for i in range(files)]
    begun = time.perf_counter()
    for i in range(bytes // len(block)):
        os.write(descriptors[i % files], block)
    seconds = time.perf_counter() - begun
    for descriptor in descriptors:
        os.close(descriptor)
    shutil.rmtree(directory)
    return {"seconds": seconds}


def sparklog_send(bootstrap: str, topic: str, records: int, payload: str, **settings: Any) -> dict[str, float]:
    """`send`, one record at a time."""
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
    """confluent-kafka's `produce`, one record at a time; waits when its queue is full, as its manual says."""
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
    """`poll_batches` from the beginning, counting records and the bytes of their values."""
    left, size = records, 0
    begun = heard = time.perf_counter()  # assign begins to fetch
    with _assigned(bootstrap, topic, partitions, settings) as consumer:
        while left > 0:
            for batch in consumer.poll_batches(POLL_MS):
                left -= batch.num_rows
                size += batch.data.column("value").total_values_length
                heard = time.perf_counter()
            _check_progress(heard, left)
        return _rate(records - left, begun) | {"value_bytes": size}


def sparklog_poll(bootstrap: str, topic: str, partitions: int, records: int, **settings: Any) -> dict[str, float]:
    """`poll`, looking at every record's value."""
    left, size = records, 0
    begun = heard = time.perf_counter()  # assign begins to fetch
    with _assigned(bootstrap, topic, partitions, settings) as consumer:
        while left > 0:
            found = consumer.poll(POLL_MS)
            for record in found:
                size += len(record.value)
            left -= len(found)
            heard = time.perf_counter() if found else heard
            _check_progress(heard, left)
        return _rate(records - left, begun) | {"value_bytes": size}


def confluent_consume(bootstrap: str, topic: str, partitions: int, records: int, **settings: Any) -> dict[str, float]:
    """confluent-kafka's `consume`, looking at every record's value."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False, **settings})
    left, size = records, 0
    begun = heard = time.perf_counter()
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(partitions)])
    while left > 0:
        found = consumer.consume(min(500, left), 1.0)
        for message in found:
            if message.error():
                raise RuntimeError(str(message.error()))
            size += len(message.value() or b"")
        left -= len(found)
        heard = time.perf_counter() if found else heard
        _check_progress(heard, left)
    result = _rate(records - left, begun) | {"value_bytes": size}
    consumer.close()
    return result


def raw_receive(port: int, total_bytes: int, chunk_bytes: int) -> dict[str, float]:
    """Asks a plain `sendfile` loop for chunk after chunk and throws them away: what loopback itself can do."""
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
    return {"bytes_per_s": total_bytes // chunk_bytes * chunk_bytes / seconds, "seconds": seconds}


def _assigned(bootstrap: str, topic: str, partitions: int, settings: dict[str, Any]) -> Any:
    import sparklog

    consumer = sparklog.Consumer(bootstrap, **settings)
    consumer.assign([sparklog.TopicPartition(topic, p) for p in range(partitions)])
    return consumer


def _values(payload: str, records: int) -> list[bytes]:
    return random.Random(2).choices(read_payloads(Path(payload)), k=records)


def _check_progress(heard: float, left: int) -> None:
    if left > 0 and time.perf_counter() > heard + IDLE_S_MAX:
        raise TimeoutError(f"{left} records did not come within {IDLE_S_MAX:.0f} s")


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
