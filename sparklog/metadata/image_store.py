"""Conversion of topics between the brokers' form (`Topic`) and the image's form (`TopicImage`); blocks of ids.

Ids of producers and schemas are taken in blocks from `/ids/<kind>`. If two brokers take a block at the same time, the
node's version lets one broker write; the other broker reads the node again.
"""

from __future__ import annotations

from concurrent.futures import Future
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from sparklog.errors import StorageUnavailableError
from sparklog.metadata.cluster_znodes import IDS, PRODUCER_IDS, SCHEMA_IDS
from sparklog.metadata.coordination import (
    BadVersionError,
    Coordination,
    CoordinationError,
    NodeExistsError,
    StoreWriteError,
)
from sparklog.metadata.store import ENVELOPE_SCHEMA_ID, Topic
from sparklog.replication.cluster_image import TopicImage

TIMEOUT_S = 15.0


def topic_of(image: TopicImage, earlier: Topic | None = None) -> Topic:
    """Return the topic in the brokers' form. `earlier` is an older state of the topic; its schemas are reused."""
    schemas = {
        i: earlier.schemas[i] if earlier is not None and i in earlier.schemas else _schema(data)
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
        first_leader_epoch=image.first_leader_epoch,
    )


def image_of(topic: Topic) -> TopicImage:
    """Return the topic in the image's form, without partitions."""
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
        first_leader_epoch=topic.first_leader_epoch,
    )


def _schema(data: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(data))


class IdBlocks:
    """Takes blocks of ids from the store. The calls block their thread, at most TIMEOUT_S for each reply."""

    def __init__(self, coordination: Coordination) -> None:
        self._zk = coordination

    def take(self, path: str, count: int, at_least: int) -> int:
        """Take `count` consecutive ids that no other broker gets, none of them below `at_least`, and return the first.

        Raises StorageUnavailableError, StorageError, StorageFullError."""
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
        except StoreWriteError as e:
            raise e.reason from e
        except (CoordinationError, TimeoutError) as e:
            raise StorageUnavailableError(f"cannot reserve new ids in ZooKeeper ({path}): {e}") from e

    def take_producer_ids(self, count: int, at_least: int = 0) -> int:
        """Take `count` producer ids as `take` does, and return the first. Raises the errors of `take`."""
        return self.take(PRODUCER_IDS, count, at_least)

    def take_schema_id(self) -> int:
        """Take one schema id, which no other broker gets, and return it. Raises the errors of `take`."""
        return self.take(SCHEMA_IDS, 1, ENVELOPE_SCHEMA_ID + 1)

    def producer_ids_end(self) -> int:
        """Return the lowest producer id that no broker has taken. Raises StorageUnavailableError."""
        return self.end(PRODUCER_IDS)

    def end(self, path: str) -> int:
        """Return the lowest id of `path` that no broker has taken. Raises StorageUnavailableError."""
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
