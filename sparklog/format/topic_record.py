"""topic.json, in the directory of a topic's partition 0: the topic as the metadata store has it, so that a lost store
can be rebuilt. One JSON object, written whole (temporary file, fsync, rename, fsync of the directory) after each change
of the topic::

    {"topic": {…}, "crc32c": "89abcdef", "version": 1}

``topic`` has the fields of `TopicRecord`. ``crc32c`` is the checksum, in hexadecimal, of the JSON of ``topic``. A topic
without an owner has no field ``owner``, so that files of brokers without this field stay valid.

If the file and the store differ, the store is right. If the file is lost or damaged, the broker writes it again at its
next start.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from sparklog.format.checkpoint import decode, encode
from sparklog.format.checksum import crc32c

TOPIC_FILE = "topic.json"


class TopicRecord(Struct, frozen=True, omit_defaults=True):
    """A topic. A field that has its default is neither in the file nor in the checksum."""

    name: str
    topic_id: str
    kind: str
    partitions: int
    schemas: dict[int, bytes]
    """Arrow IPC schema messages by schema id; base64 in the file."""
    key_columns: list[str]
    timestamp_column: str | None
    configs: dict[str, int | float | str | bool]
    created_ms: int
    owner: str = ""
    """The user that created the topic; "" if not known."""
    first_leader_epoch: int = 0
    """Leader epoch in which the topic's partitions began."""


class _Content(Struct, frozen=True):
    topic: TopicRecord
    crc32c: str
    version: int = 1


def _checksum(record: TopicRecord) -> str:
    value: int = crc32c(msgspec.json.encode(record))
    return f"{value:08x}"


def encode_topic(record: TopicRecord) -> bytes:
    """Return the content of topic.json, with its checksum."""
    return encode(_Content(record, _checksum(record)))


def decode_topic(data: bytes) -> TopicRecord | None:
    """Return the topic, or None if the file is damaged."""
    content = decode(data, _Content)
    return content.topic if content is not None and content.crc32c == _checksum(content.topic) else None
