"""metadata.db of format 1, in which a single broker had tables of topics, becomes nodes: all of it, or nothing yet."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pyarrow as pa

from sparklog.environment import Environment
from sparklog.metadata import cluster_znodes as znodes
from sparklog.metadata.image_store import IdBlocks, topic_of
from sparklog.metadata.local_store import METADATA_FILE, open_local, read_image, wait_for
from sparklog.replication.cluster_image import NO_LEADER, DeletedTopic
from sparklog.security.records import RecordId
from sparklog.testing.sim_files import PowerCut
from sparklog.testing.sim_loop import Simulation
from sparklog.testing.sim_machine import SimMachine

DATA = Path("/data")
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
TABLES = """
CREATE TABLE store (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE topics (name TEXT PRIMARY KEY, topic_id TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, partitions INTEGER NOT NULL,
    key_columns TEXT NOT NULL, timestamp_column TEXT, configs TEXT NOT NULL, created_ms INTEGER NOT NULL) STRICT;
CREATE TABLE schemas (topic_id TEXT NOT NULL REFERENCES topics (topic_id) ON DELETE CASCADE, schema_id INTEGER NOT NULL,
    arrow_schema BLOB NOT NULL, PRIMARY KEY (topic_id, schema_id)) STRICT;
CREATE TABLE topic_owners (topic_id TEXT PRIMARY KEY REFERENCES topics (topic_id) ON DELETE CASCADE, owner TEXT NOT NULL)
    STRICT;
CREATE TABLE topic_requests (topic_id TEXT PRIMARY KEY REFERENCES topics (topic_id) ON DELETE CASCADE, request_id TEXT NOT
    NULL) STRICT;
CREATE TABLE security_records (kind TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY (kind, key)) STRICT;
CREATE TABLE unfinished_topics (topic_id TEXT PRIMARY KEY, state TEXT NOT NULL) STRICT
"""
"""As the last broker with this format has made them."""


def write_earlier(environment: Environment, *, minimal: bool = False) -> None:
    db = environment.databases.open(DATA / METADATA_FILE)
    db.execute("BEGIN IMMEDIATE")
    for statement in TABLES.split(";")[: 3 if minimal else None]:
        db.execute(statement)
    message = SCHEMA.serialize().to_pybytes()
    db.execute("INSERT INTO store VALUES ('cluster_id', 'c1')")
    row = "INSERT INTO topics VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
    db.execute(row, ("typed", "id-1", "typed", 300, json.dumps(["id"]), None, json.dumps({"retention.ms": 5_000}), 77))
    db.execute("INSERT INTO schemas VALUES ('id-1', 2, ?)", (message,))
    db.execute("INSERT INTO schemas VALUES ('id-1', 5, ?)", (message,))
    if not minimal:
        db.execute("INSERT INTO store VALUES ('next_producer_id', '4000'), ('next_schema_id', '9')")
        db.execute(row, ("new", "id-2", "envelope", 1, "[]", None, "{}", 78))
        db.execute("INSERT INTO schemas VALUES ('id-2', 1, ?)", (message,))
        db.execute("INSERT INTO topic_owners VALUES ('id-1', 'User:alice')")
        db.execute("INSERT INTO topic_requests VALUES ('id-1', 'r-1')")
        db.execute("INSERT INTO security_records VALUES ('users', 'a/b', ?)", (b"salted",))
        db.execute("INSERT INTO unfinished_topics VALUES ('id-2', 'making'), ('id-3', 'deleting')")
    db.execute("PRAGMA user_version = 1")
    db.execute("COMMIT")
    db.close()


def machine(seed: int) -> SimMachine:
    made = SimMachine(Simulation(seed), "m")
    made.files.make_directory(DATA)
    made.files.sync_directory(Path("/"))
    return made


def check_converted(environment: Environment) -> None:
    coordination = open_local(DATA / METADATA_FILE, environment, 4, create=False)
    cluster_id, image = read_image(coordination, DATA / METADATA_FILE)
    assert cluster_id == "c1"
    typed = topic_of(image.topics["typed"])
    assert (typed.topic_id, typed.kind, typed.partitions, typed.key_columns) == ("id-1", "typed", 300, ("id",))
    assert (dict(typed.schemas), dict(typed.configs)) == ({2: SCHEMA, 5: SCHEMA}, {"retention.ms": 5_000})
    assert (typed.created_ms, typed.owner, typed.request_id) == (77, "User:alice", "r-1")
    states = {(p.replicas, p.isr, p.leader, p.last_leader) for t in image.topics.values() for p in t.partitions}
    assert states == {((4,), (4,), NO_LEADER, 4)}
    assert {name: t.partitions[0].leader_epoch for name, t in image.topics.items()} == {"typed": 1, "new": 0}
    assert image.security == {RecordId("users", "a/b"): b"salted"}
    assert image.deleted == {"id-3": DeletedTopic("", 0)}
    ids = IdBlocks(coordination)
    assert (ids.take_producer_ids(10), ids.take_schema_id()) == (4000, 9)
    coordination.close()


def test_everything_becomes_nodes_once() -> None:
    made = machine(1)
    _, environment = made.process()
    write_earlier(environment)
    check_converted(environment)
    again = open_local(DATA / METADATA_FILE, environment, 4, create=False)
    assert wait_for(again.get(znodes.PRODUCER_IDS)).data == b"4010"
    again.close()


def test_a_store_of_the_first_brokers_lacks_tables() -> None:
    made = machine(2)
    _, environment = made.process()
    write_earlier(environment, minimal=True)
    coordination = open_local(DATA / METADATA_FILE, environment, 0, create=False)
    _, image = read_image(coordination, DATA / METADATA_FILE)
    assert (image.topics.keys(), image.topics["typed"].owner) == ({"typed"}, "")
    assert IdBlocks(coordination).take_schema_id() == 6, "above all that topics have"
    coordination.close()


def test_a_power_cut_leaves_the_earlier_form_or_the_new_one() -> None:
    for seed in range(30):
        made = machine(seed)
        loop, environment = made.process()
        write_earlier(environment)
        made.files.cut_at = len(made.files.calls) + 1 + seed % 15
        with contextlib.suppress(PowerCut):
            open_local(DATA / METADATA_FILE, environment, 4, create=False).close()
        made.power_cut(loop)
        _, environment = made.process()
        check_converted(environment)
