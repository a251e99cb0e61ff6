"""End-to-end latency at a given rate, open loop: through the clients, and through a Spark query."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import numpy as np

from ..ceiling import FORMAT as CEILING
from ..ceiling import read_delays
from ..context import Context, environment, measured
from ..latency import VALUE_BYTES
from ..processes import Finished, MeasurementError, usage
from ..results import Measurement
from ..spark_child import PHASES
from .row import CONFLUENT, CONNECTOR, KAFKA, Row, at_most
from .spark import CEILING_SINK, PYTHON, connector, connector_sink, ours, ours_sink

SECONDS = 20
WARM_UP_SECONDS = 3
RECEIVE_TIMEOUT_S = 180.0
ROUND_TRIPS = 10_000
MANY_PARTITIONS = 1_000
ACKNOWLEDGED_RATE = 5_000
LINGER_MS = 5
MICRO_BATCH_RATE = 2_000
_SESSION = "local[2], conf/spark-defaults.conf, bytecode in Spark's archives, one session for both"
_LINGERS = "acks=all, linger.ms=5, the default of both"


def end_to_end(context: Context, *, rate: int, peer: bool, linger_ms: int = 0) -> Measurement:
    """Sender and receiver on one partition of a new topic."""
    server: Any = context.kafka if peer else context.broker
    with (context.kafka if peer else context).topic(1) as topic:
        return _measure(context, server, topic, topic, rate, "confluent" if peer else "sparklog", linger_ms)


def through_spark(context: Context, *, rate: int, peer: bool) -> Measurement:
    """A query copies one topic to another, with the default trigger."""
    server: Any = context.kafka if peer else context.broker
    topics: Any = context.kafka if peer else context
    with topics.topic(1) as source, topics.topic(1) as target:
        read = connector(context, source) if peer else ours(context, source, columns="key,value")
        sink = connector_sink(context, target) if peer else ours_sink(context, target)
        if peer:  # the connector's defaults are right for latency
            sink["options"] = {
                k: v for k, v in sink["options"].items() if k not in ("kafka.batch.size", "kafka.linger.ms")
            }
        client = "confluent" if peer else "sparklog"
        load = partial(_measure, context, server, source, target, rate, client, LINGER_MS)
        return _beside_query(context, read | {"select": ["key", "value"]}, sink, load)


def through_nothing(context: Context, *, rate: int) -> Measurement:
    """A query whose source makes as many rows of nothing and whose sink only notes how late they are, beside the
    sender of `through_spark`: what a source and a sink have to do comes on top. The value is the micro-batch's."""
    server = context.broker
    delays = context.scratch / f"delays-{uuid.uuid4().hex}"
    source = {"format": CEILING, "options": {"rate": str(rate), "ddl": "key binary, value binary"}}
    sink = CEILING_SINK | {"options": {"delays": str(delays)}}
    with context.topic(1) as topic:
        send = partial(_send, context, server, topic, rate, "sparklog", LINGER_MS)
        load = partial(measured, server.pid, send, lambda r: r["records"])
        found = _of_micro_batches(_beside_query(context, source, sink, load))
    if delays.exists():
        found.extra.update(_percentiles(read_delays(delays)))
        delays.unlink()
    return found


def _percentiles(delays: np.ndarray) -> dict[str, float]:
    """Not of the first rows, which warm up, nor of the last second's: some of them have not come. A run that is too
    short has none."""
    due_ns, delay_ns = delays[:, 0], delays[:, 1]
    warm_ns, end_ns = due_ns.min() + WARM_UP_SECONDS * 10**9, due_ns.max() - 10**9
    counted = delay_ns[(due_ns >= warm_ns) & (due_ns < end_ns)]
    if not len(counted):
        return {}
    p50, p99 = np.percentile(counted, (50, 99)) / 1e6
    return {"p50_ms": float(p50), "p99_ms": float(p99)}


def _beside_query(
    context: Context, source: dict[str, Any], sink: dict[str, Any], measure: Callable[[], Measurement]
) -> Measurement:
    """What is measured while the query runs, and what its micro-batches took."""
    context.spark.call("start_stream", source=source, sink=sink)
    try:
        found = measure()
    finally:
        stopped = context.spark.call("stop_stream")
    found.extra.update(stopped)
    return found


def trigger(measure: Callable[[Context], Measurement], context: Context) -> Measurement:
    """What a micro-batch took while `measure` ran."""
    return _of_micro_batches(measure(context))


def _of_micro_batches(found: Measurement) -> Measurement:
    """What a micro-batch and its phases took in the median, and nothing of the records that were sent meanwhile."""
    kept = {name: found.extra[name] for name in (*PHASES, "batches")}
    return msgspec.structs.replace(found, value=kept["trigger_ms"], extra=kept)


def round_trips(context: Context, *, peer: bool) -> Measurement:
    """One record after the other through one partition."""
    server: Any = context.kafka if peer else context.broker
    count = context.records(ROUND_TRIPS)
    with (context.kafka if peer else context).topic(1) as topic:
        if peer:
            return measured(
                server.pid, lambda: context.kafka.round_trips(topic, count, VALUE_BYTES), lambda r: r["average_ms"]
            )
        return measured(
            server.pid,
            lambda: context.client(
                "sparklog_round_trips",
                bootstrap=server.bootstrap_servers,
                topic=topic,
                count=count,
                value_bytes=VALUE_BYTES,
            ),
            lambda r: r["average_ms"],
        )


def acknowledged(context: Context, *, peer: bool) -> Measurement:
    """p99 until a record is acknowledged, spread over many partitions."""
    rate, seconds = ACKNOWLEDGED_RATE, max(2, round(SECONDS * context.scale)) + WARM_UP_SECONDS
    with (context.kafka if peer else context).topic(MANY_PARTITIONS) as topic:
        if peer:
            payload = context.payload(VALUE_BYTES)
            # the sticky partitioner of both stays with a partition for one batch; small ones are spread
            settings = {"acks": "all", "linger.ms": "0", "batch.size": str(16 * 1024)}
            return measured(
                context.kafka.pid,
                lambda: context.kafka.produce(topic, rate * seconds, payload, settings, rate=rate),
                lambda r: r["p99_ms"],
            )
        return measured(
            context.broker.pid,
            lambda: context.client(
                "sparklog_acknowledged",
                bootstrap=context.broker.bootstrap_servers,
                topic=topic,
                rate=rate,
                count=rate * seconds,
                skip=rate * WARM_UP_SECONDS,
                value_bytes=VALUE_BYTES,
            ),
            lambda r: r["p99_ms"],
        )


def _measure(
    context: Context, server: Any, source: str, target: str, rate: int, client: str, linger_ms: int = 0
) -> Measurement:
    count = _count(context, rate)
    os.sync()
    load = os.getloadavg()[0]
    arguments = {"bootstrap": server.bootstrap_servers, "topic": target, "count": count, "skip": WARM_UP_SECONDS * rate}
    command = [sys.executable, "-m", "tests.benchmarks.client", f"{client}_latency_receive", json.dumps(arguments)]
    before = usage(server.pid)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as receiver:
        try:
            assert receiver.stdout is not None
            receiver.stdout.readline()
            _, sent = _send(context, server, source, rate, client, linger_ms)
            out, errors = receiver.communicate(timeout=RECEIVE_TIMEOUT_S)
        except subprocess.TimeoutExpired as e:
            raise MeasurementError(f"the receiver was not done after {RECEIVE_TIMEOUT_S:.0f} s") from e
        finally:
            receiver.kill()
    if receiver.returncode:
        raise MeasurementError(f"the receiver failed: {errors[-1500:]}")
    result = json.loads(out.splitlines()[-1])
    after = usage(server.pid)
    return Measurement(
        value=result["p99_ms"],
        client_cpu_s=sent.cpu_s + result["receiver_cpu_s"],
        server_cpu_s=after.cpu_s - before.cpu_s,
        server_rss_bytes=after.rss_bytes,
        load_before=load,
        extra=result,
    )


def _count(context: Context, rate: int) -> int:
    """Records to send, those of the warm-up among them."""
    return (max(2, round(SECONDS * context.scale)) + WARM_UP_SECONDS) * rate


def _send(
    context: Context, server: Any, topic: str, rate: int, client: str, linger_ms: int
) -> tuple[dict[str, float], Finished]:
    return context.client(
        f"{client}_latency_send",
        bootstrap=server.bootstrap_servers,
        topic=topic,
        rate=rate,
        count=_count(context, rate),
        value_bytes=VALUE_BYTES,
        linger_ms=linger_ms,
    )


def _row(name: str, title: str, goal: float | None, measure: Any, rate: int, peer: str, **settings: str) -> Row:
    described = {
        "records": f"{rate:,} a second of {VALUE_BYTES} bytes for {SECONDS} s, after {WARM_UP_SECONDS} s of warm-up",
        "value": "p99 from the time a record was due to the time the receiver's poll returned it",
        "sender": "acks=all, linger.ms=0",
    }
    return Row(
        name,
        title,
        peer,
        "ms (p99)",
        at_most(goal) if goal else None,
        partial(measure, rate=rate, peer=False),
        partial(measure, rate=rate, peer=True),
        described | settings,
    )


ROWS = (
    Row(
        "latency-round-trip",
        "1 KiB sent, acknowledged and polled, one record after the other",
        KAFKA,
        "ms (mean)",
        at_most(0.5),
        partial(round_trips, peer=False),
        partial(round_trips, peer=True),
        {"records": f"{ROUND_TRIPS:,}, acks=all", "Kafka": "EndToEndLatency, whose percentiles are whole milliseconds"},
    ),
    Row(
        "partitions-1000-p99",
        "acknowledgement at 5,000 records/s of 1 KiB to 1,000 partitions",
        KAFKA,
        "ms (p99)",
        None,
        partial(acknowledged, peer=False),
        partial(acknowledged, peer=True),
        {"sparklog": "from when a record was due", "Kafka": "kafka-producer-perf-test, from when it was sent"},
    ),
    _row("latency-1k", "end to end, 1 KiB at 1,000 records/s", 0.5, end_to_end, 1_000, CONFLUENT),
    _row("latency-20k", "end to end, 1 KiB at 20,000 records/s", None, end_to_end, 20_000, CONFLUENT),
    _row(
        "latency-20k-linger",
        "end to end, 1 KiB at 20,000 records/s, linger.ms=5",
        None,
        partial(end_to_end, linger_ms=LINGER_MS),
        20_000,
        CONFLUENT,
        sender=_LINGERS,
    ),
)
SPARK_ROWS = (
    _row(
        "spark-latency",
        "Spark micro-batches, source → sink, at 2,000 records/s",
        1.0,
        through_spark,
        MICRO_BATCH_RATE,
        CONNECTOR,
        sender=_LINGERS,
        trigger="default",
        source="key and value (sparklog: columns=key,value)",
        Spark=_SESSION,
    ),
    Row(
        "spark-latency-ceiling",
        "Spark micro-batches at 2,000 records/s, against a Python source and sink that do nothing",
        PYTHON,
        "ms (micro-batch)",
        None,
        partial(trigger, partial(through_spark, rate=MICRO_BATCH_RATE, peer=False)),
        partial(trigger, partial(through_nothing, rate=MICRO_BATCH_RATE)),
        {
            "records": f"as in spark-latency, which are sent beside the {PYTHON.removesuffix(' ceiling')}, too",
            "value": "median time of the last hundred triggers that had rows",
            "Spark": _SESSION,
        },
    ),
)
