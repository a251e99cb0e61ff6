"""Rows of typed topics that come one by one with `send`: checked at the call, turned into columns with their batch.

A row whose values have usual classes is checked by a function for its schema (`row_check`). Other rows are fitted to
the topic as `send_batch` fits tables, which takes about 100 times as long and raises the error if the row is wrong.
Rows with decimals and nested values are always fitted in this way.
"""

from __future__ import annotations

import copy
import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.producer.accumulator import PartitionQueue
from sparklog.client.producer.producer_topic import KEY_CACHE_ENTRIES_MAX, ProducerTopic, Serialize, SerializingTopic
from sparklog.client.producer.record_sizes import HEADER_BYTES
from sparklog.client.producer.row_keys import row_hash
from sparklog.client.producer.rows import rows_of
from sparklog.errors import SchemaMismatchError
from sparklog.format.column_names import shown_names
from sparklog.format.schema import NO_PYTHON_OBJECT

if TYPE_CHECKING:
    from sparklog.client.producer.open_batch import OpenBatch

COLUMN_BYTES = 256
"""Largest number of bytes of a column in a batch besides its values: its description, and the rounding of its
buffers."""
FIXED_BYTES = 17
"""Largest number of bytes of a value of a fixed width: 16, and its validity."""
TEXT_BYTES = 9
"""Largest number of bytes of a text or of bytes besides its content: an offset, and its validity."""
_EXACT = {32: 2**24, 64: 2**53}
"""Whole numbers up to these are floating-point numbers of so many bits. Larger ones are fitted."""
_FLOAT_MAX = float(np.finfo(np.float32).max)

Row = tuple[Any, ...]
"""A row: its values in the order of the columns, and last the schema by which they were checked. The rows of one batch
can have several schemas."""
Check = Callable[[dict[Any, Any]], "tuple[Row, int] | None"]
"""Returns a copy of a row and its approximate size in bytes; None if the row has to be fitted."""


def row_check(schema: pa.Schema) -> Check:
    """Return a function that checks and copies rows whose values have usual classes.

    The function is compiled for the schema. It takes 0.3 µs for a row of three columns and 0.5 µs for eight. A table of
    the checks for each combination of classes takes 0.8 and 1.1 µs, and msgspec more than 2 µs. All of `send` takes
    about 1.5 µs. The source contains only positions, bounds, and the names of columns as `repr` writes them.
    """
    names: dict[str, Any] = {"date": dt.date, "datetime": dt.datetime, "timedelta": dt.timedelta, "double": np.float64}
    names |= {"schema": schema, "complete": _completion(schema)}
    variable = sum(pa.types.is_string(t) or pa.types.is_binary(t) for t in schema.types)
    fixed_bytes = FIXED_BYTES * len(schema) + (TEXT_BYTES - FIXED_BYTES) * variable
    body = [f"if len(value) != {len(schema)}: value = complete(value)", f"size = {fixed_bytes}", "try:"]
    body += [f"    v{i} = value[{name!r}]" for i, name in enumerate(schema.names)]
    body += ["except KeyError: return None"]
    for i, field in enumerate(schema):
        keyword = "if"
        for condition, then in (*_usual_values(f"v{i}", field.type), (f"v{i} is None", "pass")):
            body.append(f"{keyword} {condition}: {then}")
            keyword = "elif"
        body.append("else: return None")
    body += [f"return ({', '.join(f'v{i}' for i in range(len(schema)))}, schema), size"]
    exec("\n    ".join(["def check(value):", *body]), names)
    return cast("Check", names["check"])


def _completion(schema: pa.Schema) -> Callable[[dict[Any, Any]], dict[Any, Any]]:
    """Return a function that returns a row with null for the columns that it lacks, and an empty dict if it has other
    columns."""
    nulls = dict.fromkeys(schema.names)
    return lambda value: {**nulls, **value} if value.keys() <= nulls.keys() else {}


def _usual_values(v: str, t: Any) -> list[tuple[str, str]]:
    """Return the conditions for values of usual classes in the variable `v`, in the order of their frequency, each with
    the statement for it; none for a type whose values are always fitted."""
    if pa.types.is_string(t):
        return [(f"{v}.__class__ is str", f"size += len({v}) if {v}.isascii() else len({v}.encode())")]
    if pa.types.is_binary(t):
        return [(f"{v}.__class__ is bytes", f"size += len({v})")]
    if pa.types.is_boolean(t):
        return [(f"{v}.__class__ is bool", "pass")]
    if pa.types.is_integer(t):
        return [(_is_int(v, -(1 << t.bit_width - 1), (1 << t.bit_width - 1) - 1), "pass")]
    if pa.types.is_floating(t):
        is_usual = f"{v}.__class__ is float"
        if pa.types.is_float32(t):  # Python's floats are rounded, NumPy's are not
            others = [(f"{is_usual} and ({-_FLOAT_MAX} <= {v} <= {_FLOAT_MAX} or {v} != {v})", "pass")]
        else:
            others = [(is_usual, "pass"), (f"{v}.__class__ is double", "pass")]
        return [*others, (_is_int(v, -_EXACT[t.bit_width], _EXACT[t.bit_width]), "pass")]
    if pa.types.is_timestamp(t):
        has_zone = f"{v}.tzinfo is {'not ' if t.tz is not None else ''}None"
        pandas_time = f"isinstance({v}, datetime) and {has_zone} and not getattr({v}, 'nanosecond', 1)"
        return [(f"{v}.__class__ is datetime and {has_zone}", "pass"), (pandas_time, "pass")]
    if pa.types.is_date(t):
        return [(f"{v}.__class__ is date", "pass")]
    return [(f"{v}.__class__ is timedelta", "pass")] if pa.types.is_duration(t) else []


def _is_int(v: str, least: int, most: int) -> str:
    return f"{v}.__class__ is int and {least} <= {v} <= {most}"


class TypedTopic(ProducerTopic):
    """The state of a typed topic."""

    __slots__ = ("_check", "_has_zoned_key", "_hash", "_key")

    def __init__(self, info: TopicInfo, batch_size_bytes: int, queues: list[PartitionQueue]) -> None:
        super().__init__(info, batch_size_bytes, queues)
        schema = info.schema
        self._check = row_check(schema)
        keys = [schema.get_field_index(name) for name in info.key_columns]
        self._key = itemgetter(*keys) if keys else None
        self._hash = row_hash(info) if keys else None
        self._has_zoned_key = any(getattr(schema.field(name).type, "tz", None) for name in info.key_columns)
        most = self.max_bytes - HEADER_BYTES - COLUMN_BYTES * (1 + len(schema))
        self.target_bytes = max(1, min(batch_size_bytes, most))

    def checked(
        self, value: Any, key: Any, headers: Any, timestamp_ms: Any, partition: int | None
    ) -> tuple[Any, int, int | None, None]:
        """Return a copy of the row, its approximate size in bytes, its partition (None: sticky), and None.

        Raises SchemaMismatchError, InvalidPartitionsError.
        """
        if value.__class__ is not dict or key is not None or headers or timestamp_ms is not None:
            value = self._row(value, key, headers, timestamp_ms)
        if partition is not None:
            partition = self.info.check_partition(partition)
        try:
            taken = self._check(value) if value else None
        except UnicodeEncodeError:
            taken = None
        if taken is None:
            return self._fitted(value, partition)
        row, size = taken
        if self._key is not None:
            key = self._key(row)
            if key is None or (key.__class__ is tuple and None in key):
                return self._fitted(value, partition)  # a compacted topic takes no row without a key
            if partition is None:
                if self._has_zoned_key and _is_second_of_two(key):
                    return self._fitted(value, partition)
                partition = self.key_partitions.get(key)
                if partition is None:
                    partition = self._partition(key, value)
        return row, size, partition, None

    def _row(self, value: Any, key: Any, headers: Any, timestamp_ms: Any) -> dict[Any, Any]:
        """Return the row as a dict. Raises SchemaMismatchError."""
        name = self.info.name
        if not isinstance(value, Mapping):
            raise SchemaMismatchError(
                f"topic {name!r} is typed (columns {shown_names(self.info.schema.names)}): a row is a dict of columns, not "
                f"{type(value).__name__}; send({name!r}, {{{self.info.schema.names[0]!r}: …}}) sends a row, "
                "send_batch(topic, data) a table"
            )
        for argument, content, instead in (
            ("key", key, f"its key columns are {shown_names(self.info.key_columns) or 'none'}"),
            ("headers", headers or None, "give them a column"),
            ("timestamp_ms", timestamp_ms, f"its timestamp column is {self.info.timestamp_column or 'none'}"),
        ):
            if content is not None:
                raise SchemaMismatchError(f"topic {name!r} is typed: {argument} belongs to envelope topics; {instead}")
        return dict(value)

    def _fitted(self, value: dict[Any, Any], partition: int | None) -> tuple[Any, int, int | None, None]:
        """Return the result of `checked` for a row that passes the checks of `send_batch`. Raises as `checked`."""
        rows = rows_of([value], self.info, partition)
        if isinstance(rows.partition, np.ndarray):
            partition = int(rows.partition[0])
        schema = self.info.schema
        size = rows.table.nbytes + FIXED_BYTES * len(schema)
        try:
            # not `value`, whose objects can be of other kinds than those of the batch's other rows
            row = rows.table.to_pylist()[0]
        except NO_PYTHON_OBJECT:
            row = copy.deepcopy(value)
        return (*map(row.get, schema.names), schema), size, partition, None

    def _partition(self, key: Any, row: dict[str, Any]) -> int:
        """Return the partition of a row whose key has no null. The partitions of recent keys are remembered, because
        hashing is slow."""
        if len(self.key_partitions) >= KEY_CACHE_ENTRIES_MAX:
            self.key_partitions.clear()
        values = key if key.__class__ is tuple else (key,)
        if self._hash is not None and all(value.__class__ in (str, int) for value in values):
            partition = (self._hash(values) & 0x7FFFFFFF) % self.info.partitions
        else:
            partition = int(rows_of([row], self.info, None).partition[0])  # type: ignore[index]
        self.key_partitions[key] = partition
        return partition


def producer_topic(
    info: TopicInfo,
    batch_size_bytes: int,
    queues: list[PartitionQueue],
    key_serializer: Serialize | None,
    value_serializer: Serialize | None,
) -> ProducerTopic:
    """Return the state of a topic for a producer with these serializers. A typed topic ignores them."""
    if not info.is_envelope:
        return TypedTopic(info, batch_size_bytes, queues)
    if key_serializer is None and value_serializer is None:
        return ProducerTopic(info, batch_size_bytes, queues)
    return SerializingTopic(info, batch_size_bytes, queues, key_serializer, value_serializer)


def _is_second_of_two(key: Any) -> bool:
    """Return True for a key with a time that a change from daylight saving time repeats. Python calls both times equal,
    but they are different points in time, and so different keys."""
    return any(getattr(value, "fold", 0) for value in (key if key.__class__ is tuple else (key,)))


def typed_batch(rows: OpenBatch, info: TopicInfo) -> pa.RecordBatch:
    """Return the collected rows in the layout of the topic's newest schema. The delivery gets their timestamps.

    Raises SchemaMismatchError if the topic has changed since the rows were checked.
    """
    values: list[Any] = rows.values
    schema = values[0][-1]
    if all(row[-1] is schema for row in values):
        columns = {
            f.name: _column(column, f.type) for f, column in zip(schema, zip(*values, strict=True), strict=False)
        }
    else:
        every = [dict(zip(row[-1].names, row, strict=False)) for row in values]
        columns = {name: [row.get(name) for row in every] for name in info.schema.names}
    batch = rows_of(columns, info, 0).table.combine_chunks().to_batches()[0]
    if info.timestamp_column is not None:
        import pyarrow.compute as pc  # takes long, and few producers need it

        times = batch.column(batch.schema.get_field_index(info.timestamp_column))
        numbers = times.cast(pa.timestamp("us", tz=times.type.tz), safe=False).view(pa.int64())
        newest = pc.max(numbers)
        if newest.is_valid:
            rows.delivery.timestamps_us = np.asarray(pc.fill_null(numbers, newest))
    return batch


def _column(values: Sequence[Any], t: Any) -> Any:
    """Return the values of a column. Most are an array, because every checked value has a form in its type. Times,
    decimals and nested values are a list that `rows_of` checks."""
    is_plain = pa.types.is_primitive(t) or pa.types.is_string(t) or pa.types.is_binary(t)
    return pa.array(values, t) if is_plain and not pa.types.is_temporal(t) else list(values)
