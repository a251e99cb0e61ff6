"""Deserialization of the keys and values of records, up to the first record that fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sparklog.errors import DeserializationError
from sparklog.types import Record, TopicPartition

Convert = Callable[[str, bytes], Any]


class RecordDeserializer:
    """The deserializers of keys and values, as `sparklog.serialization.deserializing` gives them; None leaves keys or
    values as bytes."""

    def __init__(self, key: Convert | None, value: Convert | None) -> None:
        self._key = key
        self._value = value

    def records(self, records: Sequence[Record]) -> list[Record]:
        """Return the deserialized records before the first one that fails. Raises DeserializationError if the first
        record fails."""
        converted: list[Record] = []
        for record in records:
            try:
                converted.append(self._deserialize_record(record))
            except DeserializationError:
                if not converted:
                    raise
                break
        return converted

    def _deserialize_record(self, record: Record) -> Record:
        """Deserialize a record. Values of typed topics are dicts already."""
        key, value = record.key, record.value
        if self._key is not None and key is not None:
            key = self._convert(self._key, key, "key", record)
        if self._value is not None and isinstance(value, bytes):
            value = self._convert(self._value, value, "value", record)
        return record._replace(key=key, value=value)

    @staticmethod
    def _convert(convert: Convert, data: bytes, part: str, record: Record) -> Any:
        try:
            return convert(record.topic, data)
        except Exception as e:
            tp = TopicPartition(record.topic, record.partition)
            raise DeserializationError(
                f"{tp}: the {part} at offset {record.offset} cannot be deserialized ({type(e).__name__}: {e}); "
                f"seek(error.partition, error.offset + 1) continues behind it",
                partition=tp,
                offset=record.offset,
                record=record,
            ) from e
