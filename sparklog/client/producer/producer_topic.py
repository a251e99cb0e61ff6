"""A producer's state of a topic, and the checks of `send` for records that are more than a value of bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.producer.accumulator import PartitionQueue
from sparklog.client.producer.open_batch import Rest
from sparklog.client.producer.partitioner import StickyPartition, partition_for_key
from sparklog.client.producer.record_sizes import ENVELOPE_FIXED_BYTES_MAX, ROW_OVERHEAD_BYTES
from sparklog.client.producer.rows import Headers, without_key
from sparklog.errors import SerializationError
from sparklog.types import whole_number

Serialize = Callable[[str, Any], bytes | None]

KEY_CACHE_ENTRIES_MAX = 65_536
KEY_CACHE_KEY_BYTES_MAX = 128


class ProducerTopic:
    """A topic's queues, limits and partitions. `takes_values_alone`: True if `send` needs no `checked` for a record
    that has only a value of bytes."""

    __slots__ = (
        "info",
        "key_partitions",
        "max_bytes",
        "queues",
        "sticky",
        "takes_values_alone",
        "target_bytes",
    )

    def __init__(self, info: TopicInfo, batch_size_bytes: int, queues: list[PartitionQueue]) -> None:
        self.info = info
        self.takes_values_alone = info.is_envelope and not info.is_compacted
        self.queues = queues
        self.sticky = StickyPartition(info.partitions)
        self.max_bytes = info.max_message_bytes
        self.target_bytes = max(1, min(batch_size_bytes, self.max_bytes - ENVELOPE_FIXED_BYTES_MAX))
        self.key_partitions: dict[bytes, int] = {}

    def partition_of(self, key: bytes) -> int:
        """Return the key's partition, and remember it for short keys: hashing costs more than all the rest of a
        send."""
        if self.info.partitions == 1:
            return 0
        partition = partition_for_key(key, self.info.partitions)
        if len(key) <= KEY_CACHE_KEY_BYTES_MAX:
            if len(self.key_partitions) >= KEY_CACHE_ENTRIES_MAX:
                self.key_partitions.clear()
            self.key_partitions[key] = partition
        return partition

    def checked(
        self, value: Any, key: Any, headers: Any, timestamp_ms: Any, partition: int | None
    ) -> tuple[bytes | None, int, int | None, Rest | None]:
        """Return the value, the record's approximate size in bytes, its partition (None: sticky), and its parts besides
        the value.

        Raises TypeError, ValueError, SchemaMismatchError, InvalidPartitionsError.
        """
        if not self.takes_values_alone:
            self._check_kind(key)
        if value is not None and value.__class__ is not bytes:
            value = _as_bytes(value, "value")
        if key is not None and key.__class__ is not bytes:
            key = _as_bytes(key, "key")
        size = ROW_OVERHEAD_BYTES
        if value is not None:
            size += len(value)
        if key is not None:
            size += len(key)
            if partition is None:
                partition = self.key_partitions.get(key)
                if partition is None:
                    partition = self.partition_of(key)
            else:
                partition = self.info.check_partition(partition)
        elif partition is not None:
            partition = self.info.check_partition(partition)
        if headers is not None:
            headers = _checked_headers(headers)
            size += sum(16 + len(name) + (len(content) if content else 0) for name, content in headers)
        if timestamp_ms is not None:
            timestamp_ms = _check_timestamp(timestamp_ms)
        rest = (key, headers, timestamp_ms) if key is not None or headers or timestamp_ms is not None else None
        return value, size, partition, rest

    def _check_kind(self, key: Any) -> None:
        """Raise SchemaMismatchError unless the topic takes a record with this key."""
        if key is None and self.info.is_compacted:
            raise without_key(self.info.name, 0)


class SerializingTopic(ProducerTopic):
    """The topic state of a producer with serializers; producers without serializers do not use this class."""

    __slots__ = ("_key_serializer", "_value_serializer")

    def __init__(
        self,
        info: TopicInfo,
        batch_size_bytes: int,
        queues: list[PartitionQueue],
        key_serializer: Serialize | None,
        value_serializer: Serialize | None,
    ) -> None:
        super().__init__(info, batch_size_bytes, queues)
        self.takes_values_alone = False  # so that every record is `checked`
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer

    def checked(
        self, value: Any, key: Any, headers: Any, timestamp_ms: Any, partition: int | None
    ) -> tuple[bytes | None, int, int | None, Rest | None]:
        """Serialize the record, then check it as `ProducerTopic.checked`. Raises SerializationError, too."""
        if key is not None and self._key_serializer is not None:
            key = self._serialize(self._key_serializer, key, "key")
        if value is not None and self._value_serializer is not None:
            value = self._serialize(self._value_serializer, value, "value")
        return super().checked(value, key, headers, timestamp_ms, partition)

    def _serialize(self, serialize: Serialize, content: Any, part: str) -> bytes | None:
        try:
            return _as_bytes(serialize(self.info.name, content), f"the result of the {part} serializer")
        except Exception as e:
            raise SerializationError(
                f"a {part} for topic {self.info.name!r} cannot be serialized ({type(e).__name__}: {e})"
            ) from e


def _checked_headers(headers: Any) -> Headers:
    if not isinstance(headers, Sequence) or isinstance(headers, str | bytes):
        raise TypeError('headers must be a list of (str, bytes) pairs, for example [("source", b"web")]')
    return [_check_header(h) for h in headers]


def _check_header(header: Any) -> tuple[str, bytes | None]:
    if not isinstance(header, Sequence) or len(header) != 2 or not isinstance(header[0], str):
        raise TypeError(f"a header must be a (str, bytes) pair, not {header!r}")
    return header[0], _as_bytes(header[1], "a header's value")


def _check_timestamp(timestamp_ms: Any) -> int:
    number = whole_number(timestamp_ms)
    if number is None:
        raise TypeError(f"timestamp_ms must be an int (milliseconds since 1970), not {type(timestamp_ms).__name__}")
    if not 0 <= number < 2**53:
        raise ValueError(f"timestamp_ms = {timestamp_ms} is out of bounds")
    return number


def _as_bytes(content: Any, subject: str) -> bytes | None:
    if content is None or type(content) is bytes:
        return content
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    if isinstance(content, Mapping):
        raise TypeError(
            f"{subject} must be bytes, not {type(content).__name__}: this topic has no columns; encode it as in "
            "json.dumps(value).encode(), or create the topic with a schema, whose rows are dicts"
        )
    raise TypeError(f"{subject} must be bytes, not {type(content).__name__}: encode it, for example text.encode()")
