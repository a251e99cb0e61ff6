"""Rows of typed topics that come one by one with `send`: checked at the call, turned into columns with their batch.

A row with a value of the usual class for each column is checked by a function for its schema (`row_check`). msgspec
checks other rows. Rows that msgspec refuses are fitted to the topic as `send_batch` fits tables, which takes about 100
times as long and raises the error if the row is wrong. If a topic has columns that msgspec cannot check, such as
decimals and nested ones, all of its rows are fitted in this way.
"""

from __future__ import annotations

import copy
import datetime as dt
from collections.abc import Callable, Mapping
from decimal import Decimal
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast

import msgspec
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

EXACT_FLOAT_MAX = 2**53
"""Whole numbers up to this one are floats without rounding."""
COLUMN_BYTES = 256
"""Largest number of bytes of a column in a batch besides its values: its description, and the rounding of its
buffers."""
FIXED_BYTES = 17
"""Largest number of bytes of a value of a fixed width: 16, and its validity."""
TEXT_BYTES = 9
"""Largest number of bytes of a text or of bytes besides its content: an offset, and its validity."""
_AS_THEY_ARE = (bytes, bytearray, dt.datetime, dt.date, dt.time, dt.timedelta)
"""Classes whose values msgspec takes only as they are. It does not parse them from texts."""


class Row(msgspec.Struct, array_like=True):
    """A row: a field for each column, in the order of the columns, named c0, c1 and so on. msgspec reads rows from
    sequences, because the names of columns need not be names that msgspec takes."""

    schema: ClassVar[pa.Schema]
    """The columns by which the values were checked."""


def row_class(schema: pa.Schema) -> type[Row] | None:
    """Return the class of a schema's rows, which checks values; None if a column has a type that it cannot check."""
    types = [_python_type(f.type) for f in schema]
    if any(t is None for t in types):
        return None
    fields = [(f"c{i}", t | None, None) for i, t in enumerate(types)]
    row_type: Any = msgspec.defstruct("CheckedRow", fields, bases=(Row,), array_like=True, gc=False)
    row_type.schema = schema
    return cast("type[Row]", row_type)


def _python_type(t: Any) -> Any:
    if pa.types.is_string(t) or pa.types.is_large_string(t):
        return str
    if pa.types.is_binary(t) or pa.types.is_large_binary(t):
        return bytes
    if pa.types.is_boolean(t):
        return bool
    if pa.types.is_signed_integer(t):
        return Annotated[int, msgspec.Meta(ge=-(1 << t.bit_width - 1), le=(1 << t.bit_width - 1) - 1)]
    if pa.types.is_float64(t):
        return Annotated[int, msgspec.Meta(ge=-EXACT_FLOAT_MAX, le=EXACT_FLOAT_MAX)] | float
    if pa.types.is_timestamp(t) and t.unit == "us":
        return Annotated[dt.datetime, msgspec.Meta(tz=t.tz is not None)]
    if pa.types.is_date32(t):
        return dt.date
    return None


Check = Callable[[dict[Any, Any]], "tuple[Row, int] | None"]
"""Returns a copy of a row and its approximate size in bytes; None if the row needs other checks."""


def row_check(schema: pa.Schema, row: type[Row], fixed_bytes: int) -> Check:
    """Return a function that checks and copies rows with a value of the usual class, or None, for each column.

    The function is compiled for the schema. A loop over the columns would take four times as long, which is as long as
    msgspec takes.

    `schema`: the topic's schema. `row_class` has accepted its types. `fixed_bytes`: size of a row without the content
    of texts and bytes."""
    body = [f"if len(value) != {len(schema)}: return None", f"size = {fixed_bytes}", "try:"]
    body += [f"    v{i} = value[{name!r}]" for i, name in enumerate(schema.names)]
    body += ["except KeyError: return None"]
    for i, field in enumerate(schema):
        condition, then = _usual_value(f"v{i}", field.type)
        body += [f"if {condition}: {then}", f"elif v{i} is not None: return None"]
    body += [f"return row({', '.join(f'v{i}' for i in range(len(schema)))}), size"]
    names: dict[str, Any] = {"row": row, "date": dt.date, "datetime": dt.datetime}
    exec("\n    ".join(["def check(value):", *body]), names)
    return cast("Check", names["check"])


def _usual_value(v: str, t: Any) -> tuple[str, str]:
    """Return the condition for a value of the usual class in the variable `v`, and the statement for it."""
    if pa.types.is_string(t) or pa.types.is_large_string(t):
        return f"{v}.__class__ is str", f"size += len({v}) if {v}.isascii() else len({v}.encode())"
    if pa.types.is_binary(t) or pa.types.is_large_binary(t):
        return f"{v}.__class__ is bytes", f"size += len({v})"
    if pa.types.is_boolean(t):
        return f"{v}.__class__ is bool", "pass"
    if pa.types.is_signed_integer(t):
        low, high = -(1 << t.bit_width - 1), (1 << t.bit_width - 1) - 1
        return f"{v}.__class__ is int and {low} <= {v} <= {high}", "pass"
    if pa.types.is_timestamp(t):
        return f"{v}.__class__ is datetime and {v}.tzinfo is {'not ' if t.tz is not None else ''}None", "pass"
    return f"{v}.__class__ is {'date' if pa.types.is_date(t) else 'float'}", "pass"


class TypedTopic(ProducerTopic):
    """The state of a typed topic."""

    __slots__ = (
        "_binaries",
        "_check",
        "_class",
        "_columns",
        "_fixed_bytes",
        "_has_zoned_key",
        "_hash",
        "_key",
        "_texts",
    )

    def __init__(self, info: TopicInfo, batch_size_bytes: int, queues: list[PartitionQueue]) -> None:
        super().__init__(info, batch_size_bytes, queues)
        schema = info.schema
        self._class = row_class(schema)
        self._columns = frozenset(schema.names)
        fields = {name: f"c{i}" for i, name in enumerate(schema.names)}
        self._key = attrgetter(*(fields[name] for name in info.key_columns)) if info.key_columns else None
        self._hash = row_hash(info) if info.key_columns else None
        self._has_zoned_key = any(getattr(schema.field(name).type, "tz", None) for name in info.key_columns)
        texts = [f.name for f in schema if pa.types.is_string(f.type) or pa.types.is_large_string(f.type)]
        binaries = [f.name for f in schema if pa.types.is_binary(f.type) or pa.types.is_large_binary(f.type)]
        self._texts = tuple(attrgetter(fields[name]) for name in texts)
        self._binaries = tuple(attrgetter(fields[name]) for name in binaries)
        self._fixed_bytes = FIXED_BYTES * len(schema) + (TEXT_BYTES - FIXED_BYTES) * len(texts + binaries)
        self._check = None if self._class is None else row_check(schema, self._class, self._fixed_bytes)
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
        if self._class is None or self._check is None or not value:
            return self._fitted(value, partition)
        try:
            row, size = self._check(value) or self._converted(value, self._class)
        except (msgspec.ValidationError, UnicodeEncodeError):
            return self._fitted(value, partition)
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

    def _converted(self, value: dict[Any, Any], cls: type[Row]) -> tuple[Row, int]:
        """Return a copy of the row, which msgspec checks, and its approximate size in bytes. Raises ValidationError,
        UnicodeEncodeError."""
        if Decimal in map(type, value.values()):  # msgspec would round it to a double
            raise msgspec.ValidationError
        if not value.keys() <= self._columns:
            raise msgspec.ValidationError
        columns = [value.get(name) for name in cls.schema.names]
        row = _convert(columns, cls, builtin_types=_AS_THEY_ARE)
        size = self._fixed_bytes
        for get in self._texts:
            text = get(row)
            if text is not None:
                size += len(text) if text.isascii() else len(text.encode())
        for get in self._binaries:
            content = get(row)
            if content is not None:
                size += len(content)
        return row, size

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
        size = rows.table.nbytes + FIXED_BYTES * len(self.info.schema)
        try:
            # not `value`, whose objects can be of other kinds than those of the batch's other rows
            row = rows.table.to_pylist()[0]
        except NO_PYTHON_OBJECT:
            row = copy.deepcopy(value)
        return row, size, partition, None

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


_convert = msgspec.convert


def typed_batch(rows: OpenBatch, info: TopicInfo) -> pa.RecordBatch:
    """Return the collected rows in the layout of the topic's newest schema. The delivery gets their timestamps.

    Raises SchemaMismatchError if the topic has changed since the rows were checked.
    """
    values: list[Any] = rows.values
    classes = set(map(type, values))
    first: Any = next(iter(classes))
    if classes == {dict} or len(classes) > 1:
        every = [row if row.__class__ is dict else _as_dict(row) for row in values]
        columns: dict[str, Any] = {name: [row.get(name) for row in every] for name in info.schema.names}
    else:
        columns = {field.name: _column(values, i, field.type) for i, field in enumerate(first.schema)}
    batch = rows_of(columns, info, 0).table.combine_chunks().to_batches()[0]
    if info.timestamp_column is not None:
        import pyarrow.compute as pc  # takes long, and few producers need it

        times = batch.column(batch.schema.get_field_index(info.timestamp_column))
        numbers = times.cast(pa.timestamp("us", tz=times.type.tz), safe=False).view(pa.int64())
        newest = pc.max(numbers)
        if newest.is_valid:
            rows.delivery.timestamps_us = np.asarray(pc.fill_null(numbers, newest))
    return batch


def _column(rows: list[Row], index: int, t: Any) -> Any:
    """Return the values of a column. Most are an array, because every checked value has an exact form in its type.
    Dates and times are a list that `rows_of` checks, because they can have nanoseconds or classes of other
    libraries."""
    values = list(map(attrgetter(f"c{index}"), rows))
    return values if pa.types.is_temporal(t) else pa.array(values, t)


def _as_dict(row: Row) -> dict[str, Any]:
    return dict(zip(row.schema.names, msgspec.structs.astuple(row), strict=True))
