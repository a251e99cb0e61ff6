"""Small value types shared by every layer."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from sparklog.errors import InvalidTopicError

EARLIEST_TIMESTAMP = -2
"""Asked of `list_offsets`: the first offset that can still be read."""
LATEST_TIMESTAMP = -1
"""Asked of `list_offsets`: the offset the next record will get (bounded by the high watermark)."""
MAX_TIMESTAMP = -3
"""Asked of `list_offsets`: the offset of the record with the largest timestamp."""

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
"""Isolation of a read: up to the high watermark, or only what is decided, without what was aborted."""
ISOLATION_LEVELS = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}
"""The values of `isolation.level`."""

TRANSACTION_STATE_TOPIC = "__transaction_state"
CONSUMER_OFFSETS_TOPIC = "__consumer_offsets"
INTERNAL_PREFIX = "__"
"""Names of topics that look like the broker's own begin so."""
INTERNAL_TOPICS = frozenset({TRANSACTION_STATE_TOPIC, CONSUMER_OFFSETS_TOPIC})
"""Kept by the broker: clients may read them, nothing else."""
PRODUCER_ID_END = 2**62
"""Producer ids are given out one by one: no number can be as large. Ids that are say whose they are
(`sparklog.security.owned_ids`); a fencing token that is, wherever it is found, is an invention."""
SHARED_PREFIX = "__shared:"
"""Transactional ids of shared transactions begin so; no other may."""
FENCING_TOKENS_ID = "__fencing_tokens"
"""Whoever coordinates this transactional id, which nobody uses, gives out the fencing tokens of a cluster."""
UNNAMED_APP_PREFIX = "__unnamed:"
"""Applications of shared transactions whose name nobody uses again: forgotten soon after their only transaction."""
EARLIEST_LOCAL_TIMESTAMP = -4
"""Asked of `list_offsets`: the first offset that can be read without the object store (KIP-405)."""
LATEST_TIERED_TIMESTAMP = -5
"""Asked of `list_offsets`: the last offset that is in the object store, -1 if there is none (KIP-1005)."""

TOPIC_NAME_CHARS_MAX = 249
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")


class TopicPartition(NamedTuple):
    """A topic's name and a partition number, as Kafka's `TopicPartition`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class ProducerIdAndEpoch(NamedTuple):
    """Who writes, and which of its incarnations: what the broker knows a producer by. Sequences begin at 0 with
    each."""

    producer_id: int
    producer_epoch: int


class RecordMetadata(NamedTuple):
    """Where a record landed: what a producer's future gives. `timestamp_ms` is the stored timestamp."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class Record(NamedTuple):
    """One record of an envelope topic (or, of a typed topic, `value` is a dict of its columns). `key` and `value` are
    bytes or None, or what the consumer's deserializers make of them."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: Any
    value: Any
    headers: list[tuple[str, bytes | None]]

    @property
    def timestamp(self) -> int:
        """`timestamp_ms` under the name that kafka-python has for it."""
        return self.timestamp_ms


class OffsetAndTimestamp(NamedTuple):
    """Answer of a lookup: `offset` -1 and `timestamp_ms` -1 when nothing matches."""

    offset: int
    timestamp_ms: int


class OffsetAndMetadata(NamedTuple):
    """A committed offset: the next one to read. `metadata` is whatever the committer noted (4096 characters at most;
    None is taken for no note), `leader_epoch` -1: not known."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class GroupMetadata(NamedTuple):
    """Who a consumer is in its group; what `Producer.send_offsets_to_transaction` needs. `member_epoch` -1: no
    member."""

    group_id: str
    member_id: str = ""
    member_epoch: int = -1
    instance_id: str | None = None


def shared_transactional_id(app_id: str) -> str:
    """What participants of a shared transaction name in their produce requests."""
    return SHARED_PREFIX + app_id


def check_topic_name(name: str) -> str:
    """Returns `name` if it can be a topic's name (Kafka's rule; it becomes part of a path).

    Raises InvalidTopicError.
    """
    if not isinstance(name, str) or name in ("", ".", ".."):
        raise InvalidTopicError(f"a topic cannot be named {name!r}")
    if len(name) > TOPIC_NAME_CHARS_MAX:
        raise InvalidTopicError(f"topic name has {len(name)} characters; at most {TOPIC_NAME_CHARS_MAX} are allowed")
    if not _TOPIC_NAME.fullmatch(name):
        raise InvalidTopicError(f"topic name {name!r}: only letters, digits, '.', '_' and '-' are allowed")
    return name
