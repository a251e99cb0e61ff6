"""Open-loop latency: a sender that keeps to its schedule, a receiver that counts from the time a record was due.

A record carries its due time and its number. When the sender or the server stalls, the sender sends the records that
were due meanwhile late, and their wait counts (no coordinated omission). Sender and receiver are processes of their
own; both read the machine's one clock.
"""

from __future__ import annotations

import itertools
import resource
import time
from collections.abc import Callable
from typing import Any

VALUE_BYTES = 1024
LEAD_NS = 200_000_000
IDLE_S_MAX = 60.0
_HEAD_BYTES = 16
_MAX_US = 600_000_000
GAP_WARM_UP_S, GAP_EVERY_S = 2.0, 0.005


def stamped(due_ns: int, number: int, value_bytes: int) -> bytes:
    """A value with its due time and number."""
    return due_ns.to_bytes(8, "little") + number.to_bytes(8, "little") + bytes(value_bytes - _HEAD_BYTES)


def open_loop(send: Callable[[bytes], object], rate: float, count: int, value_bytes: int) -> None:
    """Call `send` with `count` values, `rate` per second; a late one goes at once and keeps its due time."""
    start, interval = time.time_ns() + LEAD_NS, 1e9 / rate
    for i in range(count):
        due = start + int(i * interval)
        while (early := due - time.time_ns()) > 0:
            time.sleep(early / 1e9)
        send(stamped(due, i, value_bytes))


class Recorder:
    """Collects latencies of numbered records in an HdrHistogram; the first `skip` records warm up."""

    def __init__(self, count: int, skip: int) -> None:
        from hdrh.histogram import HdrHistogram

        self._histogram = HdrHistogram(1, _MAX_US, 3)
        self._count, self._skip = count, skip
        self._heard = time.monotonic()
        self.last = -1
        self.received = 0

    @property
    def done(self) -> bool:
        """True after the last record. Raises TimeoutError if no record came for IDLE_S_MAX."""
        if self.last >= self._count - 1:
            return True
        if time.monotonic() > self._heard + IDLE_S_MAX:
            raise TimeoutError(f"no record came for {IDLE_S_MAX:.0f} s after {self.received} records")
        return False

    def record(self, value: object, now_ns: int) -> None:
        """Count a record. Raises TypeError for a value that no sender of this module sent."""
        if not isinstance(value, bytes):
            raise TypeError(f"a record with the value {value!r} came, which no sender sent")
        number = int.from_bytes(value[8:16], "little")
        self.last = max(self.last, number)
        self.received += 1
        self._heard = time.monotonic()
        if number >= self._skip:
            self._histogram.record_value(max(1, (now_ns - int.from_bytes(value[:8], "little")) // 1000))

    def result(self) -> dict[str, float]:
        """Percentiles in ms."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        percentiles = {"p50_ms": 50, "p99_ms": 99, "p999_ms": 99.9}
        return {
            **{name: self._histogram.get_value_at_percentile(p) / 1000 for name, p in percentiles.items()},
            "max_ms": self._histogram.get_max_value() / 1000,
            "records": self.received,
            "receiver_cpu_s": used.ru_utime + used.ru_stime,
        }


def sparklog_latency_send(
    bootstrap: str, topic: str, rate: float, count: int, value_bytes: int, linger_ms: int = 0
) -> dict[str, float]:
    """Send on schedule."""
    import sparklog

    with sparklog.Producer(bootstrap, acks="all", linger_ms=linger_ms) as producer:
        # flush raises the failure of a record's future
        open_loop(lambda value: producer.send(topic, value), rate, count, value_bytes)
        producer.flush()
    return {"records": count}


def sparklog_latency_receive(bootstrap: str, topic: str, count: int, skip: int) -> dict[str, float]:
    """Receive until the last record."""
    import sparklog

    with sparklog.Consumer(bootstrap) as consumer:
        consumer.assign([sparklog.TopicPartition(topic, 0)])
        print("running", flush=True)
        recorder = Recorder(count, skip)
        while not recorder.done:
            records = consumer.poll(1000)
            now = time.time_ns()
            for record in records:
                recorder.record(record.value, now)
    return recorder.result()


def sparklog_acknowledged(
    bootstrap: str, topic: str, rate: float, count: int, skip: int, value_bytes: int
) -> dict[str, float]:
    """Send on schedule, and count until the broker has acknowledged a record."""
    import sparklog

    recorder = Recorder(count, skip)
    with sparklog.Producer(bootstrap, acks="all", linger_ms=0) as producer:

        def send(value: bytes) -> None:
            producer.send(topic, value).add_done_callback(lambda _: recorder.record(value, time.time_ns()))

        open_loop(send, rate, count, value_bytes)
        producer.flush()
    return recorder.result()


def sparklog_round_trips(bootstrap: str, topic: str, count: int, value_bytes: int) -> dict[str, float]:
    """Send one record after the other, each acknowledged and polled, as Kafka's EndToEndLatency does."""
    import sparklog

    recorder = Recorder(count, min(count // 10, 1000))
    total_ns = 0
    with sparklog.Producer(bootstrap, acks="all", linger_ms=0) as producer, sparklog.Consumer(bootstrap) as consumer:
        consumer.assign([sparklog.TopicPartition(topic, 0)])
        for i in range(count):
            begun = time.time_ns()
            producer.send(topic, stamped(begun, i, value_bytes)).result(IDLE_S_MAX)
            while not (records := consumer.poll(1000)) and not recorder.done:
                pass
            now = time.time_ns()
            total_ns += now - begun
            recorder.record(records[0].value, now)
    return recorder.result() | {"average_ms": total_ns / count / 1e6}


def _confluent(bootstrap: str, **settings: Any) -> dict[str, Any]:
    return {"bootstrap.servers": bootstrap, "socket.nagle.disable": True, **settings}


def confluent_latency_send(
    bootstrap: str, topic: str, rate: float, count: int, value_bytes: int, linger_ms: int = 0
) -> dict[str, float]:
    """Send on schedule with confluent-kafka."""
    from confluent_kafka import Producer

    producer = Producer(_confluent(bootstrap, acks="all", **{"linger.ms": linger_ms}))

    def send(value: bytes) -> None:
        producer.produce(topic, value)
        producer.poll(0)

    open_loop(send, rate, count, value_bytes)
    if producer.flush(60):
        raise RuntimeError("not all records were acknowledged within 60 s")
    return {"records": count}


def confluent_latency_receive(bootstrap: str, topic: str, count: int, skip: int) -> dict[str, float]:
    """Receive until the last record with confluent-kafka."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(_confluent(bootstrap, **{"group.id": "bench", "enable.auto.commit": False}))
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    consumer.poll(1.0)
    print("running", flush=True)
    recorder = Recorder(count, skip)
    while not recorder.done:
        message = consumer.poll(1.0)
        if message is not None and message.error():
            raise RuntimeError(str(message.error()))
        if message is not None:
            recorder.record(message.value(), time.time_ns())
    consumer.close()
    return recorder.result()


# -- the longest time without an acknowledgement, while the parent ends a broker


def _longest(
    send: Callable[[], object], flush: Callable[[], object], times: list[float], seconds: float
) -> dict[str, float]:
    """Send a record every few milliseconds for `seconds`; `times` gets the time of each acknowledgement. Prints
    `running` when acknowledgements flow."""
    begun = time.monotonic()
    is_running = False
    while (now := time.monotonic()) < begun + seconds:
        send()
        if not is_running and times and now > begun + GAP_WARM_UP_S:
            is_running = True
            times.clear()
            print("running", flush=True)
        time.sleep(GAP_EVERY_S)
    flush()
    gaps = [after - before for before, after in itertools.pairwise(sorted(times))]
    return {"records": len(times), "gap_s": max(gaps, default=0.0)}


def sparklog_gaps(bootstrap: str, topic: str, seconds: float) -> dict[str, float]:
    """Measure with sparklog's producer."""
    import sparklog

    times: list[float] = []
    with sparklog.Producer(bootstrap, acks="all", linger_ms=0) as producer:

        def send() -> None:
            producer.send(topic, bytes(100)).add_done_callback(lambda _: times.append(time.monotonic()))

        return _longest(send, producer.flush, times, seconds)


def confluent_gaps(bootstrap: str, topic: str, seconds: float) -> dict[str, float]:
    """Measure with confluent-kafka's producer."""
    from confluent_kafka import Producer

    times: list[float] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "log_level": 2})

    def send() -> None:
        producer.produce(
            topic, bytes(100), on_delivery=lambda error, _: None if error else times.append(time.monotonic())
        )
        producer.poll(0)

    return _longest(send, lambda: producer.flush(IDLE_S_MAX), times, seconds)
