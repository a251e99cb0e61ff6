"""Real clients and real brokers enter the functions of docs/internals/life-of-a-batch.md in the order it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from sparklog.client.local_zookeeper import has_java
from tests.unit.walks import ROOT, Row, rows, walks

RECORDER = """
import os, sys, threading, time

WANTED = {}
for line in open(os.environ["WALKS"]):
    module, function = line.split()
    WANTED.setdefault(function, []).append(module)
OUT = open(os.path.join(os.environ["WALKED"], str(os.getpid())), "w", buffering=1)

ROOT = os.environ["ROOT"] + os.sep

def callers(frame):
    # the modules, the nearest first
    while frame := frame.f_back:
        if frame.f_code.co_filename.startswith(ROOT):
            yield frame.f_code.co_filename.removeprefix(ROOT)

def note(frame, event, arg):
    if event == "call":
        name = frame.f_code.co_qualname
        for module in WANTED.get(name, ()):
            if frame.f_code.co_filename.endswith(module):
                through = ",".join(dict.fromkeys(callers(frame)))
                OUT.write(f"{time.monotonic_ns()} {module} {name} {through}\\n")

threading.setprofile(note)
sys.setprofile(note)
"""
"""A sitecustomize.py: each process that finds it records the functions that it enters and their callers, on any
thread."""

ONE_BROKER = """
import time
import pyarrow as pa
import sitecustomize
import sparklog
from pyspark.sql.types import BinaryType, StructField, StructType
from pyspark_sparklog.sink.writer import batch_writer
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as KafkaPartition
from sparklog.lake.worker.worker import LakeWorker

def mark(heading):
    sitecustomize.OUT.write(f"{time.monotonic_ns()} mark {heading}\\n")

tp = sparklog.TopicPartition("t", 0)
with sparklog.start_local(kafka=True) as broker, sparklog.Admin(broker.bootstrap_servers) as admin:
    admin.create_topic("t", 1)
    with sparklog.Producer(broker.bootstrap_servers, linger_ms=1, compression="zstd") as producer:
        producer.send("t", b"first").result(60)
        mark("A produced batch")
        producer.send("t", b"second").result(60)
        mark("")
        admin.create_topic("rows", 2, schema="id BIGINT, name STRING", key_columns=["id"])
        producer.send_batch("rows", [{"id": 0, "name": "first"}]).result(60)
        mark("A table from Python")
        producer.send_batch("rows", [{"id": n, "name": "next"} for n in range(9)]).result(60)
    mark("A fetch")
    settings = dict(group_id="g", auto_offset_reset="earliest", local_read="off", enable_auto_commit=False)
    with sparklog.Consumer(broker.bootstrap_servers, **settings) as consumer:
        consumer.assign([tp])
        # two requests may be on their way before the first poll is entered: the third, of the third answer, is not
        for known in (2, 3, 4):
            while consumer.position(tp) < known:
                consumer.poll(1000)
            with sparklog.Producer(broker.bootstrap_servers) as producer:
                producer.send("t", b"more").result(60)
        mark("An offset commit")
        consumer.commit()
        mark("")
    # as Spark's driver and one Python worker do, without a JVM; the first write finds the coordinator
    options = {"sparklog.bootstrap.servers": broker.bootstrap_servers, "topic": "t"}
    for heading in ("", "A commit of the Spark sink"):
        writer = batch_writer(options, StructType([StructField("value", BinaryType())]), overwrite=False)
        mark(heading)
        writer.commit([writer.write(iter([pa.record_batch({"value": [b"row"]})]))])
        mark("")
    assert sparklog.read_table(broker.bootstrap_servers, "t").num_rows == 7
    admin.enable_lake("t", location="table")
    worker = LakeWorker(broker.bootstrap_servers)
    mark("A round of the lake")
    assert worker.run_once(["t"]) == {}
    mark("")
    worker.close()
    kafka = {"bootstrap_servers": broker.kafka_bootstrap_servers}
    to_kafka = KafkaProducer(**kafka)
    to_kafka.send("t", b"first").get(60)
    mark("A Kafka client's produce")
    to_kafka.send("t", b"second").get(60)
    mark("")
    from_kafka = KafkaConsumer(**kafka, auto_offset_reset="earliest", enable_auto_commit=False, group_id=None)
    from_kafka.assign([KafkaPartition("t", 0)])
    mark("A Kafka client's fetch")
    while not from_kafka.poll(1000):
        pass
    mark("")
    to_kafka.close()
    from_kafka.close()
"""
TWO_BROKERS = """
import time
import sitecustomize
import sparklog

def mark(heading):
    sitecustomize.OUT.write(f"{time.monotonic_ns()} mark {heading}\\n")

with sparklog.start_local(brokers=2) as cluster:
    with sparklog.Admin(cluster.bootstrap_servers) as admin:
        admin.create_topic("t", 1, replication_factor=2)
        controller = admin.describe_cluster().controller_id
    other = next(b.bootstrap_servers for b in cluster.brokers if b.broker_id != controller)
    with sparklog.Admin(other) as admin:
        admin.describe_cluster()
        mark("Creating a topic")
        # each broker leads one partition, and copies the other
        admin.create_topic("u", 2, replication_factor=2)
        with sparklog.Producer(cluster.bootstrap_servers, acks="all") as producer:
            for number in (0, 1):
                producer.send("u", b"on both", partition=number).result(60)
        mark("")
    with sparklog.Producer(cluster.bootstrap_servers, acks="all") as producer:
        producer.send("t", b"first").result(60)
        mark("A replica fetch")
        # a request that was under way at the mark ends with the first record; the second one walks all of it
        for value in (b"second", b"third", b"fourth"):
            producer.send("t", value).result(60)
    mark("")
"""
NOT_ON_THE_WAY = {
    "sparklog/gateway/__main__.py",  # the gateway's event loop runs in it
    "sparklog/gateway/main.py",
    "sparklog/gateway/server.py",  # runs the sessions
    "broker_daemon/sparklog_broker/__main__.py",  # the event loop runs in it
    "broker_daemon/sparklog_broker/main.py",
    "broker_daemon/sparklog_broker/handlers/coordinators.py",  # a decorator: the internal topic is created if need be
    "sparklog/environment/time_slices.py",  # runs what it is given, in slices
    "datasource/pyspark_sparklog/spark_errors.py",  # a decorator: errors in the form that Spark shows
    "sparklog/client/consumer/calls.py",  # a decorator: one thread at a time
    "sparklog/client/net/arguments.py",  # a decorator: the types of arguments
    "sparklog/environment/executors.py",  # runs what it is given, on a thread
    "sparklog/metadata/coordination.py",  # runs what it is given, when ZooKeeper has answered
}
ON_TWO_BROKERS = {"A replica fetch", "Creating a topic"}


class Call(NamedTuple):
    module: str
    function: str
    through: tuple[str, ...]
    """The modules of its callers."""


def walk(program: str, directory: Path) -> dict[str, list[Call]]:
    """The calls in each walk, of clients and brokers, by time."""
    code, found = directory / "code", directory / "walked"
    code.mkdir()
    found.mkdir()
    (code / "sitecustomize.py").write_text(RECORDER)
    (code / "walks").write_text("\n".join(sorted({f"{row.module} {row.function}" for row in rows()})))
    path = os.pathsep.join(map(str, (code, ROOT, ROOT / "datasource", ROOT / "broker_daemon")))
    subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": path, "WALKS": str(code / "walks"), "WALKED": str(found), "ROOT": str(ROOT)},
        cwd=found,
        check=True,
        timeout=240,
    )
    lines = [line.split() for path in found.iterdir() if path.is_file() for line in path.read_text().splitlines()]
    calls: dict[str, list[Call]] = {}
    heading = ""
    for _, module, *rest in sorted(lines, key=lambda line: int(line[0])):
        if module == "mark":
            heading = " ".join(rest)
        else:
            function, *through = rest
            calls.setdefault(heading, []).append(
                Call(module, function, tuple(through[0].split(",")) if through else ())
            )
    del calls[""]
    return calls


@pytest.fixture(scope="module")
def with_one_broker(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Call]]:
    return walk(ONE_BROKER, tmp_path_factory.mktemp("one"))


@pytest.fixture(scope="module")
def with_two_brokers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Call]]:
    if not has_java():
        pytest.skip("there is no Java: install one to run ZooKeeper")
    return walk(TWO_BROKERS, tmp_path_factory.mktemp("two"))


@pytest.fixture
def walked(request: pytest.FixtureRequest, heading: str) -> list[Call]:
    found = request.getfixturevalue("with_two_brokers" if heading in ON_TWO_BROKERS else "with_one_broker")
    return found[heading]


@pytest.mark.parametrize("heading", walks())
def test_the_functions_are_entered_in_order(walked: list[Call], heading: str) -> None:
    for table in walks()[heading]:
        missing = first_missing(table, walked)
        assert not missing, f"not entered, or not behind the one before: {missing}"


@pytest.mark.parametrize("heading", walks())
def test_no_module_on_the_way_is_missing(walked: list[Call], heading: str) -> None:
    named = NOT_ON_THE_WAY | {row.module for row in rows()}
    for table in walks()[heading]:
        missing = first_missing(table, [call for call in walked if named.issuperset(call.through)])
        assert not missing, f"entered only through modules that the walk does not name: {missing}"


def first_missing(table: list[Row], walked: list[Call]) -> Row | None:
    calls = iter([(call.module, call.function) for call in walked])
    return next((row for row in table if (row.module, row.function) not in calls), None)
