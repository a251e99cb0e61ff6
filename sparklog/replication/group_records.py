"""The records of `__consumer_offsets`: the state that a group coordinator needs after a restart.

Keys and values are MessagePack arrays; the first element is the version (0). A record without a value deletes its key.
All records of one group are in one partition, so one batch changes several of them together.

| key | value | meaning |
|---|---|---|
| [0, 0, group, topic, partition] | [0, offset, leader epoch, metadata, commit time ms, topic id] | a committed offset |
| [0, 1, group] | [0, epoch, assignor, empty since ms, {topic: [id, partitions]}] | the group, and its target's topics |
| [0, 2, group, member] | [0, instance, client, host, topics, assignor, rebalance ms, session ms, regex, …] | member |
| [0, 3, group, member] | [0, {topic: [partition, …]}] | the member's target |
| [0, 4, group, member] | [0, epoch, previous epoch, owned {…}, to be released {…}] | the member's partitions |

The CRC of a batch covers its records. Offsets of a transaction are in a transactional batch, and take effect when a
marker commits it. If a file of this topic is lost, so are its groups' offsets: members join again, and read from the
position of `auto.offset.reset`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from sparklog.errors import LogCorruptError
from sparklog.types import TopicPartition

VERSION = 0
KIND_OFFSET, KIND_GROUP, KIND_MEMBER, KIND_TARGET, KIND_CURRENT = range(5)

Record = tuple[bytes, bytes | None]
"""Key and value as stored; a value of None deletes the key."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class OffsetValue(NamedTuple):
    """A committed offset. `topic_id` is the id of the partition's topic; for a later topic of the same name the offset
    is void."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    topic_id: str


class GroupValue(NamedTuple):
    """A group that has, or had, members. `topics`: by name, the topic id and the number of partitions from which the
    target was computed. `empty_since_ms`: time since which the group has no members, in ms; -1 if it has members."""

    epoch: int
    assignor: str
    empty_since_ms: int
    topics: dict[str, tuple[str, int]]


class MemberValue(NamedTuple):
    """A member's requested subscription."""

    instance_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    assignor: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    """Session timeout that the member has requested, in ms; 0: the group's."""
    topic_regex: str = ""
    """Regular expression of further topics; "": none."""
    regex_topics: tuple[str, ...] = ()
    """The topics that matched `topic_regex` when it was last resolved."""

    @property
    def subscribed(self) -> set[str]:
        """The names of all topics to which the member subscribes."""
        return {*self.topics, *self.regex_topics}


class CurrentValue(NamedTuple):
    """A member's progress towards its target. The member has been told to release the partitions in `revoking`."""

    epoch: int
    previous_epoch: int
    owned: frozenset[TopicPartition]
    revoking: frozenset[TopicPartition]


class DecodedKey(NamedTuple):
    """The key of a record. Only kinds 2 to 4 have a `member_id`, only kind 0 a `partition`."""

    kind: int
    group_id: str
    member_id: str = ""
    partition: TopicPartition | None = None


def offset_key(group_id: str, tp: TopicPartition) -> bytes:
    return _encode((VERSION, KIND_OFFSET, group_id, tp.topic, tp.partition))


def group_key(group_id: str) -> bytes:
    return _encode((VERSION, KIND_GROUP, group_id))


def member_key(kind: int, group_id: str, member_id: str) -> bytes:
    return _encode((VERSION, kind, group_id, member_id))


def encode_value(value: OffsetValue | GroupValue | MemberValue) -> bytes:
    return _encode((VERSION, *value))


def encode_target(partitions: Iterable[TopicPartition]) -> bytes:
    return _encode((VERSION, by_topic(partitions)))


def encode_current(value: CurrentValue) -> bytes:
    owned, revoking = by_topic(value.owned), by_topic(value.revoking)
    return _encode((VERSION, value.epoch, value.previous_epoch, owned, revoking))


def decode_key(key: bytes) -> DecodedKey:
    """Decode a record's key. Raises LogCorruptError."""
    try:
        version, kind, group_id, *rest = _decode(key)
        if version == VERSION:
            if kind == KIND_OFFSET:
                return DecodedKey(kind, group_id, partition=TopicPartition(rest[0], rest[1]))
            return DecodedKey(kind, group_id, *rest)
    except (msgspec.DecodeError, ValueError, TypeError, IndexError) as e:
        raise LogCorruptError(f"a key of the group coordinator's log cannot be read: {key!r}") from e
    raise LogCorruptError(f"a record of the group coordinator's log has version {version}, this broker reads {VERSION}")


def decode_value(kind: int, value: bytes) -> Any:
    """Decode a value whose key has `kind`, to an OffsetValue, GroupValue, MemberValue, frozenset of partitions, or
    CurrentValue.

    Raises LogCorruptError.
    """
    try:
        version, *fields = _decode(value)
        if version != VERSION:
            raise ValueError(f"version {version}")
        if kind == KIND_OFFSET:
            return OffsetValue(*fields)
        if kind == KIND_GROUP:
            epoch, assignor, empty_since_ms, topics = fields
            return GroupValue(epoch, assignor, empty_since_ms, {t: (i, n) for t, (i, n) in topics.items()})
        if kind == KIND_MEMBER:
            wish = MemberValue(*fields)
            return wish._replace(topics=tuple(wish.topics), regex_topics=tuple(wish.regex_topics))
        if kind == KIND_TARGET:
            return _partitions(fields[0])
        epoch, previous_epoch, owned, revoking = fields
        return CurrentValue(epoch, previous_epoch, _partitions(owned), _partitions(revoking))
    except (msgspec.DecodeError, ValueError, TypeError, IndexError, AttributeError) as e:
        raise LogCorruptError(f"a value of the group coordinator's log cannot be read ({e}): {value!r}") from e


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the partition numbers by topic, sorted."""
    numbers: dict[str, list[int]] = {}
    for tp in sorted(partitions):
        numbers.setdefault(tp.topic, []).append(tp.partition)
    return numbers


def _partitions(topics: dict[str, list[int]]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(t, p) for t, numbers in topics.items() for p in numbers)
