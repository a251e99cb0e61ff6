"""Records of a batch as rows of a typed topic, without those that do not fit: these are named with their reasons.

`parse_rows` and `with_keys` refuse a batch as a whole, because a client must send it again. A mirror, and a topic with
`kafka.refused.records = topic`, have the rows that fit, and the other records in a refused topic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.errors import MessageTooLargeError
from sparklog.format.json_rows import SLICE_ROWS
from sparklog.kafka.records.errors import InvalidRecordError
from sparklog.kafka.values.header_ids import FramedParts
from sparklog.kafka.values.json_records import parse_rows
from sparklog.kafka.values.keys import Parse, RowForm, values_to_parse, with_keys

ReadValues = Callable[[Any, Any, RowForm], pa.RecordBatch]
"""Function that reads values as rows, by keys, values and the topic. Raises InvalidRecordError."""
ReadRows = Callable[[Any, Any], pa.RecordBatch]
"""Function that reads records as rows with their keys, by keys and values. Raises InvalidRecordError."""
ReadHeaders = Callable[[Any, Any, Any, RowForm], FramedParts]
"""Function that takes the ids of schemas from headers, by keys, values, headers and the topic. Raises
InvalidRecordError."""
KEY, VALUE, HEADERS = 0, 1, 2
REASON_BYTES = 300
"""Memory for the reason of a refused record."""


class FittingRows(NamedTuple):
    """The rows of the records that fit, and the reasons for the others."""

    rows: pa.RecordBatch
    places: np.ndarray
    """Index of each row's record, ascending."""
    refused: dict[int, str]
    """Reasons by the index of the record."""
    converted: int
    """Number of records that were converted, from the first one on."""


def read_json(keys: Any, values: Any, topic: RowForm) -> pa.RecordBatch:
    """Read values as JSON objects; a `ReadValues`."""
    return parse_rows(values_to_parse(keys, values, topic), topic.schema, topic.name)


def rows_reader(read: ReadValues, topic: RowForm, parse_keys: Parse = parse_rows) -> ReadRows:
    """Return the function that reads values and keys as rows of a topic. `parse_keys`: function that parses keys that
    are no texts; the default is for JSON."""
    return lambda keys, values: with_keys(read(keys, values, topic), keys, topic, parse_keys)


def fitting_rows(
    records: pa.RecordBatch,
    topic: RowForm,
    read: ReadRows,
    *,
    bytes_max: int,
    drops_headers: bool = False,
    read_headers: ReadHeaders | None = None,
    faults: Mapping[int, str] = {},
) -> FittingRows:
    """Convert the records of a batch. `records`: rows of an envelope topic. `read`: function that reads the rows.
    `bytes_max`: memory of rows and reasons after which later records are left out: a short record can be a long row. A
    record whose row alone takes more is refused. `drops_headers`: False to refuse records with headers, for which a
    typed topic has no place. `read_headers`: function that takes the ids of schemas from headers; None: they are
    headers as others. `faults`: messages of records that `read` has refused before, by their index in the batch."""
    conversion = _Conversion(topic, read, bytes_max)
    if (drops_headers and read_headers is None) or not pc.any(records.column(HEADERS).is_valid()).as_py():
        read_headers, drops_headers = None, True
    count = 0
    for first in range(0, records.num_rows, SLICE_ROWS):
        part = records.slice(first, SLICE_ROWS)
        places = np.arange(first, first + part.num_rows)
        earlier = {i - first: message for i, message in faults.items() if first <= i < first + part.num_rows}
        part, places = conversion.without(earlier, part, places, first)
        has_headers = np.asarray(part.column(HEADERS).is_valid().to_numpy(zero_copy_only=False))
        if read_headers is not None:
            part, places, has_headers = conversion.with_ids(part, places, read_headers)
        if not drops_headers:
            reason = f"the record has headers: the typed topic {topic.name!r} has no place for them"
            conversion.refused |= dict.fromkeys(places[has_headers].tolist(), reason)
            places = places[~has_headers]
            part = part.filter(pa.array(~has_headers))
        conversion.add(part, places)
        count = min(first + SLICE_ROWS, records.num_rows)
        if conversion.size_bytes > bytes_max:
            break
    return conversion.finish(count)


class _Conversion:
    """The rows so far."""

    def __init__(self, topic: RowForm, read: ReadRows, bytes_max: int) -> None:
        self.refused: dict[int, str] = {}
        self._topic = topic
        self._read = read
        self._bytes_max = bytes_max
        self._rows_bytes = 0
        self._rows: list[pa.RecordBatch] = []
        self._places: list[np.ndarray] = []

    @property
    def size_bytes(self) -> int:
        """Memory of the rows, and of the reasons at about their usual length."""
        return self._rows_bytes + REASON_BYTES * len(self.refused)

    def add(self, records: pa.RecordBatch, places: np.ndarray) -> None:
        """Convert one slice: again without the refused records, and in halves if the rows take too much memory."""
        while len(places):
            try:
                rows = self._read(records.column(KEY), records.column(VALUE))
                if rows.nbytes > self._bytes_max:
                    raise MessageTooLargeError(f"the row takes {rows.nbytes} bytes, at most {self._bytes_max}")
            except InvalidRecordError as e:
                records, places = self.without(e.records, records, places)
            except MessageTooLargeError as e:
                if len(places) == 1:
                    self.refused[int(places[0])] = str(e)
                    return
                half = len(places) // 2
                self.add(records.slice(0, half), places[:half])
                records, places = records.slice(half), places[half:]
            else:
                self._rows_bytes += rows.nbytes
                self._rows.append(rows)
                self._places.append(places)
                return

    def with_ids(
        self, records: pa.RecordBatch, places: np.ndarray, read_headers: ReadHeaders
    ) -> tuple[pa.RecordBatch, np.ndarray, np.ndarray]:
        """Return a slice with the ids of its headers in keys and values, without the records that are refused for them,
        and True for each record with other headers."""
        while True:
            try:
                parts = read_headers(records.column(KEY), records.column(VALUE), records.column(HEADERS), self._topic)
            except InvalidRecordError as e:
                records, places = self.without(e.records, records, places)
            else:
                columns = [parts.keys, parts.values, *records.columns[HEADERS:]]
                return pa.RecordBatch.from_arrays(columns, schema=records.schema), places, parts.has_headers

    def without(
        self, faults: Mapping[int, str], records: pa.RecordBatch, places: np.ndarray, first: int = 0
    ) -> tuple[pa.RecordBatch, np.ndarray]:
        """Note the refused records of a slice, and return the others. `first`: number in the messages of the slice's
        first record."""
        if not faults:
            return records, places
        keep = np.ones(len(places), bool)
        keep[list(faults)] = False
        for index, message in faults.items():
            self.refused[int(places[index])] = self._reason(first + index, message)
        return records.filter(pa.array(keep)), places[keep]

    def finish(self, count: int) -> FittingRows:
        schema = self._topic.schema
        rows = pa.Table.from_batches(self._rows, schema).combine_chunks().to_batches()
        empty = pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)
        places = np.concatenate(self._places) if self._places else np.empty(0, np.int64)
        return FittingRows(rows[0] if rows else empty, places, dict(sorted(self.refused.items())), count)

    def _reason(self, index: int, message: str) -> str:
        """Return the message without the record's number in its slice, and without the topic's name."""
        text = message.removeprefix(f"record {index}").lstrip(": ")
        return text.removeprefix(f"does not fit the topic {self._topic.name!r}: ")
