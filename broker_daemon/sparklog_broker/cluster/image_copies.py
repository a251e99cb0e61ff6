"""The copy of the newest image in the data directory (`sparklog.metadata.image_copy`), and the topics whose files this
broker has put aside.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from sparklog.environment.files import FileSystem
from sparklog.errors import SparklogError
from sparklog.metadata.image_copy import ImageCopy, write_copy
from sparklog.metadata.store import Topic
from sparklog.replication.cluster_image import ClusterImage, TopicImage
from sparklog_broker.config import BrokerConfig
from sparklog_broker.partitions.storage import Storage

log = logging.getLogger(__name__)

WRITE_EVERY_S = 1.0


class ImageCopies:
    """The `ImageRecord` of a broker with ZooKeeper, which keeps the copy up to date. A change is written at once, but
    at the earliest WRITE_EVERY_S after the last write. Event-loop thread only."""

    def __init__(
        self,
        config: BrokerConfig,
        loop: asyncio.AbstractEventLoop,
        files: FileSystem,
        storage: Storage,
        put_aside: Mapping[str, TopicImage],
    ) -> None:
        self._config = config
        self._loop = loop
        self._files = files
        self._storage = storage
        self.put_aside = dict(put_aside)
        """Topics that were put aside, by topic id; see ImageCopy."""
        self._image = ClusterImage()
        self._timer: asyncio.TimerHandle | None = None
        self._is_changed = self._is_stopped = False

    @property
    def topics_put_aside(self) -> Sequence[str]:
        """Names of the topics in `put_aside`."""
        return sorted(topic.name for topic in self.put_aside.values())

    def on_created(self, topic: Topic) -> None:
        """Do nothing: a missing directory is created again at the next start, and the replica copied."""

    def on_joined(self) -> None:
        """Do nothing: the copy is written with the first image."""

    def follow(self, image: ClusterImage, absent: Iterable[TopicImage]) -> None:
        """Note that the broker has applied `image`, which lacks the topics `absent` without an order to delete them."""
        self.put_aside |= {topic.topic_id: topic for topic in absent}
        present = {topic.topic_id for topic in image.topics.values()}
        for topic_id in [i for i in self.put_aside if i in present or i in image.deleted]:
            del self.put_aside[topic_id]
        self._image, self._is_changed = image, True
        if self._timer is None:
            self._write()

    def _write(self) -> None:
        self._timer = None
        if not self._is_changed:
            return
        self._is_changed = False
        copy = ImageCopy(self._storage.cluster_id, self._image, dict(self.put_aside))
        self._timer = self._loop.call_later(WRITE_EVERY_S, self._write)
        self._storage.run(partial(self._write_now, copy)).add_done_callback(self._on_written)

    def _write_now(self, copy: ImageCopy) -> None:
        write_copy(self._files, self._config.data_dir, copy)

    def _on_written(self, writing: asyncio.Future[None]) -> None:
        error = None if writing.cancelled() else writing.exception()
        if isinstance(error, SparklogError):
            self._is_changed = True
            if self._timer is None and not self._is_stopped:
                self._timer = self._loop.call_later(WRITE_EVERY_S, self._write)
            log.warning("the copy of the cluster's metadata could not be written and will be retried: %s", error)

    async def stop(self) -> None:
        """Write the last changes."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        self._write()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._storage.run(lambda: None)
