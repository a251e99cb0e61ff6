"""Topics: made, altered and deleted, and what follows from that for the partitions that are served."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from msgspec.structs import replace

from sparklog.errors import SparklogError, TopicAlreadyExistsError, UnknownTopicOrPartitionError
from sparklog.format.schema_evolution import SchemaChange
from sparklog.metadata.store import Topic, TopicSpec, Unfinished
from sparklog_broker.background.background import Background
from sparklog_broker.network.pace import Pace
from sparklog_broker.partitions.partition import Partition
from sparklog_broker.partitions.partitions import Partitions
from sparklog_broker.partitions.storage import Storage
from sparklog_broker.partitions.topic_owners import TopicOwners

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


def _to_its_end(change: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Makes a change in a task of its own, which goes on when the one that waits for it is cancelled."""

    @wraps(change)
    async def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.shield(asyncio.create_task(change(*args, **kwargs)))

    return run


class Topics:
    """Event-loop thread only. A change that has begun is made to its end, also when the client that asked goes away:
    what is in the store has to appear here."""

    def __init__(self, storage: Storage, partitions: Partitions, background: Background, pace: Pace) -> None:
        self.partitions = partitions
        self._storage = storage
        self._files = storage.topic_files
        self._background = background
        self._pace = pace
        self.owners: TopicOwners | None = None
        """Who owns how many; None: nothing is limited."""

    @_to_its_end
    async def create(self, spec: TopicSpec) -> Topic:
        """Raises TopicAlreadyExistsError, PolicyViolationError (its owner has too many), Invalid…Error,
        StorageError; then there is nothing of the topic."""
        there = self.partitions.topics.get(spec.name)
        if there is not None and there.is_made_by(spec.request_id):
            return there
        if there is not None:
            raise exists(spec.name)
        with self._room_for(spec.owner, 1, spec.partitions):
            topic = await self._storage.run(lambda: self._files.create(spec))
            self.partitions.add(topic, await self._pace.list_of(self.partitions.opened(topic)))
        self._storage.run(lambda: self._files.finish({topic.topic_id: Unfinished.MAKING}))
        log.info("created topic %s: %s, %d partitions", topic.name, topic.kind, topic.partitions)
        return topic

    @_to_its_end
    async def alter_schema(self, name: str, change: SchemaChange) -> Topic:
        """The topic with its newest schema, which every partition takes from now on.

        Raises UnknownTopicOrPartitionError, InvalidTopicError, StorageError; then nothing has changed.
        """
        topic = await self._storage.run(lambda: self._files.alter_schema(name, change))
        known = self._known(topic)
        if topic.schema_id > known.schema_id:
            # a batch with the new schema must find it, so the logs know it before any client does; partitions that are
            # just being added get it when they are served
            self.partitions.use_schemas(replace(known, schemas=topic.schemas))
            log.info("topic %s has schema %d now", name, topic.schema_id)
        return self.partitions.topics[name]

    @_to_its_end
    async def alter(self, name: str, configs: Mapping[str, object | None]) -> Topic:
        """The topic with changed settings (None: the default again), which are in effect at once.

        Raises UnknownTopicOrPartitionError, InvalidConfigError, StorageError.
        """
        topic = await self._storage.run(lambda: self._files.alter_configs(name, configs))
        altered = self.partitions.topics[name] = replace(self._known(topic), configs=topic.configs)
        log.info("topic %s altered: %s", name, ", ".join(f"{k}={v}" for k, v in configs.items()))
        self._background.retention.run_soon()
        self._background.cleaner.run_soon()
        self._background.tierer.run_soon()
        return altered

    @_to_its_end
    async def add_partitions(self, name: str, total: int) -> Topic:
        """The topic with `total` partitions, which can be written and read at once.

        Raises UnknownTopicOrPartitionError, InvalidPartitionsError, PolicyViolationError (its owner has too many),
        StorageFullError, StorageError; then it has as many as before.
        """
        there = self.partitions.topics.get(name)
        more = 0 if there is None else max(0, total - there.partitions)
        with self._room_for(there.owner if there is not None else "", 0, more):
            return await self._add_partitions(name, total)

    async def _add_partitions(self, name: str, total: int) -> Topic:
        topic, before = await self._storage.run(lambda: self._files.add_partitions(name, total))
        added = await self._pace.list_of(self.partitions.opened(topic, before))
        known = self._known(topic)
        for partition in added:  # the topic may have got a newer schema since they were made
            partition.use_schemas(known.schemas.__getitem__, known.schema_id)
        self.partitions.grow(replace(known, partitions=max(known.partitions, total)), added)
        log.info("topic %s has %d partitions now, it had %d", name, total, before)
        return self.partitions.topics[name]

    @_to_its_end
    async def delete(self, name: str, topic_id: str = "") -> str:
        """The id of the topic that was; who waits for its data is told. `topic_id`: only the topic that has this id.
        Raises UnknownTopicOrPartitionError, StorageError."""
        if (there := self.partitions.topics.get(name)) is not None:
            check_id(there, topic_id)
        topic = await self._storage.run(lambda: self._files.delete(name))
        # Gone for clients from here on; another of this name can be created once the admin thread has moved the files.
        gone = self.partitions.remove(topic)
        await self._pace.list_of(partition.on_deleted() for partition in gone)
        await self._storage.run(lambda: self._files.delete_files(topic))
        self._background.tierer.run_soon()
        log.info("deleted topic %s", name)
        self._storage.run(self._storage.logs.purge_deleted).add_done_callback(_log_failure)
        return topic.topic_id

    async def delete_records(self, deletions: Sequence[tuple[Partition, int]]) -> list[int | SparklogError]:
        """Deletes each partition's records below an offset (-1: all); its log start, now on the disk, or the error."""
        logs = [(partition.log, before_offset) for partition, before_offset in deletions]
        done = await asyncio.shield(self._storage.run(lambda: self._files.delete_records(logs)))
        for partition, _ in deletions:
            partition.on_log_start_raised()
        self._background.retention.run_soon()
        return done

    def _room_for(self, owner: str, topics: int, partitions: int) -> AbstractContextManager[None]:
        """Raises PolicyViolationError when it is entered."""
        return nullcontext() if self.owners is None else self.owners.room_for(owner, topics, partitions)

    def _known(self, topic: Topic) -> Topic:
        """The topic as it is served. Raises UnknownTopicOrPartitionError."""
        known = self.partitions.topics.get(topic.name)
        if known is None or known.topic_id != topic.topic_id:
            raise UnknownTopicOrPartitionError(f"topic {topic.name!r} was deleted meanwhile")
        return known


def exists(name: str) -> TopicAlreadyExistsError:
    return TopicAlreadyExistsError(f"topic {name!r} exists already; delete it or choose another name")


def check_id(topic: Topic, topic_id: str) -> None:
    """Raises UnknownTopicOrPartitionError if the topic is another one than is asked for ("": whichever)."""
    if topic_id not in ("", topic.topic_id):
        raise UnknownTopicOrPartitionError(
            f"there is no topic {topic.name!r} with the id {topic_id}: another one has the name"
        )


def _log_failure(purging: asyncio.Future[int]) -> None:
    error = None if purging.cancelled() else purging.exception()
    if error is not None:
        log.error("deleted files could not be unlinked, the next background run tries again: %s", error)
