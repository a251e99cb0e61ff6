"""The directory of a broker that was alone becomes one of a cluster's, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sparklog_broker.cluster import adoption
from sparklog_broker.config import BrokerConfig, load_config

import sparklog
from sparklog.client.local_zookeeper import ZooKeeperProcess, has_java
from sparklog.environment import real_environment
from sparklog.errors import AdoptionRefusedError, BrokerNotAvailableError, DataDirLockedError
from sparklog.metadata.sqlite_store import METADATA_FILE
from sparklog.metadata.zookeeper import ZooKeeper
from sparklog.types import TopicPartition

pytestmark = pytest.mark.skipif(not has_java(), reason="there is no Java: install one to run ZooKeeper")

SCHEMA = pa.schema([("id", pa.int64()), ("zone", pa.string())])


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    process = ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper"))
    process.start()
    yield process
    process.kill()


def config_of(directory: Path, broker_id: int = 1) -> BrokerConfig:
    return load_config(None, data_dir=str(directory), broker_id=broker_id)


def adopt(directory: Path, connect: str, broker_id: int = 1) -> adoption.Adopted:
    coordination = ZooKeeper.connect(connect)
    try:
        return adoption.adopt(config_of(directory, broker_id), coordination, real_environment())
    finally:
        coordination.close()


def member(directory: Path, connect: str, broker_id: int = 1) -> sparklog.LocalBroker:
    settings = {"zookeeper.connect": connect, "broker.id": broker_id, "zookeeper.session.timeout.ms": 2_000}
    started = sparklog.start_local(directory, settings=settings, timeout_s=60)
    assert isinstance(started, sparklog.LocalBroker)
    return started


def fill(directory: Path) -> dict[str, Any]:
    """A broker that is alone, with something of everything; what can be known of it."""
    with sparklog.start_local(directory) as broker, sparklog.Admin(broker.bootstrap_servers) as admin:
        servers = broker.bootstrap_servers
        admin.create_topic("trips", partitions=2, schema=SCHEMA, key_columns=["zone"], configs={"retention.ms": -1})
        admin.alter_schema("trips", add_columns=pa.schema([("fare", pa.float64())]))
        admin.create_topic("events", partitions=3)
        with sparklog.Producer(bootstrap_servers=servers) as producer:
            for i in range(300):
                producer.send("events", value=b"%d" % i, partition=i % 3)
            producer.send_batch("trips", pa.table({"id": [1, 2], "zone": ["a", "b"], "fare": [1.5, 2.5]}))
            producer.flush()
        with sparklog.Producer(bootstrap_servers=servers, transactional_id="loader") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("events", value=b"300", partition=0)
            producer.commit_transaction()
        consumer_settings: dict[str, Any] = {"group_id": "readers", "enable_auto_commit": False}
        with sparklog.Consumer(bootstrap_servers=servers, **consumer_settings) as consumer:
            consumer.subscribe(["events"])
            read = 0
            while read < 301:
                read += len(list(consumer.poll(timeout_ms=500)))
            consumer.commit()
        return told(admin)


def told(admin: sparklog.Admin) -> dict[str, Any]:
    topics = admin.describe_topics(admin.list_topics(include_internal=True))
    return {
        "cluster": admin.describe_cluster().cluster_id,
        "topics": {
            n: (t.topic_id, t.partitions, t.schema, t.key_columns, t.configs, t.created_ms) for n, t in topics.items()
        },
        "offsets": {tp: o.offset for tp, o in admin.list_group_offsets("readers").items()},
        "transactions": [(t.transactional_id, t.state) for t in admin.list_transactions()],
    }


def test_nothing_is_lost(tmp_path: Path, zookeeper: ZooKeeperProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = f"{zookeeper.hosts}/adopted"
    directory = tmp_path / "alone"
    before = fill(directory)
    with pytest.raises(BrokerNotAvailableError, match="sparklog cluster adopt --data-dir"):
        member(directory, f"{zookeeper.hosts}/other")

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(adoption, "_become_member", crash)
        with pytest.raises(KeyboardInterrupt):
            adopt(directory, connect)
    with pytest.raises(BrokerNotAvailableError, match="sparklog cluster adopt"):
        member(directory, connect)  # half done is not done
    done = adopt(directory, connect)
    assert (done.cluster_id, done.topics, set(done.there)) == (before["cluster"], (), set(before["topics"]))
    assert adopt(directory, connect) == adoption.Adopted(before["cluster"])  # once more changes nothing
    assert not (directory / METADATA_FILE).exists()
    with pytest.raises(BrokerNotAvailableError, match="metadata store"):
        sparklog.start_local(directory)  # it is alone no more

    with member(directory, connect) as first, member(tmp_path / "second", connect, 2):
        servers = first.bootstrap_servers
        with pytest.raises(DataDirLockedError):
            adopt(directory, connect)
        with sparklog.Admin(servers) as admin:
            after = told(admin)
            assert after == before
            with sparklog.Producer(bootstrap_servers=servers, transactional_id="loader") as producer:
                producer.init_transactions()
                producer.begin_transaction()
                producer.send("events", value=b"301", partition=0)
                producer.commit_transaction()
            admin.alter_partition_reassignments({TopicPartition("events", p): [2, 1] for p in range(3)})
            while admin.list_partition_reassignments():
                pass
            table = sparklog.read_table(servers, "events")
            assert sorted(map(int, table.column("value").to_pylist())) == list(range(302))
            assert sparklog.read_table(servers, "trips").num_rows == 2
            admin.create_topic("new", partitions=1, schema=SCHEMA)
            assert admin.describe_topic("new").schema_id > admin.describe_topic("trips").schema_id


@pytest.mark.nightly
def test_what_collides_is_refused_and_nothing_changes(tmp_path: Path, zookeeper: ZooKeeperProcess) -> None:
    connect = f"{zookeeper.hosts}/collisions"
    for name in ("one", "two", "three"):
        with sparklog.start_local(tmp_path / name) as broker, sparklog.Admin(broker.bootstrap_servers) as admin:
            admin.create_topic("events" if name != "three" else "others", partitions=1)
            if name != "two":
                with sparklog.Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
                    producer.send("events" if name == "one" else "others", value=b"x")
                    producer.flush()
    adopt(tmp_path / "one", connect)
    with pytest.raises(AdoptionRefusedError, match="topics of the same name already: events"):
        adopt(tmp_path / "two", connect, 2)
    with pytest.raises(AdoptionRefusedError, match="ids of producers"):
        adopt(tmp_path / "three", connect, 3)
    with member(tmp_path / "one", connect), pytest.raises(AdoptionRefusedError, match="a broker 1 is registered"):
        adopt(tmp_path / "two", connect, 1)
    with pytest.raises(AdoptionRefusedError, match="no directory of a broker that was alone"):
        adopt(tmp_path / "nothing", connect, 4)
    with sparklog.start_local(tmp_path / "two") as broker, sparklog.Admin(broker.bootstrap_servers) as admin:
        assert admin.list_topics() == ["events"]
