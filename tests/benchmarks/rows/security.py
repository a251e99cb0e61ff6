"""TLS, SCRAM and ACLs: beside Kafka with the same, beside our own plaintext, and how many logins a second."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..context import Context, measured
from ..processes import MeasurementError
from ..results import Measurement
from ..secure_servers import (
    ITERATIONS,
    PASSWORD,
    PLAIN,
    SCRAM_ACL,
    TLS,
    USER,
    SecureSparklog,
    certificates,
    secure_kafka,
    secure_sparklog,
)
from .consume import FETCH_BYTES
from .produce import BATCH_BYTES, PARTITIONS
from .row import KAFKA, Row, at_least

PLAINTEXT_PEER = "sparklog without TLS"
VALUE_BYTES = 1024
RECORDS = 1_000_000
LOGINS = 1_000
AT_ONCE = 8


def _send_batch(context: Context, server: SecureSparklog, listener: str, topic: str, count: int) -> Any:
    return context.client(
        "sparklog_send_batch",
        bootstrap=server.address(listener),
        topic=topic,
        records=count,
        payload=str(context.payload(VALUE_BYTES)),
        batch_records=BATCH_BYTES // VALUE_BYTES,
        columnar=False,
        acks="all",
        batch_size_bytes=BATCH_BYTES,
        **server.client(listener),
    )


def produce(context: Context, *, listener: str) -> Measurement:
    """`send_batch` through one of the listeners."""
    count, server = context.records(RECORDS), secure_sparklog(context)
    with server.topic(PARTITIONS) as topic:
        return measured(
            server.pid, lambda: _send_batch(context, server, listener, topic, count), lambda r: r["records_per_s"]
        )


def consume(context: Context, *, listener: str) -> Measurement:
    """`poll_batches` through one of the listeners, from a topic that is filled once."""
    count, server = context.records(RECORDS), secure_sparklog(context)

    def fill() -> str:
        topic = server.create_topic(PARTITIONS)
        _send_batch(context, server, PLAIN, topic, count)
        return topic

    topic = context.once(f"secure sparklog topic {count}", fill)
    result = measured(
        server.pid,
        lambda: context.client(
            "sparklog_consume",
            bootstrap=server.address(listener),
            topic=topic,
            partitions=PARTITIONS,
            records=count,
            max_partition_fetch_bytes=FETCH_BYTES,
            **server.client(listener),
        ),
        lambda r: r["records_per_s"],
    )
    if result.extra["value_bytes"] != VALUE_BYTES * result.extra["records"]:
        raise MeasurementError(f"{result.extra['value_bytes']:.0f} bytes came, not {VALUE_BYTES} a record")
    return result


def kafka_produce(context: Context, *, listener: str) -> Measurement:
    """kafka-producer-perf-test through one of the listeners."""
    count, server = context.records(RECORDS), secure_kafka(context)
    settings = {"acks": "all", **server.client(listener)}
    with server.topic(PARTITIONS) as topic:
        return measured(
            server.pid,
            lambda: server.produce(topic, count, context.payload(VALUE_BYTES), settings),
            lambda r: r["records_per_s"],
        )


def kafka_consume(context: Context, *, listener: str) -> Measurement:
    """kafka-consumer-perf-test through one of the listeners."""
    count, server = context.records(RECORDS), secure_kafka(context)

    def fill() -> str:
        topic = "t-filled"
        server.create_topic(topic, PARTITIONS)
        server.produce(topic, count, context.payload(VALUE_BYTES), {"acks": "all"})
        return topic

    topic = context.once(f"secure kafka topic {count}", fill)
    return measured(
        server.pid, lambda: server.consume(topic, count, server.client(listener)), lambda r: r["records_per_s"]
    )


def logins(context: Context, *, at_once: int, system: str) -> Measurement:
    """Logins a second, at a broker of one of the systems."""
    server = secure_sparklog(context) if system == "sparklog" else secure_kafka(context)
    arguments = {
        "system": system,
        "address": server.address(SCRAM_ACL),
        "authority": str(certificates(context).authority),
        "username": USER,
        "password": PASSWORD,
        "count": max(50, round(LOGINS * context.scale)),
        "at_once": at_once,
    }
    return measured(server.pid, lambda: context.client("logins", **arguments), lambda r: r["logins_per_s"])


_BOTH = {"certificates": "P-256, the same for both; TLS as both choose it by themselves"}
_SCRAM = {
    "login": f"SCRAM-SHA-256, {ITERATIONS:,} iterations on both sides",
    "ACLs": "Read, Write, Describe for topics with a prefix, Read for groups with one",
}
_RECORDS = {"records": f"{RECORDS:,} of {VALUE_BYTES:,} bytes, {PARTITIONS} partitions, no compression"}
_OURS = {
    "sparklog": "TCP: no Unix socket, no mapped files (local.socket.enabled=false, local.read.enabled=false)",
}
_WAYS = (
    ("produce", "produce 1 KiB, acks=all,", produce, kafka_produce),
    ("consume", "consume 1 KiB", consume, kafka_consume),
)

ROWS: tuple[Row, ...] = (
    *(
        Row(
            f"security-{way}-{name}",
            f"{title} {how}",
            KAFKA,
            "records/s",
            at_least(2),
            partial(ours, listener=listener),
            partial(theirs, listener=listener),
            _RECORDS | _OURS | _BOTH | more,
        )
        for name, how, listener, more in (
            ("tls", "over TLS", TLS, {}),
            ("scram-acl", "over TLS, with SCRAM and ACLs", SCRAM_ACL, _SCRAM),
        )
        for way, title, ours, theirs in _WAYS
    ),
    *(
        Row(
            f"security-tls-cost-{way}",
            f"{title} over TLS, beside the same without",
            PLAINTEXT_PEER,
            "records/s",
            None,
            partial(ours, listener=TLS),
            partial(ours, listener=PLAIN),
            _RECORDS | _OURS,
        )
        for way, title, ours, _ in _WAYS
    ),
    *(
        Row(
            name,
            f"logins with SCRAM over TLS, {how}",
            KAFKA,
            "logins/s",
            at_least(1),
            partial(logins, at_once=at_once, system="sparklog"),
            partial(logins, at_once=at_once, system="kafka"),
            _BOTH | _SCRAM | {"client": "the same for both, in Python; each login has a TLS handshake and the hashing"},
        )
        for name, how, at_once in (
            ("security-logins", f"{AT_ONCE} at once", AT_ONCE),
            ("security-logins-one", "one after the other", 1),
        )
    ),
)
