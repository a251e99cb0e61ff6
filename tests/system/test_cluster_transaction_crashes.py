"""Three real brokers, of which one is killed at a step of a transaction's end: the next coordinator completes the
decision, nothing is torn, and nothing stays open."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

import sparklog
from sparklog.client.local_zookeeper import has_java
from sparklog.environment.fault_points import VARIABLE, VARIABLE_MARK
from sparklog.errors import TransactionAbortedError
from sparklog.types import TopicPartition
from tests.support.waiting import until_reached
from tests.system.cluster_processes import ClusterProcesses

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(not has_java(), reason="there is no Java: install one to run ZooKeeper"),
]

PARTITIONS = 6
TPS = [TopicPartition("t", p) for p in range(PARTITIONS)]
POINTS = (
    "txn.before-decision",
    "txn.after-decision",
    "txn.between-markers",
    "txn.before-completion",
    "txn.after-completion",
)
USUAL = {("txn.after-decision", "commit"): [], ("txn.between-markers", "abort"): [pytest.mark.nightly]}
CASES = [
    pytest.param(point, end, marks=USUAL.get((point, end), [pytest.mark.torture]))
    for point in POINTS
    for end in ("commit", "abort")
]


class World:
    """A cluster each of whose brokers would be killed at `point`; the first one is."""

    def __init__(self, directory: Path, point: str) -> None:
        self.mark = directory / f"mark.{point}"
        armed = {VARIABLE: f"{point}:kill", VARIABLE_MARK: str(directory / "mark")}
        self.cluster = ClusterProcesses(directory, env=os.environ | armed)
        self.addresses = ",".join(f"127.0.0.1:{port}" for port in self.cluster.ports.values())
        with sparklog.Admin(self.addresses) as admin:
            admin.create_topic("t", partitions=PARTITIONS, replication_factor=3, configs={"min.insync.replicas": 2})

    def dead(self) -> list[int]:
        """Brokers that have ended."""
        return [i for i, broker in self.cluster.processes.items() if broker.process.poll() is not None]

    def write(self, producer: sparklog.Producer, value: str, end: str) -> None:
        """One transaction with a record for each partition; one that is to be committed is tried until it is."""
        while True:
            producer.begin_transaction()
            try:
                for tp in TPS:
                    producer.send("t", value=value.encode(), partition=tp.partition)
                producer.flush()
                if end == "commit":
                    producer.commit_transaction()
                else:
                    producer.abort_transaction()
            except TransactionAbortedError:
                producer.abort_transaction()
                if end == "commit":
                    continue
            return

    def committed(self) -> list[list[bytes]]:
        """Values of each partition, up to its last stable offset."""
        table = sparklog.read_table(self.addresses, "t", include_metadata=True)
        found: list[list[bytes]] = [[] for _ in TPS]
        for partition, value in zip(table["_partition"].to_pylist(), table["value"].to_pylist(), strict=True):
            found[partition].append(value)
        return found

    def nothing_is_open(self) -> bool:
        with sparklog.Admin(self.addresses) as admin:
            stable = admin.list_offsets(dict.fromkeys(TPS, "latest"), isolation_level="read_committed")
            ends = admin.list_offsets(dict.fromkeys(TPS, "latest"))
            return all(stable[tp].offset == ends[tp].offset for tp in TPS) and not admin.list_transactions(
                states=["Ongoing", "PrepareCommit", "PrepareAbort"]
            )


@pytest.mark.parametrize(("point", "end"), CASES)
def test_a_broker_is_killed_in_the_middle_of_an_end(tmp_path: Path, point: str, end: str) -> None:
    world = World(tmp_path, point)
    try:
        with sparklog.Producer(
            bootstrap_servers=world.addresses, transactional_id="loader", transaction_timeout_ms=600_000
        ) as producer:
            producer.init_transactions()
            begun = time.monotonic()
            world.write(producer, "first", end)
            took_s = time.monotonic() - begun
            until_reached(world.mark.exists, f"a broker has reached {point}")
            until_reached(lambda: len(world.dead()) == 1, "that broker has ended")
            (dead,) = world.dead()
            assert world.cluster.processes[dead].process.returncode == -signal.SIGKILL
            expected = [b"first"] * (end == "commit")
            until_reached(world.nothing_is_open, "the transaction has its markers, with a broker missing")
            assert world.committed() == [expected] * PARTITIONS
            world.cluster.kill(dead)
            world.cluster.start(dead)
            world.write(producer, "never", "abort")
            world.write(producer, "second", "commit")
        expected.append(b"second")
        until_reached(world.nothing_is_open, "nothing is open at the end")
        assert world.committed() == [expected] * PARTITIONS
        until_reached(lambda: world.cluster.in_sync("t", 3, asked=dead), "the broker that was killed has caught up")
        for other in sorted({1, 2, 3} - {dead})[:1]:
            world.cluster.kill(other)  # what it led, the next ones have, too
        until_reached(lambda: world.committed() == [expected] * PARTITIONS, "the same records from other leaders")
        print(f"{point}, {end}: broker {dead} killed, the producer went on after {took_s:.1f} s")
    finally:
        world.cluster.close()
