"""Taking the directory of a broker that was alone into a cluster: its topics, with their ids, schemas and settings, and
with the internal topics all offsets, groups and transactions; its security records; its ids given out.

| step | if a crash comes behind it |
|---|---|
| the directory is locked, the cluster read, collisions looked for | nothing has happened |
| topics, security records and id counters into ZooKeeper, each write fenced | those that are there are left alone |
| the identity in each log directory becomes the cluster's | written again |
| `metadata.db` becomes `metadata.db.adopted` | done; a further run says so |

Until the last step a broker refuses to start on the directory as one of the cluster, and after it as one that is alone.
A cluster that has no id yet gets the directory's: nothing that knows the broker by it has to notice. Partitions begin
with this broker as their only replica; `sparklog reassign` gives them more.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from sparklog.environment import Environment
from sparklog.environment.files import FileSystem, read_whole
from sparklog.errors import AdoptionRefusedError, InvalidConfigError, StorageUnavailableError
from sparklog.format.checkpoint import META_FILE, DataDirMeta, decode, encode
from sparklog.log.directories.broker_epoch import member_of_cluster
from sparklog.log.directories.directory_set import DirectorySet
from sparklog.metadata import cluster_znodes as znodes
from sparklog.metadata.coordination import (
    BadVersionError,
    Coordination,
    CoordinationError,
    NoNodeError,
    SetData,
    Steps,
)
from sparklog.metadata.image_store import PRODUCER_IDS, SCHEMA_IDS, IdBlocks, image_of
from sparklog.metadata.sqlite_store import METADATA_FILE, SqliteStore
from sparklog.metadata.store import ENVELOPE_SCHEMA_ID, Topic
from sparklog.replication.cluster_image import (
    NO_LEADER,
    ClusterDelta,
    ClusterImage,
    PartitionImage,
    TopicImage,
    Version,
)
from sparklog_broker.config import BrokerConfig

ADOPTED_FILE = METADATA_FILE + ".adopted"
WAIT_S = 15.0
TRIES_MAX = 20


class Adopted(msgspec.Struct, frozen=True):
    """What has been taken in: `topics` this time, `there` before."""

    cluster_id: str
    topics: tuple[str, ...] = ()
    there: tuple[str, ...] = ()


def adopt(config: BrokerConfig, coordination: Coordination, environment: Environment) -> Adopted:
    """Blocks. Raises AdoptionRefusedError (it says what collides), DataDirLockedError (a broker runs on it),
    StorageError, StorageUnavailableError."""
    files = environment.files
    paths = [path.absolute() for path in config.log_dirs] or [config.data_dir]
    has_store = files.exists(config.data_dir / METADATA_FILE)
    was_adopted = files.exists(config.data_dir / ADOPTED_FILE)
    member = member_of_cluster(files, config.data_dir)
    if not has_store and not was_adopted and member is not None:
        raise AdoptionRefusedError(
            f"{config.data_dir} belongs to broker {member.broker_id} of cluster {member.cluster_id} already: start it with "
            f"--broker-id {member.broker_id} and the ZooKeeper of that cluster"
        )
    if not has_store and not was_adopted:
        raise AdoptionRefusedError(
            f"{config.data_dir} is no directory of a broker that was alone: it has no {METADATA_FILE}"
        )
    directories = DirectorySet(config.data_dir, paths, files, config.broker_id, lambda: None)
    try:
        if directories.failed:
            raise AdoptionRefusedError(f"not all log directories can be used: {directories.failed}")
        if not has_store:
            return _adopted_before(config, coordination, files, paths)
        return _adopt(config, coordination, environment, paths)
    except (CoordinationError, TimeoutError, msgspec.DecodeError) as e:
        raise StorageUnavailableError(f"ZooKeeper cannot be reached or read, run it again: {e!r}") from e
    finally:
        directories.unlock()


def _adopt(config: BrokerConfig, coordination: Coordination, environment: Environment, paths: list[Path]) -> Adopted:
    files, store_path = environment.files, config.data_dir / METADATA_FILE
    store = SqliteStore(store_path, environment, create=False)
    try:
        done = _take_in(config, coordination, store)
    finally:
        store.close()
    for path in paths:
        _become_member(files, path, done.cluster_id, config.broker_id)
    files.rename(store_path, config.data_dir / ADOPTED_FILE)
    files.sync_directory(config.data_dir)
    return done


def _adopted_before(config: BrokerConfig, coordination: Coordination, files: FileSystem, paths: list[Path]) -> Adopted:
    node = wait_for(coordination.get(znodes.CLUSTER))
    cluster_id = None if node is None else znodes.decode(node.data, znodes.ClusterNode).cluster_id
    data = read_whole(files, paths[0] / META_FILE)
    meta = None if data is None else decode(data, DataDirMeta)
    if meta is None or meta.cluster_id != cluster_id or meta.broker_id != config.broker_id:
        raise AdoptionRefusedError(
            f"{config.data_dir} has been adopted before, as broker {meta.broker_id if meta else '?'} of cluster "
            f"{meta.cluster_id if meta else '?'}; this is cluster {cluster_id}"
        )
    return Adopted(meta.cluster_id)


def _take_in(config: BrokerConfig, coordination: Coordination, store: SqliteStore) -> Adopted:
    run_steps(znodes.make_base(coordination))
    if wait_for(coordination.get(f"{znodes.BROKER_IDS}/{config.broker_id}")) is not None:
        raise AdoptionRefusedError(
            f"a broker {config.broker_id} is registered in the cluster: give this one another id with --broker-id"
        )
    known = wait_for(coordination.get(f"{znodes.KNOWN}/{config.broker_id}"))
    cluster_id = run_steps(znodes.take_cluster_id(coordination, store.cluster_id()))
    ids = IdBlocks(coordination)
    topics = store.topics()
    for _ in range(TRIES_MAX):
        epoch = wait_for(coordination.get(znodes.CONTROLLER_EPOCH))
        image = run_steps(znodes.load_image(coordination, int(epoch.data), epoch.mzxid))
        there = check(store, topics, image, config.broker_id, known is not None, ids.end(PRODUCER_IDS))
        ids.take(PRODUCER_IDS, 0, store.producer_ids_end())
        highest = max((i for topic in topics.values() for i in topic.schemas), default=ENVELOPE_SCHEMA_ID)
        ids.take(SCHEMA_IDS, 0, highest + 1)
        new = {name: topic for name, topic in topics.items() if name not in there}
        try:
            _write(coordination, store, new, image, config.broker_id, int(epoch.data), epoch.version)
        except BadVersionError:
            continue  # a controller was elected or has written: look again
        return Adopted(cluster_id, tuple(sorted(new)), tuple(sorted(there)))
    raise StorageUnavailableError("the cluster's controller changes all the time; run it again")


def check(
    store: SqliteStore,
    topics: Mapping[str, Topic],
    image: ClusterImage,
    broker_id: int,
    is_known: bool,
    producer_ids_end: int,
) -> list[str]:
    """The topics that an earlier run has taken in already. Raises AdoptionRefusedError."""
    there = [name for name, topic in topics.items() if (t := image.topics.get(name)) and t.topic_id == topic.topic_id]
    collisions = [name for name in topics if name in image.topics and name not in there]
    if collisions:
        raise AdoptionRefusedError(
            f"the cluster has topics of the same name already: {', '.join(sorted(collisions)[:5])}; delete them on one side, "
            f"or adopt into a cluster of its own (another path behind --zookeeper)"
        )
    others = [t.name for t in image.topics.values() if t.name not in topics]
    if is_known and not there and any(broker_id in p.replicas for n in others for p in image.topics[n].partitions):
        raise AdoptionRefusedError(
            f"the cluster has a broker {broker_id} with replicas already: give this one another id"
        )
    if others and producer_ids_end and store.producer_ids_end():
        raise AdoptionRefusedError(
            "both the cluster and the directory have given out ids of producers, which could be mistaken for one another; "
            "adopt into a cluster of its own (another path behind --zookeeper)"
        )
    records = store.security_records()
    differing = [f"{r.kind} {r.key}" for r, value in records.items() if image.security.get(r, value) != value]
    if differing:
        raise AdoptionRefusedError(
            f"the cluster has other security records already: {', '.join(sorted(differing)[:5])}"
        )
    return there


def _write(
    coordination: Coordination,
    store: SqliteStore,
    new: Mapping[str, Topic],
    image: ClusterImage,
    broker_id: int,
    epoch: int,
    version: int,
) -> None:
    """One fenced write per topic. A controller at work is replaced by one that reads what is there now."""
    deltas = [ClusterDelta(topics={name: new_image(topic, broker_id)}) for name, topic in sorted(new.items())]
    security = {r: value for r, value in store.security_records().items() if r not in image.security}
    if security:
        deltas.insert(0, ClusterDelta(security=security))
    for number, delta in enumerate(deltas):
        after = image.apply(delta, Version(image.version.controller_epoch, image.version.zxid + 1))
        fence = SetData(znodes.CONTROLLER_EPOCH, b"%d" % (epoch + 1), version + number)
        wait_for(coordination.transaction([fence, *znodes.write_ops(delta, image, after)]))
        image = after
    if deltas:
        try:
            wait_for(coordination.delete(znodes.CONTROLLER))
        except NoNodeError:
            return


def new_image(topic: Topic, broker_id: int) -> TopicImage:
    """The topic with this broker as the only replica of its partitions; it is elected when it registers."""
    partition = PartitionImage((broker_id,), NO_LEADER, 0, 0, (broker_id,), last_leader=broker_id)
    return replace(image_of(topic), partitions=(partition,) * topic.partitions)


def _become_member(files: FileSystem, path: Path, cluster_id: str, broker_id: int) -> None:
    data = read_whole(files, path / META_FILE)
    meta = None if data is None else decode(data, DataDirMeta)
    if meta is None:
        raise InvalidConfigError(f"{path / META_FILE} cannot be read: is it a log directory of this broker?")
    if (meta.cluster_id, meta.broker_id) != (cluster_id, broker_id):
        files.write_atomic(path / META_FILE, encode(replace(meta, cluster_id=cluster_id, broker_id=broker_id)))


def run_steps(steps: Steps) -> Any:
    """Does the steps, one after the other, on this thread."""
    send: Any = partial(next, steps)
    while True:
        try:
            waiting = send()
        except StopIteration as e:
            return e.value
        try:
            result = [wait_for(f) for f in waiting] if isinstance(waiting, list) else wait_for(waiting)
        except CoordinationError as e:
            send = partial(steps.throw, e)
        else:
            send = partial(steps.send, result)


def wait_for(future: Future[Any]) -> Any:
    return future.result(WAIT_S)
