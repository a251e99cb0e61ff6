"""Names and numbers in requests: their limits, and the errors for those that nothing can have.

The errors are not retriable, so that clients end their attempts.
"""

from __future__ import annotations

from functools import lru_cache
from uuid import UUID

from sparklog.errors import InvalidTopicError
from sparklog.kafka.wire.errors import Kafka
from sparklog.protocol.base import PARTITIONS_PER_TOPIC_MAX
from sparklog.types import check_topic_name

GROUP_ID_CHARS_MAX = 249
TRANSACTIONAL_ID_CHARS_MAX = 1_024
UNNAMED = ""
"""Name of a topic whose id no topic has. No topic can have this name."""
_NAMES_KEPT = 10_000


@lru_cache(_NAMES_KEPT)
def is_topic_name(name: str) -> bool:
    """Return True if a topic can have the name."""
    try:
        check_topic_name(name)
    except InvalidTopicError:
        return False
    return True


def is_partition(name: str, partition: int) -> bool:
    """Return True if topic name and partition number are within the limits of the protocol."""
    return 0 <= partition < PARTITIONS_PER_TOPIC_MAX and is_topic_name(name)


def missing_code(name: str, topic_id: UUID | None = None) -> Kafka:
    """Return the error for a partition about which the broker was not asked. After INVALID_TOPIC_EXCEPTION a client
    ends its attempts, after the others it asks again. `topic_id`: the id in the request; None: it has the name."""
    if topic_id is not None and name == UNNAMED:
        return Kafka.UNKNOWN_TOPIC_ID
    return Kafka.UNKNOWN_TOPIC_OR_PARTITION if is_topic_name(name) else Kafka.INVALID_TOPIC_EXCEPTION


def is_group_id(text: str) -> bool:
    """Return True if a group can have the id."""
    return 0 < len(text) <= GROUP_ID_CHARS_MAX


def is_transactional_id(text: str) -> bool:
    """Return True if a transactional producer can have the id."""
    return 0 < len(text) <= TRANSACTIONAL_ID_CHARS_MAX
