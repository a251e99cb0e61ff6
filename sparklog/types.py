"""Small value types shared by every layer."""

from __future__ import annotations

import operator
import re
from typing import Any, NamedTuple

from sparklog.errors import InvalidTopicError

EARLIEST_TIMESTAMP = -2
"""Look-up of `list_offsets`: the first offset that can still be read."""
LATEST_TIMESTAMP = -1
"""Look-up of `list_offsets`: the offset after the last record that can be read, by the look-up's isolation level."""
MAX_TIMESTAMP = -3
"""Look-up of `list_offsets`: the offset of the record with the largest timestamp."""

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
"""Isolation of a read: all records up to the high watermark; or only records of committed transactions and records
outside of transactions, up to the last stable offset."""
ISOLATION_LEVELS = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}
"""The values of `isolation.level`."""

TRANSACTION_STATE_TOPIC = "__transaction_state"
CONSUMER_OFFSETS_TOPIC = "__consumer_offsets"
SCHEMAS_TOPIC = "__schemas"
INTERNAL_PREFIX = "__"
"""Prefix of the names of the broker's own topics."""
INTERNAL_TOPICS = frozenset({TRANSACTION_STATE_TOPIC, CONSUMER_OFFSETS_TOPIC, SCHEMAS_TOPIC})
"""Topics that the broker keeps. Clients can only read them."""
PRODUCER_ID_END = 2**62
"""Upper bound of the producer ids that are issued one by one. Larger producer ids contain a proof of their owner
(`sparklog.security.owned_ids`). A fencing token that is not below the bound is forged."""
SHARED_PREFIX = "__shared:"
"""Prefix of the transactional ids of shared transactions. No other transactional id must begin with it."""
FENCING_TOKENS_ID = "__fencing_tokens"
"""Transactional id whose coordinator issues the fencing tokens of a cluster. No producer uses it."""
UNNAMED_APP_PREFIX = "__unnamed:"
"""Prefix of the names of applications that run only one shared transaction. The coordinator forgets such an application
soon after its transaction.
"""
EARLIEST_LOCAL_TIMESTAMP = -4
"""Look-up of `list_offsets`: the first offset that can be read without the object store (KIP-405)."""
LATEST_TIERED_TIMESTAMP = -5
"""Look-up of `list_offsets`: the last offset in the object store; -1 if it holds none (KIP-1005)."""

TOPIC_NAME_CHARS_MAX = 249
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")


class TopicPartition(NamedTuple):
    """A topic's name and a partition number, as Kafka's `TopicPartition`."""

    topic: str
    """Name of the topic."""
    partition: int
    """Number of the partition, from 0."""

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class ProducerIdAndEpoch(NamedTuple):
    """The identity of a producer at the broker. Sequence numbers begin at 0 for each identity."""

    producer_id: int
    """Number of the producer."""
    producer_epoch: int
    """Number of the producer's incarnation."""


class RecordMetadata(NamedTuple):
    """The place of a stored record: the result of a producer's future."""

    topic: str
    """Name of the topic."""
    partition: int
    """Number of the partition."""
    offset: int
    """Offset of the record; -1 with acks=0."""
    timestamp_ms: int
    """Stored timestamp in ms since 1970."""


class Record(NamedTuple):
    """One record of a topic, as `Consumer.poll` returns it."""

    topic: str
    """Name of the topic."""
    partition: int
    """Number of the partition."""
    offset: int
    """Offset of the record in its partition."""
    timestamp_ms: int
    """Stored timestamp in ms since 1970."""
    key: Any
    """The key: bytes, or the result of the consumer's key deserializer; None for a record without a key."""
    value: Any
    """The value: bytes, or the result of the value deserializer; None for a tombstone. For a typed topic a dict of its
    columns."""
    headers: list[tuple[str, bytes | None]]
    """Pairs of a name and bytes or None; empty for a record without headers."""

    @property
    def timestamp(self) -> int:
        """`timestamp_ms` under the name that kafka-python has for it."""
        return self.timestamp_ms


class OffsetAndTimestamp(NamedTuple):
    """The result of an offset look-up."""

    offset: int
    """The offset; -1 if nothing matches."""
    timestamp_ms: int
    """Timestamp of the record at the offset, in ms since 1970; -1 if nothing matches, and for a look-up of "earliest",
    "latest", "earliest_local" or "latest_tiered"."""


class OffsetAndMetadata(NamedTuple):
    """A committed offset of a consumer group."""

    offset: int
    """Offset of the next record to read."""
    metadata: str = ""
    """Note of the client that commits, at most 4,096 characters; None counts as an empty note."""
    leader_epoch: int = -1
    """Leader epoch of the last consumed record; -1: not known."""


class GroupMetadata(NamedTuple):
    """The identity of a consumer in its group, for `Producer.send_offsets_to_transaction`."""

    group_id: str
    """Name of the group."""
    member_id: str = ""
    """Id of the member; empty outside a membership."""
    member_epoch: int = -1
    """Epoch of the member; -1 outside a membership."""
    instance_id: str | None = None
    """The `group.instance.id` of a static member; None: no static membership."""


def whole_number(value: Any) -> int | None:
    """Return a whole number of any library as an int. `value`: an int, a NumPy integer, or another object with
    `__index__`. A bool is not a number here."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def shared_transactional_id(app_id: str) -> str:
    """Return the transactional id of a shared transaction, which its participants name in produce requests.

    Args:
        app_id: Name of the application.

    Returns:
        The transactional id.
    """
    return SHARED_PREFIX + app_id


def check_topic_name(name: str) -> str:
    """Return `name` if it is a valid topic name by Kafka's rule; the name becomes part of a path.

    Args:
        name: The name to check.

    Returns:
        The same name.

    Raises:
        InvalidTopicError: The name is empty, too long, or has other characters than letters, digits, '.', '_' and '-'.
    """
    if not isinstance(name, str) or name in ("", ".", ".."):
        raise InvalidTopicError(f"a topic cannot be named {name!r}")
    if len(name) > TOPIC_NAME_CHARS_MAX:
        raise InvalidTopicError(f"topic name has {len(name)} characters; at most {TOPIC_NAME_CHARS_MAX} are allowed")
    if not _TOPIC_NAME.fullmatch(name):
        raise InvalidTopicError(f"topic name {name!r}: only letters, digits, '.', '_' and '-' are allowed")
    return name
