"""Notes in a sole broker's metadata store of the topics whose directories exist (`CREATED_TOPICS`).

A crash can come between the creation of a topic and that of its directories. The next start expects a directory that is
noted, and creates any other one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence

from sparklog.metadata.coordination import Coordination, CoordinationError, Create, Delete, Op, SetData
from sparklog.metadata.local_store import CREATED_TOPICS
from sparklog.metadata.store import Topic
from sparklog.replication.cluster_image import ClusterImage, TopicImage
from sparklog_broker.cluster.controller_client import done

log = logging.getLogger(__name__)

NOTE_BATCH_S = 0.5
"""Time in s for which created topics are collected, so that one transaction notes all of them."""


class CreatedTopics:
    """The `ImageRecord` of a sole broker, whose store has every image already. Event-loop thread only."""

    def __init__(self, coordination: Coordination, loop: asyncio.AbstractEventLoop, created: Mapping[str, int]) -> None:
        """`created`: the notes from before this start, by topic id: number of created partitions."""
        self._zk = coordination
        self._loop = loop
        self._earlier_topics = tuple(created)
        self._noted = dict(created)
        self._unsaved: dict[str, int] = {}
        """By topic id: number of created partitions that the store does not have yet."""
        self._saving: asyncio.Task[None] | None = None

    @property
    def topics_put_aside(self) -> Sequence[str]:
        """Always empty: the broker's own store loses no topic."""
        return ()

    def follow(self, image: ClusterImage, absent: Iterable[TopicImage]) -> None:
        """Do nothing: the image is from this broker's own store."""

    def on_created(self, topic: Topic) -> None:
        """Note soon that the directories of all partitions of a topic exist."""
        self._unsaved[topic.topic_id] = topic.partitions
        if self._saving is None or self._saving.done():
            self._saving = self._loop.create_task(self._save_batches())

    def on_joined(self) -> None:
        """Delete the notes from before this start: from now on the leader epochs show that the directories exist."""
        if self._earlier_topics:
            self._zk.transaction([Delete(f"{CREATED_TOPICS}/{topic_id}") for topic_id in self._earlier_topics])
            self._noted.clear()

    async def _save_batches(self) -> None:
        while self._unsaved:
            await asyncio.sleep(NOTE_BATCH_S)
            await self._save()

    async def _save(self) -> None:
        batch, self._unsaved = self._unsaved, {}
        ops: list[Op] = []
        for topic_id, partitions in batch.items():
            path, data = f"{CREATED_TOPICS}/{topic_id}", b"%d" % partitions
            ops.append(SetData(path, data) if topic_id in self._noted else Create(path, data))
        try:
            await done(self._zk.transaction(ops))
        except CoordinationError as e:
            log.warning("the store does not say that the directories of %d topics have been made: %s", len(batch), e)
        else:
            self._noted |= batch

    async def stop(self) -> None:
        """Write the last notes."""
        if self._saving is not None:
            self._saving.cancel()
            await asyncio.gather(self._saving, return_exceptions=True)
        if self._unsaved:
            await self._save()
