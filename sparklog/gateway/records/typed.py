"""Records of typed topics, both ways: JSON objects, or records in Confluent's framing by `kafka.value.format`.

`sparklog.format.json_exact` has the rules for values, which are those of all doors for text; bytes are base64, and
decimals are written as text. A field that is no column, or a value that does not fit its column, is an error of the
record. `kafka/values/keys.py` and `typed_keys.py` have the rules of keys. A typed topic has no place for headers.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.producer.row_keys import keys_of_rows
from sparklog.errors import MessageTooLargeError, SchemaMismatchError
from sparklog.format.batch import ATTRIBUTE_LOG_APPEND_TIME, BatchHeader, assign_producer, encode_batch
from sparklog.format.envelope_layout import no_keys_and_headers
from sparklog.format.json_rows import SLICE_ROWS
from sparklog.format.key_format import SCHEMA_FORMATS
from sparklog.format.schema import ENVELOPE_SCHEMA, TIMESTAMP_TYPE, timestamp_bounds_ms
from sparklog.gateway.records.memory import JSON_BYTES_MAX, JSON_PIECE_BYTES
from sparklog.gateway.records.refused import ConvertedBatch, refused_records
from sparklog.gateway.records.to_broker import batch_attributes, check_head, stored_compression
from sparklog.gateway.records.typed_keys import check_partition, empty_rows, without_tombstones
from sparklog.kafka.records import compression
from sparklog.kafka.records.batch_v2 import BatchV2
from sparklog.kafka.records.decode import decode_records
from sparklog.kafka.records.errors import InvalidRecordError, places
from sparklog.kafka.values.fitting import ReadRows, fitting_rows
from sparklog.kafka.values.framed_keys import read_keys, write_keys
from sparklog.kafka.values.framed_records import FRAMED_FORMATS, Target, rows_of_framed
from sparklog.kafka.values.framed_rows import check_forms, write_framed
from sparklog.kafka.values.header_ids import framed_parts
from sparklog.kafka.values.json_records import parse_rows, write_rows
from sparklog.kafka.values.keys import Parse, values_to_parse, with_keys
from sparklog.kafka.values.rows_at_fault import UnwritableRowError
from sparklog.kafka.values.schemas import KeySchemaMissingError, Schemas, value_subject

JSON_PER_BYTE_MAX = 6
"""Largest number of bytes of JSON for a byte of text: a control character is \\u0000."""


def is_framed(topic: TopicInfo) -> bool:
    """Return True if the topic's records have schemas. They are converted on threads only: a schema of thousands of
    fields takes long for a single record."""
    return not topic.is_envelope and (topic.value_format in FRAMED_FORMATS or topic.key_format in SCHEMA_FORMATS)


def typed_batch(
    head: BatchV2,
    data: memoryview,
    topic: TopicInfo,
    inflated_bytes_max: int,
    partition: int,
    schemas: Schemas,
    *,
    fault: str = "",
) -> ConvertedBatch:
    """Return the batch in the broker's format, and the records that go to the refused topic. Arguments and errors are
    those of `broker_batch`, but `topic` is a typed topic. `partition`: the partition to which the client has sent the
    batch. `schemas`: those of the registry. `fault`: reason why no record fits the topic. Raises SchemasNotLoadedError,
    too."""
    check_head(head)
    raw: Any = data if head.codec == compression.NONE else compression.decompress(head.codec, data, inflated_bytes_max)
    envelope = decode_records(raw, head.record_count, head.base_timestamp_ms)
    del raw  # the records are copies
    read = _rows_reader(topic, partition, schemas, inflated_bytes_max) if not fault else _no_reader(fault)
    try:
        return ConvertedBatch(_encoded(_all_rows(envelope, topic, schemas, read), head, topic), head.record_count)
    except InvalidRecordError as e:
        if not topic.has_refused_topic:
            raise
        faults = e.records
    read_headers = partial(framed_parts, value_format=topic.value_format, schemas=schemas) if is_framed(topic) else None
    fitting = fitting_rows(
        envelope, topic, read, bytes_max=inflated_bytes_max, read_headers=read_headers, faults=faults
    )
    if fitting.converted < head.record_count:
        raise MessageTooLargeError(
            f"the rows of {head.record_count} records, and the reasons of {len(fitting.refused)} refused ones, take more "
            f"than {inflated_bytes_max} bytes: send smaller batches"
        )
    refused = refused_records(topic.name, envelope, fitting.refused) if fitting.refused else None
    return ConvertedBatch(_encoded(fitting.rows, head, topic), head.record_count, refused)


def _rows_reader(topic: TopicInfo, partition: int, schemas: Schemas, rows_bytes_max: int) -> ReadRows:
    parse_keys = key_parser(topic, schemas, rows_bytes_max)

    def read(keys: Any, values: Any) -> pa.RecordBatch:
        rows = with_keys(_rows_of_values(keys, values, topic, schemas, rows_bytes_max), keys, topic, parse_keys)
        check_partition(rows, topic, partition)
        if topic.value_format in FRAMED_FORMATS:
            check_forms(rows, values, _target(topic), schemas, JSON_BYTES_MAX)
        return rows

    return read


def _no_reader(fault: str) -> ReadRows:
    """Return a function that refuses all records for one reason."""

    def refuse(keys: Any, values: Any) -> pa.RecordBatch:
        raise InvalidRecordError(dict.fromkeys(range(len(values)), fault))

    return refuse


def _all_rows(envelope: pa.RecordBatch, topic: TopicInfo, schemas: Schemas, read: ReadRows) -> pa.RecordBatch:
    """Return the rows of all records. Raises InvalidRecordError if one does not fit."""
    keys, values, headers = envelope.column(0), envelope.column(1), envelope.column(2)
    if headers.null_count < len(headers):
        has_headers = headers.is_valid()
        if is_framed(topic):
            keys, values, remain = framed_parts(keys, values, headers, topic, topic.value_format, schemas)
            has_headers = pa.array(remain)
        if pc.any(has_headers).as_py():
            raise InvalidRecordError(
                {
                    i: f"record {i} has headers: the typed topic {topic.name!r} has no place for them"
                    for i in places(has_headers)
                }
            )
    return read(keys, values)


def _encoded(rows: pa.RecordBatch, head: BatchV2, topic: TopicInfo) -> memoryview:
    """Return the batch of some rows, which spans the offsets of all records of the client's batch."""
    default_ms = head.max_timestamp_ms
    low = high = default_ms
    if topic.timestamp_column is not None and rows.num_rows:
        low, high = timestamp_bounds_ms(rows.column(topic.schema.get_field_index(topic.timestamp_column)), default_ms)
    payload = encode_batch(
        rows,
        schema_id=topic.schema_id,
        min_timestamp_ms=low,
        max_timestamp_ms=high,
        compression=stored_compression(head, topic),
        attributes=batch_attributes(head, topic),
        last_offset_delta=head.record_count - 1,
        checksum=False,
    )
    assign_producer(
        payload,
        producer_id=head.producer_id,
        producer_epoch=head.producer_epoch,
        base_sequence=head.base_sequence,
        transactional=head.is_transactional,
    )
    return payload


def _rows_of_values(keys: Any, values: Any, topic: TopicInfo, schemas: Schemas, rows_bytes_max: int) -> pa.RecordBatch:
    """Return the rows of the values, by the topic's format. Raises as `typed_batch`."""
    if topic.value_format in FRAMED_FORMATS:
        return rows_of_framed(keys, values, topic, topic.value_format, schemas, rows_bytes_max)
    return parse_rows(values_to_parse(keys, values, topic), topic.schema, topic.name, rows_bytes_max)


def key_parser(topic: TopicInfo, schemas: Schemas, rows_bytes_max: int) -> Parse:
    """Return the function that parses the keys of records."""
    if topic.key_format not in SCHEMA_FORMATS:
        return parse_rows
    return lambda keys, columns, _: read_keys(keys, columns, topic, schemas, rows_bytes_max)


def _target(topic: TopicInfo) -> Target:
    return Target(topic.name, topic.value_format, topic.schema, value_subject(topic.name))


class TypedRows:
    """Converter from a typed topic's rows into envelope rows with values in the topic's format; a `Rows` function."""

    def __init__(self, topic: TopicInfo, schemas: Schemas) -> None:
        self._topic = topic
        self._schemas = schemas

    def __call__(self, rows: pa.RecordBatch, header: BatchHeader) -> pa.RecordBatch:
        """Convert the first rows of a batch: all, or as many as have about JSON_PIECE_BYTES of values. Raises
        MessageTooLargeError if the first row has more than JSON_BYTES_MAX; UnwritableRowError if its schema does not
        allow it; SchemaMismatchError; SchemasNotLoadedError."""
        parts: list[tuple[Any, Any]] = []
        step = max(1, min(SLICE_ROWS, JSON_PIECE_BYTES * rows.num_rows // (JSON_PER_BYTE_MAX * max(rows.nbytes, 1))))
        done = size = 0
        while done < rows.num_rows and size < JSON_PIECE_BYTES:
            try:
                part = self._encode(rows.slice(done, step))
            except UnwritableRowError as e:
                if not e.row and not done:
                    raise
                if not e.row:
                    break
                rows = rows.slice(0, done + e.row)  # those before it
                continue
            part_bytes = sum(column.nbytes for column in part if column is not None)
            if part_bytes > JSON_BYTES_MAX:
                if step > 1:
                    step = 1
                    continue
                if not done:
                    form = self._topic.value_format.replace("json", "JSON")
                    raise MessageTooLargeError(
                        f"a row of topic {self._topic.name!r} has {part_bytes} bytes of {form}, at most {JSON_BYTES_MAX} "
                        "are answered: read it with a client of sparklog, or begin behind it"
                    )
                break
            parts.append(part)
            size += part_bytes
            done += len(part[1])
        rows = rows.slice(0, done)
        keys, no_headers = no_keys_and_headers(rows.num_rows)
        if self._topic.key_columns:
            keys = pa.concat_arrays([keys for keys, _ in parts])
        values = pa.concat_arrays([values for _, values in parts])
        return pa.RecordBatch.from_arrays(
            [keys, values, no_headers, self._timestamps(rows, header)], schema=ENVELOPE_SCHEMA
        )

    def _encode(self, rows: pa.RecordBatch) -> tuple[Any, Any]:
        """Return the keys and the values of some rows. The keys are None if the topic has no key columns."""
        topic = self._topic
        keys = self._keys([rows.column(name) for name in topic.key_columns]) if topic.key_columns else None
        if topic.value_format in FRAMED_FORMATS:
            is_empty = empty_rows(rows, topic.key_columns)
            return keys, write_framed(rows, is_empty, _target(topic), self._schemas, JSON_BYTES_MAX)
        return keys, without_tombstones(write_rows(rows), rows, topic)

    def _keys(self, columns: list[Any]) -> Any:
        topic = self._topic
        if topic.key_format not in SCHEMA_FORMATS:
            return keys_of_rows(columns, topic)
        try:
            return write_keys(columns, topic, self._schemas)
        except KeySchemaMissingError as e:
            raise SchemaMismatchError(str(e)) from None

    def _timestamps(self, rows: pa.RecordBatch, header: BatchHeader) -> Any:
        column = self._topic.timestamp_column
        default_ms = header.append_time_ms if header.attributes & ATTRIBUTE_LOG_APPEND_TIME else header.max_timestamp_ms
        fill = pa.scalar(default_ms * 1000, pa.int64()).cast(TIMESTAMP_TYPE)
        index = -1 if column is None else rows.schema.get_field_index(column)
        if index < 0 or header.attributes & ATTRIBUTE_LOG_APPEND_TIME:
            stamps = np.full(rows.num_rows, default_ms * 1000, np.int64)
            return pa.Array.from_buffers(TIMESTAMP_TYPE, rows.num_rows, [None, pa.py_buffer(stamps)])
        stored = rows.column(index)
        stored = stored.cast(pa.timestamp("us"), safe=False).cast(pa.int64()).cast(TIMESTAMP_TYPE)
        return stored.fill_null(fill) if stored.null_count else stored
