"""A broker with something of everything that the console shows."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

import sparklog
from sparklog import Admin, Consumer, Producer, TopicPartition
from sparklog.client.net.cluster import cluster
from sparklog.client.net.registry_client import RegistryClient
from sparklog.client.net.registry_subjects import RegistrySubjects, SchemaReference, schema_body
from sparklog.client.transactions.shared_transaction import (
    Participant,
    SharedTransaction,
    draw_fencing_token,
    end_shared_transaction,
    join_shared_transaction,
)

SCRIPT = "<script>document.title='hacked'</script>"
HOSTILE = f"\"'><img src=x onerror=alert(1)>{SCRIPT}"
LARGE_BYTES = 10_000_000
TRIPS = 500
START_MS = 1_772_352_000_000
"""2026-03-01 08:00 UTC."""
TRIPS_SCHEMA = pa.schema([("zone", pa.string()), ("minutes", pa.float64()), ("pickup", pa.timestamp("us", tz="UTC"))])


class World(NamedTuple):
    """`address` of the broker; `stuck` is a producer whose transaction is open, `member` a consumer in a group."""

    address: str
    admin: Admin
    stuck: Producer
    member: Consumer


RIDE_FIELDS: list[dict[str, Any]] = [
    {"name": "id", "type": "long"},
    {"name": "zone", "type": ["null", "string"], "default": None},
    {"name": "fare", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
]
TIP = {"name": "tip", "type": ["null", "double"], "default": None}
PLACE = {"type": "record", "name": "Place", "fields": [{"name": "zone", "type": "string"}]}
ORDER = {
    "type": "object",
    "properties": {"order": {"type": "integer"}, "user": {"type": "string"}},
    "required": ["order"],
}


@contextlib.contextmanager
def world(data_dir: Path, *, schemas: bool = False) -> Iterator[World]:
    """With `schemas` also a schema registry: rides-value (two versions, of the topic rides) and rides-key, places and
    trips-from (which refers to it), orders-value (JSON Schema), and a hostile subject.

    Topics trips (typed, two versions), events (JSON, text, bytes, headers), hostile, large, orders (transactions);
    groups billing (stopped, behind), live (with a member), spark-query (offsets only); the applications etl (committed)
    and nightly (open)."""
    with sparklog.start_local(data_dir=data_dir, kafka=schemas) as broker, Admin(broker.bootstrap_servers) as admin:
        address = broker.bootstrap_servers
        if schemas:
            _schemas(admin, broker.schema_registry_url)
        _topics(admin, address)
        _applications(address)
        with (
            Producer(address, transactional_id="shop-stuck", transaction_timeout_ms=600_000) as stuck,
            Consumer(address, group_id="live", auto_offset_reset="earliest") as member,
        ):
            stuck.init_transactions()
            stuck.begin_transaction()
            stuck.send("orders", b"not committed", partition=0).result(60)
            member.subscribe(["events"])
            while not member.poll(1_000):
                pass
            member.commit()
            yield World(address, admin, stuck, member)
            with contextlib.suppress(sparklog.SparklogError):  # a test may have aborted it
                stuck.abort_transaction()


def _topics(admin: Admin, address: str) -> None:
    admin.create_topic("trips", 3, TRIPS_SCHEMA, timestamp_column="pickup", configs={"retention.ms": 86_400_000_000})
    admin.create_topic("events", 2)
    admin.create_topic("hostile", 1)
    admin.create_topic("large", 1, configs={"max.message.bytes": 32 * 1024 * 1024})
    admin.create_topic("orders", 1)
    zones = ["Harbour", "Museum", "Airport", "Old Town"]
    with Producer(address, batch_size_bytes=16 * 1024) as producer:
        for partition in range(3):
            numbers = range(partition, TRIPS, 3)
            columns = {
                "zone": [zones[n % 4] for n in numbers],
                "minutes": [n / 4 for n in numbers],
                "pickup": [(START_MS + 60_000 * n) * 1000 for n in numbers],
            }
            producer.send_batch("trips", pa.table(columns).cast(TRIPS_SCHEMA), partition=partition)
        for n in range(40):
            order = {"order": n, "user": f"user-{n % 7}", "items": [n, n + 1]}
            producer.send("events", value=json.dumps(order).encode(), key=b"k%d" % n, partition=n % 2)
        producer.send("events", value="Grüße".encode(), key=b"text", headers=[("trace", b"abc-123")], partition=0)
        producer.send("events", value=bytes(range(200, 256)), key=b"\x00\xff", partition=0)
        producer.send("hostile", value=HOSTILE.encode(), key=SCRIPT.encode(), headers=[(SCRIPT, HOSTILE.encode())])
        producer.flush()
    admin.alter_schema("trips", add_columns={"tip": pa.float64()})
    with Producer(address) as producer:
        producer.send("large", value=b"x" * LARGE_BYTES, key=b"large").result(30)
        producer.send("large", value=b"small", key=b"small").result(30)
    admin.alter_group_offsets("billing", {TopicPartition("trips", p): 40 * p for p in range(3)})
    admin.alter_group_offsets("spark-query", {TopicPartition("trips", p): 100 for p in range(3)})
    admin.alter_group_offsets(SCRIPT, {TopicPartition("hostile", 0): 0})


def _schemas(admin: Admin, url: str) -> None:
    columns = pa.schema([("id", pa.int64()), ("zone", pa.string()), ("fare", pa.decimal128(9, 2))])
    forms = {"kafka.value.format": "avro", "kafka.key.format": "avro"}
    admin.create_topic("rides", 2, columns, key_columns=["id"], configs=forms)
    client = RegistryClient(url)
    registry = RegistrySubjects(client)

    def register(subject: str, schema: object, kind: str = "AVRO", *references: SchemaReference) -> None:
        registry.register(subject, schema_body(json.dumps(schema), kind, references))

    ride = {"type": "record", "name": "Ride"}
    register("rides-key", "long")
    admin.alter_schema("rides", add_columns={"tip": pa.float64()})
    for fields in (RIDE_FIELDS, [*RIDE_FIELDS, TIP]):
        register("rides-value", ride | {"fields": fields})
    register("places", PLACE)
    inner = {"type": "record", "name": "From", "fields": [{"name": "place", "type": "Place"}]}
    register("trips-from", inner, "AVRO", SchemaReference("Place", "places", 1))
    register("orders-value", ORDER, "JSON")
    register(HOSTILE, {"type": "enum", "name": "E", "symbols": ["A"], "doc": f"{SCRIPT}\u202e"})
    client.ask("PUT", ["config", "orders-value"], body={"compatibility": "FULL_TRANSITIVE"})


def _applications(address: str) -> None:
    """Two of Spark's sink: one has committed its batch, one is at work."""
    shared = cluster(address)
    token = draw_fencing_token(shared)
    done = SharedTransaction("etl", 17, "run-1", token)
    joined = join_shared_transaction(shared, done, timeout_ms=60_000)
    assert isinstance(joined, Participant)
    end_shared_transaction(shared, done, committed=True, committed_participants=[joined.producer_id])
    at_work = SharedTransaction("nightly", 3, "run-2", draw_fencing_token(shared))
    join_shared_transaction(shared, at_work, timeout_ms=600_000)
