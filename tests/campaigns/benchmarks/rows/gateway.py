"""The Kafka gateway: librdkafka and Kafka's own tools against it, beside the same clients against Kafka."""

from __future__ import annotations

from functools import partial
from typing import Any

import psutil

import sparklog
from tests.support.kafka import KafkaServer
from tests.support.processes import MeasurementError

from ..context import SETTINGS, Context, measured
from ..results import Measurement
from ..servers import SparklogServer
from .latency import beside_query, send_and_receive
from .produce import CONFLUENT_SETTINGS, PARTITIONS
from .row import Row, row

RECORDS = {100: 2_000_000, 1024: 500_000}
"""Records of a run, by the size of a value."""
ACKNOWLEDGED_RATE = 1_000
ACKNOWLEDGED_SECONDS = 30
REAL_TIME_RATE = 500
REAL_TIME_WARM_UP_S = 15
_FETCH: dict[str, Any] = {"max.partition.fetch.bytes": 10 * 1024 * 1024}


class GatewayServer(SparklogServer):
    """A broker with a gateway. Clients are given the gateway's address; the cost of both processes counts."""

    def __init__(self, local: Any) -> None:
        super().__init__(local)
        self.bootstrap_servers = local.kafka_bootstrap_servers

    @property
    def pids(self) -> list[int]:
        """Process ids of the broker and of its gateway."""
        (broker,) = super().pids
        return [broker, *(child.pid for child in psutil.Process(broker).children())]

    def admin(self, bootstrap_servers: str | None = None) -> sparklog.Admin:
        """An admin client of the broker itself."""
        return super().admin(bootstrap_servers or self.local.bootstrap_servers)


def server_of(context: Context, peer: bool) -> Any:
    """A broker with a gateway, or Kafka."""
    if peer:
        return context.kafka()

    def make() -> GatewayServer:
        return GatewayServer(sparklog.start_local(context.directory("gateway"), settings=SETTINGS, kafka=True))

    return context.once("sparklog gateway", make, GatewayServer.stop)


def produce(context: Context, *, peer: bool, value_bytes: int, compression: str = "none") -> Measurement:
    """Measure confluent-kafka's `produce`."""
    server, count = server_of(context, peer), context.records(RECORDS[value_bytes])
    with server.topic(PARTITIONS) as topic:
        return context.measured_client(
            server,
            "records_per_s",
            "confluent_send",
            lambda: server.topic_bytes(topic) / count,
            topic=topic,
            records=count,
            payload=str(context.payload(value_bytes)),
            **CONFLUENT_SETTINGS | {"compression.type": compression},
        )


def consume(context: Context, *, peer: bool, value_bytes: int) -> Measurement:
    """Measure confluent-kafka's `consume` on a topic that it has filled."""
    server, count = server_of(context, peer), context.records(RECORDS[value_bytes])

    def fill() -> str:
        topic: str = server.create_topic(PARTITIONS)
        arguments = {"bootstrap": server.bootstrap_servers, "topic": topic, "records": count}
        context.client("confluent_send", payload=str(context.payload(value_bytes)), **arguments, **CONFLUENT_SETTINGS)
        return topic

    result = context.measured_client(
        server,
        "records_per_s",
        "confluent_consume",
        topic=context.once(f"gateway topic {peer} {value_bytes}", fill),
        partitions=PARTITIONS,
        records=count,
        **_FETCH,
    )
    if result.extra["value_bytes"] != value_bytes * result.extra["records"]:
        raise MeasurementError(f"{result.extra['value_bytes']:.0f} bytes came, not {value_bytes} a record")
    return result


def acknowledged(context: Context, *, peer: bool) -> Measurement:
    """Measure the p99 of an acknowledgement with kafka-producer-perf-test."""
    server = server_of(context, peer)
    count = max(2_000, context.records(ACKNOWLEDGED_RATE * ACKNOWLEDGED_SECONDS))
    settings = {"bootstrap.servers": server.bootstrap_servers, "acks": "all", "linger.ms": "0"}
    tool: KafkaServer = context.kafka()
    with server.topic(1) as topic:
        payload = context.payload(1024)
        run = partial(tool.produce, topic, count, payload, settings, rate=ACKNOWLEDGED_RATE)
        return measured(server.pids, run, "p99_ms")


def real_time(context: Context, *, peer: bool) -> Measurement:
    """Measure a query of Spark's Kafka connector in real-time mode, from one topic to another."""
    server = server_of(context, peer)
    with server.topic(1) as source, server.topic(1) as target:
        options = {"kafka.bootstrap.servers": server.bootstrap_servers}
        read = {"format": "kafka", "options": options | {"subscribe": source, "startingOffsets": "earliest"}}
        sink = {"format": "kafka", "options": options | {"topic": target}, "real_time": "5 minutes"}
        load = partial(
            send_and_receive, context, server, "confluent", source, target, REAL_TIME_RATE, 0, REAL_TIME_WARM_UP_S
        )
        return beside_query(context, read | {"select": ["key", "value"]}, sink, load)


def _row(name: str, title: str, goal: float, measure: Any, value_bytes: int, **more: Any) -> Row:
    return row(
        name, title, goal, partial(measure, value_bytes=value_bytes, **more),
        records=f"{RECORDS[value_bytes]:,} of {value_bytes} bytes, {PARTITIONS} partitions, no fsync",
        clients="confluent-kafka (librdkafka) for both",
        value="records per second; the processor time of the gateway counts as the broker's",
    )  # fmt: skip


ROWS = (
    _row("gateway-produce-100b", "Kafka's clients produce 100 B through the gateway", 0.5, produce, 100),
    _row("gateway-produce-1k", "Kafka's clients produce 1 KiB through the gateway", 0.8, produce, 1024),
    _row("gateway-produce-100b-lz4", "Kafka's clients produce 100 B with lz4 through the gateway", 0.5, produce, 100,
         compression="lz4"),
    _row("gateway-consume-100b", "Kafka's clients consume 100 B through the gateway", 0.5, consume, 100),
    _row("gateway-consume-1k", "Kafka's clients consume 1 KiB through the gateway", 0.8, consume, 1024),
    row(
        "gateway-acknowledged", "acknowledgement at 1,000 records/s of 1 KiB through the gateway", 2, acknowledged,
        unit="ms (p99)", clients="kafka-producer-perf-test for both, acks=all, linger.ms=0",
    ),
    row(
        "gateway-real-time", "Spark's real-time mode, topic → topic, at 500 records/s of 1 KiB", 1.5, real_time,
        unit="ms (p99)", clients="Spark's Kafka connector and confluent-kafka for both", trigger="realTime, 5 minutes",
        value="p99 from the time a record was due to the time the receiver's poll returned it",
    ),
)  # fmt: skip
