"""Messages for the records of Kafka's clients that a typed topic refuses, which become rows of its refused topic.

Only gateways send the request for their clients, and brokers to the leader of the refused topic's partition.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from sparklog.protocol.base import Message, Name, Partition, ThrottleMs

STORED_BYTES_MAX = 12 * 1024 * 1024
"""Largest batch of a request in bytes."""


class StoreRefusedRequest(Message):
    """Create the refused topic of `topic` unless it exists, and append a batch to it. `partition`: that of the topic.
    `batch`: rows of refused records; empty: nothing is appended. `is_forwarded`: the sender
    is a broker that does not lead the partition."""

    topic: Name
    partition: Partition
    batch: Annotated[bytes, Meta(max_length=STORED_BYTES_MAX)] = b""
    is_forwarded: bool = False


class StoreRefusedResponse(Message):
    """`schema_id`: the id that batches of the refused topic have. `has_append_time`: True if its batches have the type
    of timestamps LogAppendTime."""

    schema_id: int = -1
    has_append_time: bool = False
    throttle_ms: ThrottleMs = 0
