"""How long nothing is acknowledged: a record every few milliseconds, each acknowledged by all in-sync replicas.

The programs print `running` when acknowledgements flow, so that who has started them knows when to break something.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

WARM_UP_S = 2.0
EVERY_S = 0.005
VALUE = bytes(100)
FLUSH_S = 60.0


def _loop(send: Callable[[], None], times: list[float], seconds: float, poll: Callable[[], object]) -> None:
    begun = time.monotonic()
    is_told = False
    while (now := time.monotonic()) < begun + seconds:
        send()
        poll()
        if not is_told and times and now > begun + WARM_UP_S:
            is_told = True
            times.clear()
            print("running", flush=True)
        time.sleep(EVERY_S)


def _result(times: list[float]) -> dict[str, float]:
    """The longest time between two acknowledgements."""
    ordered = sorted(times)
    gaps = [after - before for before, after in itertools.pairwise(ordered)]
    return {"records": len(times), "gap_s": max(gaps, default=0.0)}


def sparklog_gaps(bootstrap: str, topic: str, seconds: float) -> dict[str, float]:
    import sparklog

    times: list[float] = []
    with sparklog.Producer(bootstrap, acks="all", linger_ms=0) as producer:

        def send() -> None:
            producer.send(topic, VALUE).add_done_callback(lambda _: times.append(time.monotonic()))

        _loop(send, times, seconds, lambda: None)
        producer.flush()
    return _result(times)


def confluent_gaps(bootstrap: str, topic: str, seconds: float) -> dict[str, float]:
    from confluent_kafka import Producer

    times: list[float] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "log_level": 2})

    def send() -> None:
        producer.produce(topic, VALUE, on_delivery=lambda error, _: None if error else times.append(time.monotonic()))

    _loop(send, times, seconds, lambda: producer.poll(0))
    producer.flush(FLUSH_S)
    return _result(times)


PROGRAMS: tuple[Callable[..., dict[str, float]], ...] = (sparklog_gaps, confluent_gaps)
