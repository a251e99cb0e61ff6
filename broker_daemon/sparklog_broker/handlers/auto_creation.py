"""Topics that are made because somebody is about to write to them (`auto.create.topics.enable`)."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from sparklog.errors import InvalidRequestError, InvalidTopicError, TopicAlreadyExistsError
from sparklog.metadata.store import TopicSpec
from sparklog.protocol.topic_messages import AUTO_CREATED_MAX
from sparklog.types import INTERNAL_PREFIX, check_topic_name
from sparklog_broker.broker import Broker

log = logging.getLogger(__name__)


async def create_missing(broker: Broker, topics: Sequence[str] | None) -> None:
    """Makes those of `topics` that do not exist and may be made, as envelope topics: nothing says which columns others
    would have. Raises InvalidRequestError if they are too many, StorageFullError, StorageError."""
    if topics is None or len(topics) > AUTO_CREATED_MAX:
        raise InvalidRequestError(f"create_missing needs 1 to {AUTO_CREATED_MAX} topics by name")
    if not broker.config.auto_create_topics_enable:
        return
    for name in topics:
        if name not in broker.partitions.topics and _may_be_made(name):
            try:
                await broker.topics.create(TopicSpec(name, broker.config.num_partitions))
            except TopicAlreadyExistsError:
                continue  # somebody else was quicker
            log.info("topic %s was made because somebody writes to it (auto.create.topics.enable)", name)


def _may_be_made(name: str) -> bool:
    """Whether it is a topic's name, and none that looks like one of the broker's own topics."""
    try:
        check_topic_name(name)
    except InvalidTopicError:
        return False
    return not name.startswith(INTERNAL_PREFIX)
