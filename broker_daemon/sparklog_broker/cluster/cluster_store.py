"""The cluster's metadata store, which a broker opens before its logs: in its data directory, or in ZooKeeper."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from sparklog.environment import Environment
from sparklog.errors import StorageUnavailableError
from sparklog.log.housekeeping.log_manager import LogManager
from sparklog.metadata import cluster_znodes as znodes
from sparklog.metadata.coordination import ConnectionLossError, Coordination, CoordinationError, Steps
from sparklog.metadata.image_copy import ImageCopy, read_copy
from sparklog.metadata.image_store import IdBlocks, topic_of
from sparklog.metadata.local_coordination import LocalCoordination
from sparklog.metadata.local_store import METADATA_FILE, open_local, read_created_topics, read_image, take_epochs
from sparklog.metadata.store import Topic
from sparklog.metadata.store_history import older, read_mark
from sparklog.replication.cluster_image import ClusterImage, TopicImage
from sparklog_broker.cluster.controller_client import done
from sparklog_broker.cluster.created_topics import CreatedTopics
from sparklog_broker.cluster.growth import check_not_copying
from sparklog_broker.cluster.image_copies import ImageCopies
from sparklog_broker.config import BrokerConfig
from sparklog_broker.counters.replication import SessionCounters
from sparklog_broker.partitions.storage import ClusterMetadata, Storage
from sparklog_broker.partitions.topic_directories import WasCreated, is_here, was_created

READ_ATTEMPTS = 5
"""Number of attempts to read the store at the start, while the connection to ZooKeeper breaks."""


class ImageRecord(Protocol):
    """The durable notes of a broker about the images that it has applied. Event-loop thread only."""

    @property
    def topics_put_aside(self) -> Sequence[str]:
        """Names of topics whose files this broker has put aside, because an image lacked them."""
        ...

    def follow(self, image: ClusterImage, absent: Iterable[TopicImage]) -> None:
        """Note that the broker has applied `image`, which lacks the topics `absent` without an order to delete them."""
        ...

    def on_created(self, topic: Topic) -> None:
        """Note that the directories of all partitions of a topic exist on this broker."""
        ...

    def on_joined(self) -> None:
        """Note that the broker has joined its cluster."""
        ...

    async def stop(self) -> None:
        """Write the last notes."""
        ...


class ClusterStore(Protocol):
    """The open store. Its methods are the differences between a sole broker and a broker with ZooKeeper."""

    @property
    def coordination(self) -> Coordination: ...

    @property
    def image(self) -> ClusterImage:
        """The image that was read from the store. It has no brokers."""
        ...

    @property
    def metadata(self) -> ClusterMetadata: ...

    @property
    def session(self) -> SessionCounters | None:
        """Counters of the ZooKeeper session; None without ZooKeeper."""
        ...

    @property
    def image_for_election(self) -> ClusterImage | None:
        """The image that this broker's controller can begin with, if no controller has written since; None to read the
        store again."""
        ...

    def take_epochs(self, logs: LogManager) -> None:
        """Raise the stored leader epochs to those of the logs. Blocks. Raises StorageError, StorageFullError."""
        ...

    def record(
        self, config: BrokerConfig, loop: asyncio.AbstractEventLoop, environment: Environment, storage: Storage
    ) -> ImageRecord:
        """Return the record of applied images."""
        ...

    def close(self) -> None:
        """End the session, which removes the broker's registration. Blocks."""
        ...


class LocalStore:
    """The store of a sole broker, in metadata.db of its data directory."""

    session = None

    def __init__(
        self,
        coordination: LocalCoordination,
        cluster_id: str,
        image: ClusterImage,
        created: Mapping[str, int],
        broker_id: int,
    ) -> None:
        """`created`: from `read_created_topics`."""
        self.coordination = coordination
        self.image = image
        self.metadata = _metadata(coordination, cluster_id, image, broker_id, was_created(image, created))
        self._created = created

    @classmethod
    def open(cls, config: BrokerConfig, environment: Environment, *, create: bool) -> LocalStore:
        """Open the store in the data directory. `create`: True to create a missing store. Blocks. Raises StorageError,
        StorageFullError.
        """
        path = config.data_dir / METADATA_FILE
        log_dirs = config.log_dirs or [config.data_dir]
        coordination = open_local(path, environment, create=create, log_dirs=log_dirs)
        try:
            cluster_id, image = read_image(coordination, path)
            created = read_created_topics(coordination)
            return cls(coordination, cluster_id, image, created, config.broker_id)
        except BaseException:
            coordination.close()
            raise

    @property
    def image_for_election(self) -> ClusterImage | None:
        return self.image

    def take_epochs(self, logs: LogManager) -> None:
        """Raise the leader epochs in metadata.db to those of the logs. A partition's epoch is lower in metadata.db if
        that file was restored from an older copy. Blocks. Raises StorageError, StorageFullError.
        """
        epochs = {tp: partition_log.leader_epoch for tp, partition_log in logs.table.logs.items()}
        self.image = take_epochs(self.coordination, self.image, epochs)

    def record(
        self, config: BrokerConfig, loop: asyncio.AbstractEventLoop, environment: Environment, storage: Storage
    ) -> CreatedTopics:
        return CreatedTopics(self.coordination, loop, self._created)

    def close(self) -> None:
        self.coordination.close()


class ZooKeeperStore:
    """The store of a cluster, in ZooKeeper."""

    image_for_election = None

    def __init__(
        self,
        coordination: Coordination,
        cluster_id: str,
        image: ClusterImage,
        put_aside: Mapping[str, TopicImage],
        broker_id: int,
    ) -> None:
        """`put_aside`: by topic id, the topics whose files this broker has put aside."""
        self.coordination = coordination
        self.image = image
        self.metadata = _metadata(coordination, cluster_id, image, broker_id)
        self.session = SessionCounters()
        coordination.listen(self.session.on_state)
        self._put_aside = put_aside

    @classmethod
    async def read(cls, coordination: Coordination, config: BrokerConfig, environment: Environment) -> ZooKeeperStore:
        """Read the stored metadata, and create the base nodes in an empty store. Raises StorageUnavailableError, also
        if the store is older than this broker's newest image, or has another cluster's metadata. Raises StorageError if
        the data directory cannot be read.
        """
        copy = read_copy(environment.files, config.data_dir)
        for remaining in reversed(range(READ_ATTEMPTS)):
            try:
                cluster_id, image = await _read(coordination, config, environment, copy)
                break
            except (CoordinationError, msgspec.DecodeError) as e:
                # a busy machine can lose the connection that it has just made; the client connects again by itself
                if not isinstance(e, ConnectionLossError) or not remaining:
                    raise StorageUnavailableError(f"the cluster's metadata in ZooKeeper cannot be read: {e!r}") from e
        put_aside = {} if copy is None else {**copy.put_aside, **_absent(copy.image, image)}
        return cls(coordination, cluster_id, image, put_aside, config.broker_id)

    def take_epochs(self, logs: LogManager) -> None:
        """Do nothing: the store's epochs are those of the whole cluster."""

    def record(
        self, config: BrokerConfig, loop: asyncio.AbstractEventLoop, environment: Environment, storage: Storage
    ) -> ImageCopies:
        return ImageCopies(config, loop, environment.files, storage, self._put_aside)

    def close(self) -> None:
        self.coordination.close()


def _metadata(
    coordination: Coordination, cluster_id: str, image: ClusterImage, broker_id: int, created: WasCreated | None = None
) -> ClusterMetadata:
    """Return the metadata for the start. `created`: as for `partition_specs`, of a sole broker; None with ZooKeeper."""
    return ClusterMetadata(
        cluster_id,
        {name: topic_of(topic) for name, topic in image.topics.items()},
        image.security,
        IdBlocks(coordination),
        is_here(image, broker_id),
        created is not None,
        created,
    )


def _absent(before: ClusterImage, after: ClusterImage) -> dict[str, TopicImage]:
    """Return by topic id the topics of `before` that `after` lacks without an order to delete them."""
    kept = {topic.topic_id for topic in after.topics.values()} | after.deleted.keys()
    return {topic.topic_id: topic for topic in before.topics.values() if topic.topic_id not in kept}


async def _read(
    coordination: Coordination, config: BrokerConfig, environment: Environment, copy: ImageCopy | None
) -> tuple[str, ClusterImage]:
    """Return the cluster's id and its metadata; the base nodes are created in an empty store. `copy`: this broker's
    newest image. Raises as `ZooKeeperStore.read`, and CoordinationError."""
    await _perform(check_not_copying(coordination))
    mark = await _perform(read_mark(coordination))
    if copy is not None and mark.cluster_id not in ("", copy.mark.cluster_id):
        raise StorageUnavailableError(
            f"{config.data_dir} belongs to broker {config.broker_id} of cluster {copy.mark.cluster_id}, and "
            f"ZooKeeper at {config.zookeeper_connect} has cluster {mark.cluster_id}: name the zookeeper.connect of "
            "the directory's cluster, or another data directory"
        )
    reason = "" if copy is None else older(mark, copy.mark)
    if reason:
        raise StorageUnavailableError(
            f"ZooKeeper's data at {config.zookeeper_connect} are older than this broker's copy"
            f" ({reason}). With them it would lose records. Restore a newer copy of ZooKeeper's data, or "
            f"write back what the brokers know: sparklog cluster restore-metadata --data-dir {config.data_dir} "
            f"--zookeeper {config.zookeeper_connect}"
        )
    await _perform(znodes.make_base(coordination))
    cluster_id = await _perform(znodes.take_cluster_id(coordination, environment.randomness.new_id()))
    epoch = await done(coordination.get(znodes.CONTROLLER_EPOCH))
    assert epoch is not None, "made above"
    image = await _perform(znodes.load_image(coordination, int(epoch.data), epoch.mzxid, epoch.version))
    return cluster_id, image


async def _perform(steps: Steps) -> Any:
    """Run the steps on the event loop, and return their result. Raises their errors."""
    send: Callable[[], Any] = lambda: next(steps)  # noqa: E731
    while True:
        try:
            waiting = send()
        except StopIteration as e:
            return e.value
        try:
            if isinstance(waiting, list):
                result: Any = [await done(future) for future in waiting]
            else:
                result = await done(waiting)
        except CoordinationError as e:
            send = partial(steps.throw, e)
        else:
            send = partial(steps.send, result)
