"""CSV as Arrow tables with a topic's types.

PyArrow parses each block of lines at once. Only a block that PyArrow refuses is split to find its faulty records.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.cli.input_lines import LINE_BYTES_MAX, InputError, Piece, Refuse, fitting, last_line_end, lines_of
from sparklog.errors import SchemaMismatchError
from sparklog.format.schema import ENVELOPE_SCHEMA, fit_column
from sparklog.settings import did_you_mean

ENVELOPE_COLUMNS = ("key", "value", "headers", "timestamp", "partition")
_WITH_ZONE = r"\d{2}:\d{2}.*(Z|z|[+-]\d{2}(:?\d{2})?)\s*$"
_WITH_TIME = r"\d{2}:\d{2}"
_LINE = b"x\n"
_NULL_WORDS = ("NA", "NULL", "NAN", "N/A", "NONE", "\\N", "-")


@dataclass(frozen=True)
class CsvOptions:
    """Options of CSV input."""

    schema: pa.Schema | None
    """The topic's schema; None for an envelope topic."""
    delimiter: str
    null_values: tuple[str, ...]
    """Unquoted texts that mean null."""


def read_csv(
    blocks: Iterable[tuple[bytes, int]], options: CsvOptions, refuse: Refuse
) -> Iterator[tuple[pa.Table, int]]:
    """Yield tables, each with the number of bytes read so far.

    `refuse` gets each record that does not fit the topic. Raises InputError if the first line does not have the names
    of topic columns, and the errors of `refuse`.
    """
    reader: _Reader | None = None
    line = 1
    for block, done in blocks:
        rest, first = block, line
        line += block.count(b"\n")
        if reader is None:
            header = next(iter(_records(block, options.delimiter, first)), None)
            if header is None:
                continue
            names = _names(header, options)
            skipped = sum(len(text) + 1 for text in block.split(b"\n")[: header.line - first]) + len(header.text)
            rest, first = block[skipped:], header.line + header.text.count(b"\n")
            reader = _Reader(names, options)
        if not rest.strip(b"\r\n"):
            continue
        try:
            yield reader.table(rest), done
        except (pa.ArrowException, SchemaMismatchError):
            pieces = list(_records(rest, options.delimiter, first))
            for table in fitting(pieces, reader.table, reader.reason, refuse):
                yield table, done


class _Reader:
    def __init__(self, names: list[str], options: CsvOptions) -> None:
        self._names = names
        self._options = options
        self._types: dict[str, Any] = {"key": pa.binary(), "value": pa.binary(), "timestamp": pa.string()}
        if options.schema is not None:
            self._types = {name: _csv_type(options.schema.field(name)) for name in names}

    def table(self, text: bytes) -> pa.Table:
        """Return the rows of a block of whole records. Raises ArrowException, SchemaMismatchError."""
        from pyarrow import csv as arrow_csv

        if _is_open(text, self._options.delimiter):
            raise SchemaMismatchError("a quoted field is not closed before the end of the file")
        table = arrow_csv.read_csv(
            io.BytesIO(text),
            read_options=arrow_csv.ReadOptions(column_names=self._names, block_size=len(text) + 1),
            parse_options=arrow_csv.ParseOptions(delimiter=self._options.delimiter, newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(
                column_types=self._types,
                null_values=list(self._options.null_values),
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        if self._options.schema is None:  # later blocks keep the types that PyArrow inferred for this one
            self._types |= {f.name: f.type for f in table.schema if not pa.types.is_null(f.type)}
        return parse_as(table, ENVELOPE_SCHEMA if self._options.schema is None else self._options.schema)

    def reason(self, error: Exception, piece: Piece) -> str:
        """Return the error text that follows the line number: the column, the fault, and a hint on `--null-value`."""
        text = str(error).splitlines()[0]
        found = re.match(r"In CSV column #(\d+): (?:Row #\d+: )?(.*)", text)
        if found is None:
            return f": {text}"
        name, text = self._names[int(found[1])], found[2].removeprefix("CSV conversion error to ")
        invalid = re.search(r"invalid value '(.*)'", text)
        if invalid and invalid[1].upper() in _NULL_WORDS:
            text += f"; if it means a missing value, add --null-value {invalid[1]!r}"
        return f", column {name!r}: {text}"


def _names(header: Piece, options: CsvOptions) -> list[str]:
    """Return the column names of the first line. Raises InputError if a name is not a column of the topic, or is there
    twice."""
    try:
        text = header.text.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise InputError(f"line {header.line} is not UTF-8: {e.reason} at byte {e.start}; is this a CSV file?") from e
    names = next(csv.reader([text.rstrip("\r\n")], delimiter=options.delimiter))
    known = ENVELOPE_COLUMNS if options.schema is None else tuple(options.schema.names)
    unknown = [name for name in names if name not in known]
    if len(unknown) == len(names):
        shown = text.strip()[:60]
        raise InputError(
            f"line {header.line} names no column of the topic: {shown!r}. The first line of a CSV file has the columns' "
            f"names ({', '.join(known)}), separated by {options.delimiter!r} (--delimiter)"
        )
    if unknown:
        raise InputError(f"line {header.line}: the topic has no column {unknown[0]!r}{did_you_mean(unknown[0], known)}")
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise InputError(f"line {header.line} names column {min(twice)!r} twice")
    return names


def record_end(text: bytes, delimiter: str) -> int:
    """Return the end position of the last whole record; 0 if there is none. `text` begins at the start of a record.

    A line end inside quotes does not end a record. If all quotes stand at the edges of fields, a line end is inside
    quotes if the number of quotes before it is odd. Otherwise the text is parsed field by field.
    """
    quotes = np.flatnonzero(np.frombuffer(text, np.uint8) == ord('"'))
    if not len(quotes):
        return last_line_end(text)
    if not _is_regular(text, quotes, delimiter):
        whole = text[: last_line_end(text)] + _LINE
        *_, last = _records(whole, delimiter, 1)  # the appended line, or the open record that has swallowed it
        return len(whole) - len(last.text)
    at = last_line_end(text)
    while at:
        before = int(np.searchsorted(quotes, at))
        if before % 2 == 0:
            return at
        at = text.rfind(b"\n", 0, int(quotes[before - 1])) + 1
    return 0


def _is_open(text: bytes, delimiter: str) -> bool:
    """True if the last record ends inside quotes. PyArrow would take the rest of the text for one field.

    An even number of quotes counts as closed without parsing, so that a regular block costs one count.
    """
    if text.count(b'"') % 2 == 0:
        return False
    whole = text if text.endswith(b"\n") else text + b"\n"
    return record_end(whole, delimiter) < len(whole)


def _is_regular(text: bytes, quotes: Any, delimiter: str) -> bool:
    """True if each first quote of a pair can open a field and each second can close it: it stands beside a delimiter,
    a line end or another quote. `""` inside a field is regular, too."""
    data = np.frombuffer(text, np.uint8)
    beside = np.frombuffer(f'"\r\n{delimiter}'.encode(), np.uint8)
    opening, closing = quotes[0::2], quotes[1::2]
    before, behind = data[opening[opening > 0] - 1], data[closing[closing < len(data) - 1] + 1]
    return bool(np.isin(before, beside).all() and np.isin(behind, beside).all())


def _records(text: bytes, delimiter: str, line: int) -> Iterator[Piece]:
    """Yield the records of `text` with their line numbers, without empty lines. `line` is the number of the first
    line."""
    lines = lines_of(text)
    csv.field_size_limit(LINE_BYTES_MAX)
    reader = csv.reader((part.decode("latin-1") for part in lines), delimiter=delimiter)
    start = 0
    for row in reader:
        if row:
            yield Piece(line + start, b"".join(lines[start : reader.line_num]))
        start = reader.line_num


def _csv_type(field: pa.Field) -> Any:
    if pa.types.is_nested(field.type) or pa.types.is_duration(field.type):
        raise InputError(f"column {field.name!r} is {field.type}, which CSV cannot hold: use jsonl, parquet or arrow")
    with_zone = pa.types.is_timestamp(field.type) and field.type.tz
    return pa.string() if with_zone else wide_type(field.type)


def wide_type(t: Any) -> Any:
    """Return the type with double in place of float, at any depth.

    PyArrow would read a number beyond float's range as infinity. Read as double, the number is refused by `parse_as`.
    """
    if pa.types.is_float32(t):
        return pa.float64()
    if pa.types.is_list(t):
        return pa.list_(t.value_field.with_type(wide_type(t.value_type)))
    if pa.types.is_struct(t):
        return pa.struct([f.with_type(wide_type(f.type)) for f in t])
    return t


def parse_as(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast columns that were read as text to dates and times, and columns that were read as double to float.

    A time without a zone is UTC if the column has a zone. Raises SchemaMismatchError.
    """
    for field in schema:
        index = table.schema.get_field_index(field.name)
        if index < 0:
            continue
        column, t = table.column(index), field.type
        try:
            if pa.types.is_temporal(t) and pa.types.is_string(column.type):
                parsed = _add_zone(column, t) if pa.types.is_timestamp(t) and t.tz else column.cast(t)
            elif column.type != t and column.type == wide_type(t):
                parsed = fit_column(column, t, rounded=True)
            else:
                continue
        except pa.ArrowException as e:
            raise SchemaMismatchError(f"column {field.name!r} is {t}: {str(e).splitlines()[0]}{_time_hint(t)}") from e
        table = table.set_column(index, field.name, parsed)
    return table


def _time_hint(t: Any) -> str:
    if pa.types.is_timestamp(t):
        return f" (write times as 2024-03-01T12:30:00{'Z' if t.tz else ''})"
    return " (write dates as 2024-03-01)" if pa.types.is_date(t) else ""


def _add_zone(text: Any, t: Any) -> Any:
    has_zone = pc.match_substring_regex(text, _WITH_ZONE)
    has_time = pc.match_substring_regex(text, _WITH_TIME)
    suffix = pc.if_else(has_zone, "", pc.if_else(has_time, "Z", " 00:00:00Z"))
    return pc.binary_join_element_wise(pc.utf8_trim_whitespace(text), suffix, "").cast(t)
