"""End-to-end latency at a given rate, open loop: through the clients, and through a Spark query."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from tests.support.processes import Finished

from ..ceiling import FORMAT as CEILING
from ..context import SINGLE, Context, measured, started_client
from ..latency import VALUE_BYTES
from ..results import Measurement
from ..spark_child import PHASES
from .row import CONFLUENT, CONNECTOR, Row, row
from .spark import CEILING_SINK, KAFKA, PYTHON, SPARKLOG, sink_of, source_of

SECONDS = 20
WARM_UP_SECONDS = 3
RECEIVE_TIMEOUT_S = 180.0
ROUND_TRIPS = 10_000
LINGER_MS = 5
MICRO_BATCH_RATE = 2_000
CLIENTS = {False: "sparklog", True: "confluent"}
_SESSION = "local[2], conf/spark-defaults.conf, bytecode in Spark's archives, one session for both"


def end_to_end(context: Context, *, rate: int, peer: bool, linger_ms: int = 0) -> Measurement:
    """Measure a sender and a receiver on one partition of a new topic."""
    with context.server(peer).topic(1) as topic:
        return send_and_receive(context, context.server(peer), CLIENTS[peer], topic, topic, rate, linger_ms)


def through_spark(context: Context, *, rate: int, peer: bool) -> Measurement:
    """Measure a query that copies one topic to another, with the default trigger."""
    server = context.server(peer)
    with server.topic(1) as source, server.topic(1) as target:
        system, options = (KAFKA, {}) if peer else (SPARKLOG, {"columns": "key,value"})
        read = source_of(context, system, source, **options)
        sink = sink_of(context, system, target, large_batches=False)  # the connector's defaults are right for latency
        load = partial(send_and_receive, context, server, CLIENTS[peer], source, target, rate, LINGER_MS)
        return beside_query(context, read | {"select": ["key", "value"]}, sink, load)


def through_nothing(context: Context, *, rate: int) -> Measurement:
    """Measure a query whose source makes rows of nothing when they are due and whose sink drops them, beside the sender
    of `through_spark`: the work of a real source and sink comes on top of these figures."""
    source = {"format": CEILING, "options": {"rate": str(rate), "ddl": "key binary, value binary"}}
    server = context.sparklog()
    with server.topic(1) as topic:
        count = _count(context, rate, WARM_UP_SECONDS)
        send = partial(_send, context, server, CLIENTS[False], topic, rate, count, LINGER_MS)
        return beside_query(context, source, CEILING_SINK, partial(measured, server.pids, send, "records"))


def beside_query(
    context: Context, source: dict[str, Any], sink: dict[str, Any], measure: Callable[[], Measurement]
) -> Measurement:
    """Measure while a query runs, and add the phases of its micro-batches."""
    context.spark.call("start_stream", source=source, sink=sink)
    try:
        found = measure()
    finally:
        stopped = context.spark.call("stop_stream")
    found.extra.update(stopped)
    return found


def micro_batches(context: Context, *, peer: bool) -> Measurement:
    """Measure the median micro-batch of sparklog's source and sink, or of those that do nothing."""
    measure = through_nothing if peer else partial(through_spark, peer=False)
    found = measure(context, rate=MICRO_BATCH_RATE)
    kept = {name: found.extra[name] for name in (*PHASES, "batches")}
    return msgspec.structs.replace(found, value=kept["trigger_ms"], extra=kept)


def round_trips(context: Context, *, peer: bool) -> Measurement:
    """Measure one record after the other through one partition."""
    server, count = context.server(peer), context.records(ROUND_TRIPS)
    with server.topic(1) as topic:
        if peer:
            return measured(server.pids, lambda: server.round_trips(topic, count, VALUE_BYTES), "average_ms")
        return context.measured_client(
            server, "average_ms", "sparklog_round_trips", topic=topic, count=count, value_bytes=VALUE_BYTES
        )


def acknowledged(
    context: Context, *, peer: bool, rate: int, partitions: int, where: str = SINGLE, batch_bytes: int | None = None
) -> Measurement:
    """Measure the p99 of an acknowledgement, with records spread over the partitions.

    Args:
        batch_bytes: Kafka's batch.size. The sticky partitioner of both systems stays with a partition for one batch, so
            that small batches are spread.
    """
    server = context.server(peer, where)
    count = _count(context, rate, WARM_UP_SECONDS)
    with server.topic(partitions) as topic:
        if peer:
            settings = {"acks": "all", "linger.ms": "0"}
            if batch_bytes is not None:
                settings["batch.size"] = str(batch_bytes)
            payload = context.payload(VALUE_BYTES)
            return measured(server.pids, lambda: server.produce(topic, count, payload, settings, rate=rate), "p99_ms")
        return context.measured_client(
            server,
            "p99_ms",
            "sparklog_acknowledged",
            topic=topic,
            rate=rate,
            count=count,
            skip=rate * WARM_UP_SECONDS,
            value_bytes=VALUE_BYTES,
        )


def send_and_receive(
    context: Context,
    server: Any,
    client: str,
    source: str,
    target: str,
    rate: int,
    linger_ms: int,
    warm_up_s: int = WARM_UP_SECONDS,
) -> Measurement:
    """Send records to one topic on schedule, and receive them from the same or another topic."""
    count, program = _count(context, rate, warm_up_s), f"{client}_latency_receive"
    arguments = {"bootstrap": server.bootstrap_servers, "topic": target, "count": count}

    def run() -> tuple[dict[str, float], Finished]:
        with started_client(program, RECEIVE_TIMEOUT_S, **arguments, skip=warm_up_s * rate) as received:
            _, sent = _send(context, server, client, source, rate, count, linger_ms)
            result = received()
        return result, Finished("", sent.cpu_s + result["receiver_cpu_s"], 0)

    return msgspec.structs.replace(measured(server.pids, run, "p99_ms"), client_rss_bytes=None)


def _count(context: Context, rate: int, warm_up_s: int) -> int:
    """Records to send, with those of the warm-up."""
    return (max(2, round(SECONDS * context.scale)) + warm_up_s) * rate


def _send(
    context: Context, server: Any, client: str, topic: str, rate: int, count: int, linger_ms: int
) -> tuple[dict[str, float], Finished]:
    return context.client(
        f"{client}_latency_send",
        bootstrap=server.bootstrap_servers,
        topic=topic,
        rate=rate,
        count=count,
        value_bytes=VALUE_BYTES,
        linger_ms=linger_ms,
    )


def _row(
    name: str, title: str, goal: float | None, measure: Any, rate: int, *, peer: str = CONFLUENT, **settings: str
) -> Row:
    described = {
        "records": f"{rate:,} a second of {VALUE_BYTES} bytes for {SECONDS} s, after {WARM_UP_SECONDS} s of warm-up",
        "value": "p99 from the time a record was due to the time the receiver's poll returned it",
        "sender": "acks=all, linger.ms=0",
    }
    return row(name, title, goal, partial(measure, rate=rate), unit="ms (p99)", peer=peer, **(described | settings))


_END = "end to end, 1 KiB at"
_WITH_LINGER = {"sender": "acks=all, linger.ms=5, the default of both"}

ROWS = (
    row(
        "latency-round-trip", "1 KiB sent, acknowledged and polled, one record after the other", 0.5, round_trips,
        unit="ms (mean)", records=f"{ROUND_TRIPS:,}, acks=all",
        Kafka="EndToEndLatency, whose percentiles are whole milliseconds",
    ),
    row(
        "partitions-1000-p99", "acknowledgement at 5,000 records/s of 1 KiB to 1,000 partitions", None,
        partial(acknowledged, rate=5_000, partitions=1_000, batch_bytes=16 * 1024), unit="ms (p99)",
        sparklog="from when a record was due", Kafka="kafka-producer-perf-test, from when it was sent",
    ),
    _row("latency-1k", f"{_END} 1,000 records/s", 0.5, end_to_end, 1_000),
    _row("latency-20k", f"{_END} 20,000 records/s", None, end_to_end, 20_000),
    _row(
        "latency-20k-linger", f"{_END} 20,000 records/s, linger.ms=5", None, partial(end_to_end, linger_ms=LINGER_MS),
        20_000, **_WITH_LINGER,
    ),
)  # fmt: skip
SPARK_ROWS = (
    _row(
        "spark-latency", "Spark micro-batches, source → sink, at 2,000 records/s", 1.0, through_spark, MICRO_BATCH_RATE,
        peer=CONNECTOR, trigger="default", source="key and value (sparklog: columns=key,value)", Spark=_SESSION,
        **_WITH_LINGER,
    ),
    row(
        "spark-latency-ceiling", "Spark micro-batches at 2,000 records/s, against a Python source and sink that do nothing", None,
        micro_batches, unit="ms (micro-batch)", peer=PYTHON,
        records=f"as in spark-latency, which are sent beside the {PYTHON.removesuffix(' ceiling')}, too",
        value="median time of the last hundred triggers that had rows", Spark=_SESSION,
    ),
)  # fmt: skip
