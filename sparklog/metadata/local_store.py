"""metadata.db, the store of a cluster of one broker: open it, check it, and write it again from a rebuilt image."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterable, Mapping
from concurrent.futures import Future
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from uuid import UUID

import msgspec

from sparklog.environment import Environment, real_environment
from sparklog.environment.files import RealFiles
from sparklog.errors import StorageError
from sparklog.log.directories.broker_epoch import newest_life
from sparklog.metadata import cluster_znodes as znodes
from sparklog.metadata.coordination import CoordinationError, Create, Node, SetData, StoreWriteError
from sparklog.metadata.image_store import image_of
from sparklog.metadata.local_coordination import (
    FORMAT,
    METADATA_FILE,
    TABLES,
    ZXIDS_PER_SESSION,
    LocalCoordination,
    way_out,
)
from sparklog.metadata.rebuild import Rebuilt
from sparklog.metadata.znode_tree import Znodes
from sparklog.replication.cluster_image import (
    NO_EPOCH,
    NO_LEADER,
    ClusterDelta,
    ClusterImage,
    DeletedTopic,
    PartitionImage,
    Version,
)
from sparklog.security.records import RecordId
from sparklog.types import TopicPartition

WAIT_S = 15.0
CREATED_TOPICS = "/made"
"""Node with one child for each topic id. The child contains the number of partitions whose directories were created in
this life of the broker. A crash can come between the topic and its directories, so their existence is noted. In later
lives of the broker, a leader epoch above the topic's first one shows that a partition's directory was created."""


def run_steps(steps: Generator[Any, Any, Any]) -> Any:
    """Run the steps of a `Coordination` on this thread, one after the other, and return their result. Blocks."""
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
    """Return the result of a call. Blocks for at most WAIT_S seconds; then raises TimeoutError. Raises the call's
    CoordinationError."""
    return future.result(WAIT_S)


def open_local(
    path: Path, environment: Environment, *, create: bool, log_dirs: Iterable[Path] = ()
) -> LocalCoordination:
    """Open the store and create its base nodes. `path`: the SQLite file. `create`: True to create the file if it is
    missing. `log_dirs`: log directories. If the file is an older copy, they can contain newer broker epochs, and the
    new session must be above these. Raises StorageError: The file is missing, damaged or of another format;
    StorageFullError."""
    newest = max((_newest_life(environment, log_dir) for log_dir in log_dirs), default=NO_EPOCH)
    coordination = LocalCoordination(path, environment, create=create, above=max(0, newest) // ZXIDS_PER_SESSION)
    try:
        if wait_for(coordination.get(znodes.CLUSTER)) is None:
            cluster = znodes.encode(znodes.ClusterNode(environment.randomness.new_id()))
            ops = [*znodes.base_ops(), Create(znodes.CLUSTER, cluster), Create(CREATED_TOPICS, b"")]
            wait_for(coordination.transaction(ops))
        if wait_for(coordination.get(CREATED_TOPICS)) is None:
            wait_for(coordination.create(CREATED_TOPICS, b""))
    except StoreWriteError as e:
        coordination.close()
        raise e.reason from e
    except CoordinationError as e:
        coordination.close()
        raise StorageError(f"the metadata store {path} is damaged: {e!r}; {way_out(path)}") from e
    except BaseException:
        coordination.close()
        raise
    return coordination


def _newest_life(environment: Environment, log_dir: Path) -> int:
    try:
        return newest_life(environment.files, log_dir)
    except StorageError:
        return NO_EPOCH  # the disk of this log directory has failed


def read_image(coordination: LocalCoordination, path: Path) -> tuple[str, ClusterImage]:
    """Read the cluster's id and image. Raises StorageError."""
    try:
        cluster = wait_for(coordination.get(znodes.CLUSTER))
        epoch = wait_for(coordination.get(znodes.CONTROLLER_EPOCH))
        image = run_steps(znodes.load_image(coordination, int(epoch.data), epoch.mzxid, epoch.version))
        return znodes.decode(cluster.data, znodes.ClusterNode).cluster_id, image
    except (CoordinationError, msgspec.MsgspecError, AttributeError, KeyError, ValueError) as e:
        raise StorageError(f"the metadata store {path} is damaged: {e!r}; {way_out(path)}") from e


def read_created_topics(coordination: LocalCoordination) -> dict[str, int]:
    """Return the number of created partitions by topic id: the children of CREATED_TOPICS."""
    counts = {}
    for topic_id in wait_for(coordination.children(CREATED_TOPICS)):
        node = wait_for(coordination.get(f"{CREATED_TOPICS}/{topic_id}"))
        counts[topic_id] = int(node.data)
    return counts


def sole_replica(broker_id: int, leader_epoch: int) -> PartitionImage:
    """Return the state of a partition whose only replica is on this broker. The partition has no leader until the
    broker registers and is elected."""
    return PartitionImage((broker_id,), NO_LEADER, leader_epoch, 0, (broker_id,), last_leader=broker_id)


def nodes_of(image: ClusterImage, cluster_id: str, *, next_producer_id: int, next_schema_id: int) -> list[Node]:
    """Return the nodes of a store that contains `image`, each after its parent."""
    delta = ClusterDelta(topics=dict(image.topics), security=dict(image.security), deleted=dict(image.deleted))
    tree = Znodes()
    ops = [
        *znodes.base_ops(),
        Create(znodes.CLUSTER, znodes.encode(znodes.ClusterNode(cluster_id))),
        SetData(znodes.PRODUCER_IDS, b"%d" % next_producer_id),
        SetData(znodes.SCHEMA_IDS, b"%d" % next_schema_id),
        *znodes.write_ops(delta, ClusterImage(), image),
    ]
    tree.commit(ops, 0, in_transaction=True)
    return [node for op in ops if isinstance(op, Create) and (node := tree.find(op.path)) is not None]


def take_epochs(
    coordination: LocalCoordination, image: ClusterImage, epochs: Mapping[TopicPartition, int]
) -> ClusterImage:
    """Store the leader epochs of `epochs`, which were read from the logs, that are above those of `image`. They are
    above if the store is an older copy of its data. Returns the image with these epochs.

    Raises StorageError, StorageFullError."""
    newer: dict[TopicPartition, PartitionImage] = {}
    for tp, epoch in epochs.items():
        partition = image.partition(tp)
        if partition is not None and partition.leader_epoch < epoch:
            newer[tp] = sole_replica(partition.replicas[0], epoch)
    if not newer:
        return image
    delta, version = ClusterDelta(partitions=newer), image.version
    after = image.apply(delta, Version(version.controller_epoch, version.zxid + 1))
    fence = SetData(znodes.CONTROLLER_EPOCH, b"%d" % version.controller_epoch, image.writes)
    try:
        done = wait_for(coordination.transaction([fence, *znodes.write_ops(delta, image, after)]))
    except StoreWriteError as e:
        raise e.reason from e
    return msgspec.structs.replace(
        after, version=Version(version.controller_epoch, done[0].mzxid), writes=done[0].version
    )


def problem_with(path: Path, cluster_id: str) -> str | None:
    """Return the reason why the store at `path` cannot be used for the log directories of `cluster_id`; None if it can
    be used. Writes nothing."""
    try:
        nodes = _read_nodes(path)
        if nodes is None:
            return f"the metadata store {path} is missing; {way_out(path)}"
        stored = nodes[znodes.CLUSTER]
    except (sqlite3.Error, StorageError, KeyError, ValueError) as e:
        return f"the metadata store {path} is damaged: {e!r}; {way_out(path)}"
    if stored != cluster_id:
        return (
            f"{path} belongs to another cluster than the log directories: it was created after the old store was lost"
        )
    return None


def _read_nodes(path: Path) -> dict[str, str] | None:
    """Check the whole file. Returns `{CLUSTER: cluster_id}`, or None if the file is missing. Raises sqlite3.Error,
    StorageError, KeyError or ValueError for a damaged file."""
    if not path.exists():
        return None
    with closing(real_environment().databases.open(path)) as db:
        ((verdict,),) = db.execute("PRAGMA quick_check(1)").fetchall()
        if verdict != "ok":
            raise StorageError(verdict)
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version != FORMAT:
            raise StorageError(f"it has format {version}, this version reads {FORMAT}")
        rows = dict(db.execute("SELECT path, data FROM nodes").fetchall())
    for data in (data for at, data in rows.items() if at.startswith(f"{znodes.TOPICS}/") and at.endswith("/config")):
        msgspec.json.decode(data)
    return {znodes.CLUSTER: znodes.decode(rows[znodes.CLUSTER], znodes.ClusterNode).cluster_id}


def read_security_records(path: Path) -> dict[RecordId, bytes] | None:
    """Return the security records of a store, even if other parts of the file are damaged. Returns None if the file is
    missing or some records cannot be read. Writes nothing."""
    if not path.exists():
        return None
    try:
        with closing(real_environment().databases.open(path)) as db:
            if db.execute("PRAGMA quick_check(nodes)").fetchone() != ("ok",):
                return None
            nodes = db.execute("SELECT path, data FROM nodes WHERE path LIKE ?", (f"{znodes.SECURITY}/%/%",)).fetchall()
    except (sqlite3.Error, StorageError):
        return None
    names = [(*at.removeprefix(f"{znodes.SECURITY}/").split("/", 1), data) for at, data in nodes]
    return {RecordId(kind, unquote(key)): bytes(data) for kind, key, data in names}


LOST_TOPICS_ID = str(UUID(int=0))
"""Topic id in the deletion that a rebuilt store has in place of the lost ones. No topic has this id."""


def write_store(path: Path, content: Rebuilt, *, aside: str) -> Path | None:
    """Write a new store with `content` to `path`. An old file gets the ending `.<aside>`.

    Returns the new path of the old file; None if there was no old file. Raises StorageError, StorageFullError."""
    new = path.with_name(path.name + ".new")
    files = RealFiles()
    for leftover in (new, new.with_name(new.name + "-journal")):
        files.remove(leftover)
    _fill(new, content)
    kept = None
    for ending in ("", "-journal", "-wal", "-shm"):  # SQLite would apply an old journal to the new file
        old = path.with_name(path.name + ending)
        if old.exists():
            kept = kept or path.with_name(f"{path.name}.{aside}")
            files.rename(old, path.with_name(f"{path.name}.{aside}{ending}"))
    files.rename(new, path)
    files.sync_directory(path.parent)
    return kept


def _fill(path: Path, content: Rebuilt) -> None:
    topics = {
        topic.name: msgspec.structs.replace(
            image_of(topic),
            partitions=tuple(
                sole_replica(
                    content.broker_id,
                    1 + content.leader_epochs.get((topic.topic_id, number), topic.first_leader_epoch),
                )
                for number in range(topic.partitions)
            ),
        )
        for topic in content.topics
    }
    # the lost deletions: topics that are created from now on begin above the epochs of all topics of the directories
    highest = 1 + max((*content.leader_epochs.values(), *(t.first_leader_epoch for t in content.topics)), default=0)
    lost = {LOST_TOPICS_ID: DeletedTopic("", 0, highest)}
    nodes: list[Node] = nodes_of(
        ClusterImage(topics=topics, security=content.security_records, deleted=lost),
        content.cluster_id,
        next_producer_id=content.next_producer_id,
        next_schema_id=content.next_schema_id,
    )
    with closing(real_environment().databases.open(path)) as db:
        try:
            db.execute("PRAGMA synchronous = FULL")
            db.execute("BEGIN IMMEDIATE")
            for statement in TABLES:
                db.execute(statement)
            db.executemany("INSERT INTO nodes VALUES (?, ?, ?, ?, ?)", [node[:5] for node in nodes])
            db.execute("INSERT INTO store VALUES ('session', ?)", (str(content.session),))
            db.execute(f"PRAGMA user_version = {FORMAT}")
            db.execute("COMMIT")
        except sqlite3.Error as e:
            raise StorageError(f"cannot write the metadata store {path}: {e}") from e


__all__ = [
    "METADATA_FILE",
    "open_local",
    "problem_with",
    "read_image",
    "read_security_records",
    "run_steps",
    "write_store",
]
