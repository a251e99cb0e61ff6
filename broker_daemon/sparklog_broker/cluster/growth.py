"""Growth from one broker to several: when a broker with a store in its data directory first starts with
`zookeeper.connect`, it copies the store into an empty ZooKeeper.

| step | state after a crash that follows this step |
|---|---|
| lock the log directories, look for other nodes in ZooKeeper | nothing has changed |
| create `/copying` with the cluster's id | other brokers do not start; this broker's next start continues |
| copy the nodes | the same; the next start writes the existing nodes again |
| delete broker-epoch.json from the log directories | the same |
| delete `/copying` | only the last step is left for this broker's next start |
| `metadata.db` becomes `metadata.db.copied` | done |

The whole store is copied: topics with their ids, schemas and settings, security records and issued ids. Offsets, groups
and transactions are in the internal topics, which stay. Broker epochs are not copied: they are transaction ids, and
ZooKeeper issues its own. Each partition is therefore copied without a leader, and this broker is elected in a new
leader epoch when it registers. `sparklog reassign` adds replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from msgspec.structs import replace

from sparklog.environment import Environment
from sparklog.environment.files import read_whole
from sparklog.errors import AdoptionRefusedError, StorageUnavailableError
from sparklog.format.checkpoint import META_FILE, DataDirMeta, decode
from sparklog.log.directories.broker_epoch import BROKER_EPOCH_FILE
from sparklog.log.directories.directory_set import DirectorySet
from sparklog.metadata import cluster_znodes as znodes
from sparklog.metadata.coordination import (
    Coordination,
    CoordinationError,
    Create,
    Node,
    NodeExistsError,
    Steps,
)
from sparklog.metadata.local_store import CREATED_TOPICS, METADATA_FILE, open_local, wait_for
from sparklog.replication.cluster_image import NO_LEADER
from sparklog_broker.config import BrokerConfig

COPYING = "/copying"
COPIED_FILE = METADATA_FILE + ".copied"
WRITE_BYTES = 256 * 1024
"""Largest size of the nodes in one transaction, in bytes; ZooKeeper's limit is 1 MiB."""
WRITE_NODES = 500
_OF_ZOOKEEPER = frozenset({"zookeeper"})


def check_not_copying(coordination: Coordination) -> Steps:
    """Raise StorageUnavailableError if a broker is copying its store into ZooKeeper, or died during the copy."""
    node = yield coordination.get(COPYING)
    if node is not None:
        raise StorageUnavailableError(
            f"another broker is copying the metadata of cluster {node.data.decode()} into this ZooKeeper: start this "
            "broker again when the copy is done"
        )


def grow(config: BrokerConfig, coordination: Coordination, environment: Environment) -> bool:
    """Copy the store of the data directory into ZooKeeper. Blocks. Returns True if the store was copied, by this start
    or by an earlier start that did not end. False if the directory has no store. Raises AdoptionRefusedError: ZooKeeper
    has other metadata, or a log directory has failed or belongs to another broker; DataDirLockedError; StorageError;
    StorageUnavailableError."""
    files, store_path = environment.files, config.data_dir / METADATA_FILE
    if not files.exists(store_path):
        return False
    paths = [path.absolute() for path in config.log_dirs] or [config.data_dir]
    directories = DirectorySet(config.data_dir, paths, files, config.broker_id)
    try:
        if directories.failed:
            raise AdoptionRefusedError(f"some log directories have failed: {directories.failed}")
        for path in paths:
            data = read_whole(files, path / META_FILE)
            meta = None if data is None else decode(data, DataDirMeta)
            if meta is not None and meta.broker_id != config.broker_id:
                raise AdoptionRefusedError(
                    f"{path} belongs to broker {meta.broker_id}: start it with --broker-id {meta.broker_id}"
                )
        local = open_local(store_path, environment, create=False, log_dirs=paths)
        try:
            nodes = local.stored()
        finally:
            local.close()
        if _is_to_be_copied(config, coordination, nodes):
            for ops in _parts(_copied(nodes)):
                _create(coordination, ops)
            for path in paths:
                files.remove(path / BROKER_EPOCH_FILE)
                files.sync_directory(path)
            wait_for(coordination.delete(COPYING))
        files.rename(store_path, config.data_dir / COPIED_FILE)
        files.sync_directory(config.data_dir)
    except (CoordinationError, TimeoutError, msgspec.DecodeError) as e:
        raise StorageUnavailableError(f"ZooKeeper cannot be reached or read, start the broker again: {e!r}") from e
    finally:
        directories.unlock()
    return True


def _is_to_be_copied(config: BrokerConfig, coordination: Coordination, nodes: Iterable[Node]) -> bool:
    """Return True if the nodes of the store must be copied to ZooKeeper. The node COPYING exists then: this call
    creates it if it is missing. Return False if an earlier start has copied all nodes. Raises AdoptionRefusedError if
    ZooKeeper has other metadata."""
    own = _cluster_id(node for node in nodes if node.path == znodes.CLUSTER)
    copying = wait_for(coordination.get(COPYING))
    if copying is not None and copying.data.decode() == own:
        return True
    cluster = wait_for(coordination.get(znodes.CLUSTER))
    if copying is None and cluster is not None and _cluster_id([cluster]) == own:
        return False
    others = [name for name in wait_for(coordination.children("/")) if name not in _OF_ZOOKEEPER]
    if others:
        raise AdoptionRefusedError(
            f"{config.data_dir} is the directory of a broker with metadata of its own (cluster {own}), and ZooKeeper at "
            f"{config.zookeeper_connect} is not empty (/{', /'.join(others[:5])}): name an empty path behind zookeeper.connect "
            f"to make the broker the first of a new cluster, or another data directory to join the existing cluster"
        )
    wait_for(coordination.create(COPYING, own.encode()))
    return True


def _cluster_id(nodes: Iterable[Node]) -> str:
    return next(znodes.decode(node.data, znodes.ClusterNode).cluster_id for node in nodes)


def _copied(nodes: Iterable[Node]) -> Iterator[Create]:
    """Return the operations that create the nodes in ZooKeeper. Facts that hold only for a sole broker, such as its
    leaderships, are left out."""
    for node in nodes:
        data = node.data
        if node.path.startswith((f"{znodes.REGISTERED}/", CREATED_TOPICS)):
            continue
        if node.path == znodes.TERMS:
            data = b"[]"
        elif (
            node.path.startswith(f"{znodes.TOPICS}/")
            and node.path.split("/")[3:4] == ["state"]
            and node.path.count("/") == 4
        ):
            partitions = znodes.partitions_in(data)
            data = znodes.chunk_of_partitions(
                replace(p, leader=NO_LEADER, last_leader=p.leader if p.leader != NO_LEADER else p.last_leader)
                for p in partitions
            )
        yield Create(node.path, data)


def _parts(ops: Iterable[Create]) -> Iterator[list[Create]]:
    part: list[Create] = []
    size_bytes = 0
    for op in ops:
        if part and (size_bytes + len(op.data) > WRITE_BYTES or len(part) >= WRITE_NODES):
            yield part
            part, size_bytes = [], 0
        part.append(op)
        size_bytes += len(op.data) + len(op.path)
    if part:
        yield part


def _create(coordination: Coordination, ops: list[Create]) -> None:
    try:
        wait_for(coordination.transaction(ops))
    except NodeExistsError:  # an earlier start has created them
        for op in ops:
            _replace(coordination, op)


def _replace(coordination: Coordination, op: Create) -> None:
    try:
        wait_for(coordination.create(op.path, op.data))
    except NodeExistsError:
        wait_for(coordination.set_data(op.path, op.data))
