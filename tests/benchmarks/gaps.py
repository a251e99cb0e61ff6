"""The longest time without an acknowledgement: a record every few milliseconds, acknowledged by all in-sync replicas.

The programs print `running` when acknowledgements flow: the parent then ends a broker.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

WARM_UP_S = 2.0
EVERY_S = 0.005
VALUE = bytes(100)
FLUSH_S = 60.0


def _longest(
    send: Callable[[], object], flush: Callable[[], object], times: list[float], seconds: float
) -> dict[str, float]:
    """Send for `seconds`; `times` gets the time of each acknowledgement."""
    begun = time.monotonic()
    is_running = False
    while (now := time.monotonic()) < begun + seconds:
        send()
        if not is_running and times and now > begun + WARM_UP_S:
            is_running = True
            times.clear()
            print("running", flush=True)
        time.sleep(EVERY_S)
    flush()
    gaps = [after - before for before, after in itertools.pairwise(sorted(times))]
    return {"records": len(times), "gap_s": max(gaps, default=0.0)}


def sparklog_gaps(bootstrap: str, topic: str, seconds: float) -> dict[str, float]:
    """Measure with sparklog's producer."""
    import sparklog

    times: list[float] = []
    with sparklog.Producer(bootstrap, acks="all", linger_ms=0) as producer:

        def send() -> None:
            producer.send(topic, VALUE).add_done_callback(lambda _: times.append(time.monotonic()))

        return _longest(send, producer.flush, times, seconds)


def confluent_gaps(bootstrap: str, topic: str, seconds: float) -> dict[str, float]:
    """Measure with confluent-kafka's producer."""
    from confluent_kafka import Producer

    times: list[float] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "log_level": 2})

    def send() -> None:
        producer.produce(topic, VALUE, on_delivery=lambda error, _: None if error else times.append(time.monotonic()))
        producer.poll(0)

    return _longest(send, lambda: producer.flush(FLUSH_S), times, seconds)


PROGRAMS: tuple[Callable[..., dict[str, float]], ...] = (sparklog_gaps, confluent_gaps)
