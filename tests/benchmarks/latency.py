"""Open-loop latency: a sender that keeps to its schedule, a receiver that counts from when a record was due.

A record carries the time it was due and its number. When the sender or the server stalls, the records that were due
meanwhile are sent late, and their wait counts: nothing is left out because nothing could be sent (coordinated
omission). Sender and receiver are processes of their own; both read the machine's one clock.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Any

VALUE_BYTES = 1024
LEAD_NS = 200_000_000
IDLE_S_MAX = 60.0
_HEAD_BYTES = 16
_MAX_US = 600_000_000


def open_loop(send: Callable[[bytes], None], rate: float, count: int, value_bytes: int) -> None:
    """Calls `send` with `count` values, `rate` per second; a late one goes at once and keeps its due time."""
    padding = bytes(value_bytes - _HEAD_BYTES)
    start, interval = time.time_ns() + LEAD_NS, 1e9 / rate
    for i in range(count):
        due = start + int(i * interval)
        while (early := due - time.time_ns()) > 0:
            time.sleep(early / 1e9)
        send(due.to_bytes(8, "little") + i.to_bytes(8, "little") + padding)


class Recorder:
    """Collects latencies of numbered records in an HdrHistogram; the first `skip` records warm up."""

    def __init__(self, count: int, skip: int) -> None:
        from hdrh.histogram import HdrHistogram

        self._histogram = HdrHistogram(1, _MAX_US, 3)
        self._count, self._skip = count, skip
        self.last = -1
        self.received = 0

    @property
    def done(self) -> bool:
        return self.last >= self._count - 1

    def record(self, value: bytes, now_ns: int) -> None:
        number = int.from_bytes(value[8:16], "little")
        self.last = max(self.last, number)
        self.received += 1
        if number >= self._skip:
            self._histogram.record_value(max(1, (now_ns - int.from_bytes(value[:8], "little")) // 1000))

    def result(self) -> dict[str, float]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "p50_ms": self._histogram.get_value_at_percentile(50) / 1000,
            "p99_ms": self._histogram.get_value_at_percentile(99) / 1000,
            "p999_ms": self._histogram.get_value_at_percentile(99.9) / 1000,
            "max_ms": self._histogram.get_max_value() / 1000,
            "records": self.received,
            "receiver_cpu_s": used.ru_utime + used.ru_stime,
        }


def sparklog_latency_send(
    bootstrap: str, topic: str, rate: float, count: int, value_bytes: int, linger_ms: int = 0
) -> dict[str, float]:
    import sparklog

    with sparklog.Producer(bootstrap, acks="all", linger_ms=linger_ms) as producer:
        open_loop(lambda value: _ignore(producer.send(topic, value)), rate, count, value_bytes)
        producer.flush()
    return {"records": count}


def sparklog_latency_receive(bootstrap: str, topic: str, count: int, skip: int) -> dict[str, float]:
    import sparklog

    recorder = Recorder(count, skip)
    with sparklog.Consumer(bootstrap) as consumer:
        consumer.assign([sparklog.TopicPartition(topic, 0)])
        print("ready", flush=True)
        heard = time.monotonic()
        while not recorder.done:
            records = consumer.poll(1000)
            now = time.time_ns()
            for record in records:
                recorder.record(_bytes(record.value), now)
            heard = time.monotonic() if records else _still_patient(heard, recorder)
    return recorder.result()


def sparklog_acknowledged(
    bootstrap: str, topic: str, rate: float, count: int, skip: int, value_bytes: int, linger_ms: int = 0
) -> dict[str, float]:
    """Until the broker has acknowledged a record, from when it was due."""
    import sparklog

    recorder = Recorder(count, skip)
    with sparklog.Producer(bootstrap, acks="all", linger_ms=linger_ms) as producer:

        def send(value: bytes) -> None:
            producer.send(topic, value).add_done_callback(lambda _: recorder.record(value, time.time_ns()))

        open_loop(send, rate, count, value_bytes)
        producer.flush()
    return recorder.result()


def sparklog_round_trips(bootstrap: str, topic: str, count: int, value_bytes: int) -> dict[str, float]:
    """One record after the other, as Kafka's EndToEndLatency does it: sent, acknowledged, polled."""
    import sparklog

    recorder = Recorder(count, min(count // 10, 1000))
    padding = bytes(value_bytes - _HEAD_BYTES)
    total_ns = 0
    with sparklog.Producer(bootstrap, acks="all", linger_ms=0) as producer, sparklog.Consumer(bootstrap) as consumer:
        consumer.assign([sparklog.TopicPartition(topic, 0)])
        for i in range(count):
            begun = time.time_ns()
            value = begun.to_bytes(8, "little") + i.to_bytes(8, "little") + padding
            producer.send(topic, value).result(IDLE_S_MAX)
            heard = time.monotonic()
            while not (records := consumer.poll(1000)):
                _still_patient(heard, recorder)
            now = time.time_ns()
            total_ns += now - begun
            recorder.record(_bytes(records[0].value), now)
    return recorder.result() | {"average_ms": total_ns / count / 1e6}


def confluent_latency_send(
    bootstrap: str, topic: str, rate: float, count: int, value_bytes: int, linger_ms: int = 0
) -> dict[str, float]:
    from confluent_kafka import Producer

    producer = Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": linger_ms, "socket.nagle.disable": True}
    )

    def send(value: bytes) -> None:
        producer.produce(topic, value)
        producer.poll(0)

    open_loop(send, rate, count, value_bytes)
    if producer.flush(60):
        raise RuntimeError("not everything was acknowledged within 60 s")
    return {"records": count}


def confluent_latency_receive(bootstrap: str, topic: str, count: int, skip: int) -> dict[str, float]:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    recorder = Recorder(count, skip)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "socket.nagle.disable": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    consumer.poll(1.0)
    print("ready", flush=True)
    heard = time.monotonic()
    while not recorder.done:
        message = consumer.poll(1.0)
        if message is None:
            heard = _still_patient(heard, recorder)
            continue
        if message.error():
            raise RuntimeError(str(message.error()))
        recorder.record(_bytes(message.value()), time.time_ns())
        heard = time.monotonic()
    consumer.close()
    return recorder.result()


def _still_patient(heard: float, recorder: Recorder) -> float:
    if time.monotonic() > heard + IDLE_S_MAX:
        raise TimeoutError(f"nothing came for {IDLE_S_MAX:.0f} s after {recorder.received} records")
    return heard


def _bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError(f"a record with the value {value!r} came, which nobody sent")
    return value


def _ignore(_: Any) -> None:
    """The future's failure is raised by the producer's flush."""


PROGRAMS: tuple[Callable[..., dict[str, float]], ...] = (
    sparklog_latency_send,
    sparklog_latency_receive,
    sparklog_acknowledged,
    sparklog_round_trips,
    confluent_latency_send,
    confluent_latency_receive,
)
