"""Subscriptions and assignments that members of classic groups write for one another, in the form of consumers."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from sparklog.errors import InvalidRequestError
from sparklog.gateway.groups.model import Member
from sparklog.kafka.wire.codec import decoder, encoder
from sparklog.kafka.wire.schema import DATA, messages
from sparklog.protocol.base import PARTITIONS_PER_TOPIC_MAX
from sparklog.protocol.group_messages import TopicPartitions

CONSUMER = "consumer"
"""Type of the protocol of groups whose members are consumers. Members of other types, such as those of Kafka Connect,
write other data."""
_VERSION = struct.Struct(">h")
_SUBSCRIPTION, _ASSIGNMENT = "ConsumerProtocolSubscription", "ConsumerProtocolAssignment"


class Subscription(NamedTuple):
    """A consumer's topics, and the partitions that it reads during a rebalance. Only cooperative consumers read any."""

    topics: list[str]
    owned: list[TopicPartitions]


def decode_subscription(metadata: bytes) -> Subscription:
    """Decode a consumer's subscription; newer versions only append fields. Raises InvalidRequestError."""
    if len(metadata) < _VERSION.size:
        raise InvalidRequestError("a subscription without a version")
    (version,) = _VERSION.unpack_from(metadata)
    if version < 0:
        raise InvalidRequestError(f"a subscription of version {version}")
    readable = min(version, messages()[DATA, _SUBSCRIPTION].versions.last)
    body = decoder(DATA, _SUBSCRIPTION, readable)(memoryview(metadata)[_VERSION.size :])
    owned = [
        TopicPartitions(t["topic"], sorted({p for p in t["partitions"] if 0 <= p < PARTITIONS_PER_TOPIC_MAX}))
        for t in body.get("owned_partitions", ())
    ]
    return Subscription(list(dict.fromkeys(body["topics"])), [t for t in owned if t.partitions])


def reads_partitions(member: Member) -> bool:
    """Return True if a member names partitions that it still reads, in one of its subscriptions."""
    for _, metadata in member.protocols:
        with suppress(InvalidRequestError):  # another member has to read it, not the gateway
            if decode_subscription(metadata).owned:
                return True
    return False


def encode_subscription(topics: Sequence[str]) -> bytes:
    """Return a subscription to topics in the first version."""
    return _VERSION.pack(0) + b"".join(encoder(DATA, _SUBSCRIPTION, 0)({"topics": topics}))


def encode_assignment(partitions: Sequence[TopicPartitions]) -> bytes:
    """Return an assignment in the first version."""
    body = {"assigned_partitions": [{"topic": t.topic, "partitions": t.partitions} for t in partitions]}
    return _VERSION.pack(0) + b"".join(encoder(DATA, _ASSIGNMENT, 0)(body))
