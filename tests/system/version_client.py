"""A client of the release on PYTHONPATH, in a process of its own: `python version_client.py ADDRESS STAGE`.

It uses only functions that the previous release has, too, and imports nothing of the tests. Stages: `work` uses every
common part and checks the results; `read` reads the records of another client's `work`; `newer` requests functions that
only the newer release has. The last line of its output is its result, as JSON.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import sys
from types import ModuleType
from typing import Any

import pyarrow as pa

import sparklog
from sparklog.types import TopicPartition


def first_of(*modules: str) -> ModuleType:
    """Return the first of these modules that this release has: private ones may move between releases."""
    for module in modules:
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(module)
    raise ImportError(f"this release has none of {', '.join(modules)}")


cluster = first_of("sparklog.client.net.cluster", "sparklog.client.cluster").cluster
shared_transactions = first_of("sparklog.client.transactions.shared_transaction", "sparklog.client.shared_transaction")
draw_fencing_token = getattr(shared_transactions, "draw_fencing_token", None) or shared_transactions.draw_ticket

PLAIN, TYPED, TRANSACTIONAL, SHARED, SCRATCH = "plain", "typed", "transactional", "shared", "scratch"
GROUP, OTHER_GROUP = "readers", "others"
RECORDS = 500
COLUMNS = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string())])
POLLS_MAX = 200


def rows(first: int, count: int) -> pa.Table:
    return pa.table({"id": range(first, first + count), "name": [f"n{i}" for i in range(count)]}, schema=COLUMNS)


def read_all(address: str, topic: str, partitions: int, expected: int, **settings: Any) -> list[bytes]:
    """Values in order of partition and offset, through the socket."""
    with sparklog.Consumer(address, **settings) as consumer:
        consumer.assign([TopicPartition(topic, p) for p in range(partitions)])
        found: list[Any] = []
        for _ in range(POLLS_MAX):
            found += consumer.poll(timeout_ms=100)
            if len(found) >= expected:
                break
    return [r.value for r in sorted(found, key=lambda r: (r.partition, r.offset))]


def produce(address: str) -> None:
    with sparklog.Producer(address, linger_ms=5) as producer:
        for i in range(RECORDS):
            producer.send(PLAIN, f"v{i}".encode(), key=f"k{i % 7}".encode(), headers=[("h", b"1")], partition=i % 2)
        producer.send_batch(TYPED, rows(0, RECORDS)).result(30)
        producer.flush()
    for settings in ({"acks": "1", "enable_idempotence": False}, {"compression": "zstd"}, {"compression": "none"}):
        with sparklog.Producer(address, **settings) as producer:
            assert producer.send(PLAIN, b"other settings", partition=0).result(30).partition == 0


def consume(address: str) -> None:
    values = read_all(address, PLAIN, 2, RECORDS + 3, auto_offset_reset="earliest")
    assert sorted(values) == sorted([*(f"v{i}".encode() for i in range(RECORDS)), *[b"other settings"] * 3])
    for local in ("auto", "off"):
        table = sparklog.read_table(address, TYPED, columns=["id", "name"], local=local)
        assert table.sort_by("id").select(["id"]).column(0).to_pylist() == list(range(RECORDS))


def admin(address: str) -> None:
    with sparklog.Admin(address) as found:
        for name in (PLAIN, TRANSACTIONAL, SHARED, SCRATCH):
            assert found.create_topic(name, 2).partitions == 2
        found.create_topic(TYPED, 1, schema=COLUMNS, key_columns=["id"], configs={"retention.ms": 86_400_000})
        assert set(found.list_topics()) == {PLAIN, TYPED, TRANSACTIONAL, SHARED, SCRATCH}
        assert found.alter_topic(SCRATCH, {"retention.ms": 3_600_000}).configs["retention.ms"] == 3_600_000
        assert found.describe_topic(TYPED).key_columns == ("id",)
        wider = found.alter_schema(TYPED, add_columns=pa.schema([pa.field("more", pa.float64())]))
        assert wider.schema.names[-1] == "more"
        found.delete_topic(SCRATCH)
        assert SCRATCH not in found.list_topics()
        try:
            found.describe_topic(SCRATCH)
        except sparklog.SparklogError as e:
            assert type(e).__name__ == "UnknownTopicOrPartitionError", e
        else:
            raise AssertionError("a topic that is not there")


def groups(address: str) -> None:
    with sparklog.Consumer(address, group_id=GROUP, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([PLAIN])
        count = 0
        for _ in range(POLLS_MAX):
            count += len(consumer.poll(timeout_ms=100))
            if count >= RECORDS + 3:
                break
        assert count == RECORDS + 3, count
        consumer.commit()
        both = [TopicPartition(PLAIN, p) for p in (0, 1)]
        committed = consumer.committed(both)
        assert sum(c.offset for c in committed.values() if c is not None) == RECORDS + 3
        with sparklog.Admin(address) as found:
            assert [m.client_id is not None for m in found.describe_group(GROUP).members] == [True]
    with sparklog.Admin(address) as found:
        found.alter_group_offsets(OTHER_GROUP, {TopicPartition(PLAIN, 0): 5})
        assert {g.group_id for g in found.list_groups()} >= {GROUP, OTHER_GROUP}
        assert found.list_group_offsets(OTHER_GROUP)[TopicPartition(PLAIN, 0)].offset == 5
        found.delete_group(OTHER_GROUP)
        assert OTHER_GROUP not in {g.group_id for g in found.list_groups()}


def transactions(address: str) -> None:
    with sparklog.Producer(address, transactional_id="orders") as producer:
        producer.init_transactions()
        for number, commits in enumerate((True, False, True)):
            producer.begin_transaction()
            for i in range(10):
                producer.send(TRANSACTIONAL, f"{number}/{i}".encode(), partition=i % 2)
            producer.send_offsets_to_transaction({TopicPartition(PLAIN, 0): number + 1}, GROUP)
            if commits:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    with sparklog.Admin(address) as found:
        assert found.list_group_offsets(GROUP)[TopicPartition(PLAIN, 0)].offset == 3
        assert "orders" in {t.transactional_id for t in found.list_transactions()}
        assert found.describe_transaction("orders").transactional_id == "orders"
        assert found.describe_producers(TopicPartition(TRANSACTIONAL, 0)).producers
        assert found.find_hanging_transactions() == []


def spark_sink(address: str) -> None:
    """As the Spark sink writes: participants of one transaction, of which some are committed."""
    shared = cluster(address)
    transaction = shared_transactions.SharedTransaction("query", 1, "run", draw_fencing_token(shared))
    winners = []
    for value in (b"winner", b"loser"):
        participant = shared_transactions.join_shared_transaction(shared, transaction, timeout_ms=60_000)
        with sparklog.Producer(address) as producer, producer.participation(participant):
            producer.send(SHARED, value, partition=0)
        if value == b"winner":
            winners.append(participant.producer_id)
    end = shared_transactions.end_shared_transaction
    named = "committed_participants" if "committed_participants" in inspect.signature(end).parameters else "winners"
    ended = end(shared, transaction, committed=True, **{named: winners})
    assert getattr(ended, "committed", ended) is True


def records(address: str) -> None:
    with sparklog.Admin(address) as found:
        last = found.list_offsets({TopicPartition(PLAIN, 1): "latest"})[TopicPartition(PLAIN, 1)].offset
        assert last == RECORDS // 2
        assert found.delete_records({TopicPartition(PLAIN, 1): 100}) == {TopicPartition(PLAIN, 1): 100}
        first = found.list_offsets({TopicPartition(PLAIN, 1): "earliest"})[TopicPartition(PLAIN, 1)].offset
        assert first == 100


def work(address: str) -> dict[str, Any]:
    admin(address)
    for part in (produce, consume, groups, transactions, spark_sink, records):
        part(address)
    return read(address)


def read(address: str) -> dict[str, Any]:
    """Return the present state, in a form that two releases can be compared by."""
    committed = {"isolation_level": "read_committed", "auto_offset_reset": "earliest"}
    typed = sparklog.read_table(address, TYPED)
    with sparklog.Admin(address) as found:
        return {
            "plain": len(read_all(address, PLAIN, 2, RECORDS + 3 - 100, auto_offset_reset="earliest")),
            "typed": [typed.num_rows, sum(typed.column("id").to_pylist()), typed.schema.names],
            "transactional": [v.decode() for v in read_all(address, TRANSACTIONAL, 2, 20, **committed)],
            "shared": [v.decode() for v in read_all(address, SHARED, 2, 1, **committed)],
            "group": {str(tp): o.offset for tp, o in sorted(found.list_group_offsets(GROUP).items())},
            "topics": found.list_topics(),
        }


def newer(address: str) -> dict[str, Any]:
    """Check the functions that an older broker lacks: the error, and that the connection continues."""
    with sparklog.Admin(address) as found:
        try:
            found.add_partitions(PLAIN, 4)
        except sparklog.SparklogError as e:
            told = f"{e.name}: {e}"
        else:
            told = ""
        return {"told": told, "topics": found.list_topics()}


def main() -> None:
    address, stage = sys.argv[1:]
    found = {"work": work, "read": read, "newer": newer}[stage](address)
    print(json.dumps({"release": str(sparklog.__file__), **found}))


if __name__ == "__main__":
    main()
