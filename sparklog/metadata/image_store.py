"""What a broker of a cluster knows of its topics when it starts: the image in ZooKeeper, as a `MetadataStore`.

Topics are changed through the controller alone, so every change here is refused. Ids of producers and schemas are taken
in blocks from `/ids/<kind>`, whose version makes two brokers that take at once differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from types import MappingProxyType
from typing import Any, NoReturn

import pyarrow as pa

from sparklog.errors import StorageUnavailableError, UnsupportedApiError
from sparklog.format.schema_evolution import SchemaChange
from sparklog.metadata.coordination import (
    BadVersionError,
    Coordination,
    CoordinationError,
    NodeExistsError,
)
from sparklog.metadata.store import ENVELOPE_SCHEMA_ID, Topic, TopicSpec, Unfinished
from sparklog.replication.cluster_image import ClusterImage, TopicImage
from sparklog.security.records import RecordChanges, RecordId

IDS = "/ids"
PRODUCER_IDS = f"{IDS}/producer"
SCHEMA_IDS = f"{IDS}/schema"
TIMEOUT_S = 15.0


def topic_of(image: TopicImage, known: Topic | None = None) -> Topic:
    """The topic as brokers use it. `known`: an older state of it, whose schemas are not decoded again."""
    schemas = {
        i: known.schemas[i] if known is not None and i in known.schemas else _schema(data)
        for i, data in image.schemas.items()
    }
    return Topic(
        name=image.name,
        topic_id=image.topic_id,
        kind=image.kind,
        partitions=len(image.partitions),
        schemas=MappingProxyType(dict(sorted(schemas.items()))),
        key_columns=image.key_columns,
        timestamp_column=image.timestamp_column,
        configs=MappingProxyType(dict(image.configs)),
        created_ms=image.created_ms,
        owner=image.owner,
        request_id=image.request_id,
    )


def image_of(topic: Topic) -> TopicImage:
    """The topic as the controller stores it; it has no partitions yet."""
    return TopicImage(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=(),
        kind=topic.kind,
        key_columns=topic.key_columns,
        timestamp_column=topic.timestamp_column,
        created_ms=topic.created_ms,
        configs=dict(topic.configs),
        schemas={i: schema.serialize().to_pybytes() for i, schema in topic.schemas.items()},
        owner=topic.owner,
        request_id=topic.request_id,
    )


def _schema(data: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(data))


class IdBlocks:
    """Blocks of ids, taken from ZooKeeper. Blocks the calling thread."""

    def __init__(self, coordination: Coordination) -> None:
        self._zk = coordination

    def take(self, path: str, count: int, at_least: int) -> int:
        """The first of `count` ids that nobody else gets, none of them below `at_least`. Raises
        StorageUnavailableError."""
        try:
            while True:
                node = self._wait(self._zk.get(path))
                if node is None:
                    self._make(path)
                    continue
                first = max(int(node.data), at_least)
                try:
                    self._wait(self._zk.set_data(path, b"%d" % (first + count), node.version))
                except BadVersionError:
                    continue
                return first
        except (CoordinationError, TimeoutError) as e:
            raise StorageUnavailableError(f"ZooKeeper cannot be reached to take new ids ({path}): {e}") from e

    def end(self, path: str) -> int:
        """All ids below have been taken. Raises StorageUnavailableError."""
        try:
            node = self._wait(self._zk.get(path))
        except (CoordinationError, TimeoutError) as e:
            raise StorageUnavailableError(f"ZooKeeper cannot be reached: {e}") from e
        return 0 if node is None else int(node.data)

    def _make(self, path: str) -> None:
        for node in (IDS, path):
            try:
                self._wait(self._zk.create(node, b"0"))
            except NodeExistsError:
                continue

    def _wait(self, future: Future[Any]) -> Any:
        return future.result(TIMEOUT_S)


class ImageStore:
    """See the module; a `MetadataStore`."""

    def __init__(self, cluster_id: str, image: ClusterImage, ids: IdBlocks) -> None:
        self._cluster_id = cluster_id
        self._image = image
        self._ids = ids

    def cluster_id(self) -> str:
        return self._cluster_id

    def topics(self) -> dict[str, Topic]:
        """As they were when the broker started."""
        return {name: topic_of(image) for name, image in self._image.topics.items()}

    def create_topic(self, spec: TopicSpec) -> Topic:
        self._refuse()

    def alter_topic(self, name: str, configs: Mapping[str, object | None]) -> Topic:
        self._refuse()

    def add_partitions(self, name: str, total: int) -> Topic:
        self._refuse()

    def delete_topic(self, name: str) -> Topic:
        self._refuse()

    def alter_schema(self, name: str, change: SchemaChange) -> Topic:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise UnsupportedApiError("the topics of a cluster are changed by its controller")

    def security_records(self) -> dict[RecordId, bytes]:
        """As they were when the broker started."""
        return dict(self._image.security)

    def change_security_records(self, changes: RecordChanges) -> None:
        raise UnsupportedApiError("the security records of a cluster are changed by its controller")

    @property
    def is_shared(self) -> bool:
        return True

    def take_producer_ids(self, count: int, at_least: int = 0) -> int:
        """Not below those that logs here have: `at_least` would burn the ids of other brokers otherwise."""
        return self._ids.take(PRODUCER_IDS, count, at_least)

    def producer_ids_end(self) -> int:
        return self._ids.end(PRODUCER_IDS)

    def take_schema_id(self) -> int:
        """For a typed topic's schema; given out once in a cluster's life."""
        return self._ids.take(SCHEMA_IDS, 1, ENVELOPE_SCHEMA_ID + 1)

    def unfinished_topics(self) -> dict[str, Unfinished]:
        """What is here and in no topic of the image is a stray."""
        return {}

    def finish_topics(self, topic_ids: Iterable[str]) -> None:
        """Nothing is ever unfinished."""

    def close(self) -> None:
        """The connection belongs to others."""
