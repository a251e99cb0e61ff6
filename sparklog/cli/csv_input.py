"""CSV as Arrow tables with a topic's types.

PyArrow parses each block of lines at once. Only a block that PyArrow refuses is split to find its faulty records.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.cli.input_lines import LINE_BYTES_MAX, InputError, Piece, Refuse, fitting_block, last_line_end, lines_of
from sparklog.errors import SchemaMismatchError
from sparklog.export.json_rows import JsonValueError, form_hint, read_texts, whole_column
from sparklog.format.json_exact import column_value, number_of_text, parse_object, text_as_bytes
from sparklog.format.json_rows import DECIMAL_PATTERN
from sparklog.format.schema import ENVELOPE_SCHEMA, fit_column
from sparklog.format.time_texts import parse_times
from sparklog.settings import did_you_mean

_ENVELOPE_INPUT = ENVELOPE_SCHEMA.append(pa.field("partition", pa.int32()))
_LINE = b"x\n"
_TRUE, _FALSE = ("true", "True", "TRUE"), ("false", "False", "FALSE")
_HEXADECIMAL = re.compile(rb"0[xX]")
_NULL_WORDS = ("NA", "NULL", "NAN", "N/A", "NONE", "\\N", "-")


class UnusualNumberError(ValueError):
    """A number that PyArrow reads otherwise than the rules do."""


_UNREADABLE = (pa.ArrowException, SchemaMismatchError, JsonValueError, UnusualNumberError)


@dataclass(frozen=True)
class CsvOptions:
    """Options of CSV input."""

    schema: pa.Schema | None
    """The topic's schema; None for an envelope topic."""
    delimiter: str
    null_values: tuple[str, ...]
    """Unquoted texts that mean null."""


def read_csv(
    blocks: Iterable[tuple[bytes, int]], options: CsvOptions, accept: Callable[[pa.Table], pa.Table], refuse: Refuse
) -> Iterator[tuple[pa.Table, int]]:
    """Yield tables, each with the number of bytes read so far.

    `accept` gets each table before it is yielded, and can raise one of REFUSALS. `refuse` gets each record that does
    not fit the topic. Raises InputError if the first line does not have the names of topic columns, and the errors of
    `refuse`.
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
            reader = _Reader(names, options, accept)
        if not (rest if reader.has_empty_rows else rest.strip(b"\r\n")):
            continue
        pieces = partial(_record_list, rest, options.delimiter, first, with_empty=reader.has_empty_rows)
        for table in fitting_block(rest, pieces, reader.accepted, reader.reason, refuse):
            yield table, done


class _Reader:
    def __init__(self, names: list[str], options: CsvOptions, accept: Callable[[pa.Table], pa.Table]) -> None:
        self._names = names
        self._options = options
        self._accept = accept
        self._schema = _ENVELOPE_INPUT if options.schema is None else options.schema
        self._types = {name: _csv_type(self._schema.field(name).type) for name in names}
        self.has_empty_rows = options.schema is not None and len(names) == 1
        """True if an empty line is a row: `sparklog consume` writes a null so if the topic has one column."""

    def accepted(self, text: bytes) -> pa.Table:
        """Return the rows of a block of whole records, after they are accepted. Raises one of REFUSALS."""
        return self._accept(self._table(text))

    def _table(self, text: bytes) -> pa.Table:
        if _is_open(text, self._options.delimiter):
            raise SchemaMismatchError("a quoted field is not closed before the end of the file")
        try:
            self._require_decimal_digits(text)
            table = self._read(text, self._types)
            for name in self._names:
                require_usual_numbers(table.column(name), self._schema.field(name).type)
            return parse_as(table, self._schema)
        except _UNREADABLE as e:
            numbers = {
                n: pa.string() for n, t in self._types.items() if pa.types.is_integer(t) or pa.types.is_floating(t)
            }
            if not numbers:
                raise
            try:
                return parse_as(self._read(text, self._types | numbers), self._schema)
            except _UNREADABLE as by_rules:
                if isinstance(e, UnusualNumberError):
                    raise by_rules from None
            raise

    def _require_decimal_digits(self, text: bytes) -> None:
        """Raise UnusualNumberError if an integer column has a hexadecimal number, which PyArrow reads."""
        if _HEXADECIMAL.search(text) is None:
            return
        texts = {n: pa.string() for n, t in self._types.items() if pa.types.is_integer(t)}
        if not texts:
            return
        table = self._read(text, self._types | texts)
        if any(pc.any(pc.match_substring_regex(table.column(name), r"^\s*0[xX]")).as_py() for name in texts):
            raise UnusualNumberError("a number that the rules have to read")

    def _read(self, text: bytes, types: dict[str, Any]) -> pa.Table:
        from pyarrow import csv as arrow_csv

        return arrow_csv.read_csv(
            io.BytesIO(text),
            read_options=arrow_csv.ReadOptions(column_names=self._names, block_size=len(text) + 1),
            parse_options=arrow_csv.ParseOptions(
                delimiter=self._options.delimiter,
                newlines_in_values=True,
                ignore_empty_lines=not self.has_empty_rows,
            ),
            convert_options=arrow_csv.ConvertOptions(
                column_types=types,
                null_values=list(self._options.null_values),
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                true_values=list(_TRUE),
                false_values=list(_FALSE),
            ),
        )

    def reason(self, error: Exception, piece: Piece) -> str:
        """Return the error text that follows the line number: the column, the fault, and a hint on `--null-value`."""
        text = str(error).splitlines()[0]
        match = re.match(r"In CSV column #(\d+): (?:Row #\d+: )?(.*)", text)
        if match is None:
            return f": {text}"
        name, text = self._names[int(match[1])], match[2].removeprefix("CSV conversion error to ")
        invalid = re.search(r"invalid value '(.*)'", text)
        if invalid and invalid[1] in self._options.null_values:
            text += "; text in quotes is not null: leave the quotes out"
        elif invalid and invalid[1].upper() in _NULL_WORDS:
            text += f"; if it means a missing value, add --null-value {invalid[1]!r}"
        return f", column {name!r}: {text}{form_hint(self._schema.field(name).type)}"


def _names(header: Piece, options: CsvOptions) -> list[str]:
    """Return the column names of the first line. Raises InputError if a name is not a column of the topic, or is there
    twice."""
    try:
        text = header.text.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise InputError(f"line {header.line} is not UTF-8: {e.reason} at byte {e.start}; is this a CSV file?") from e
    names = next(csv.reader([text.rstrip("\r\n")], delimiter=options.delimiter))
    columns = tuple((_ENVELOPE_INPUT if options.schema is None else options.schema).names)
    unknown = [name for name in names if name not in columns]
    if len(unknown) == len(names):
        shown = text.strip()[:60]
        raise InputError(
            f"line {header.line} names no column of the topic: {shown!r}. The first line of a CSV file has the columns' "
            f"names ({', '.join(columns)}), separated by {options.delimiter!r} (--delimiter)"
        )
    if options.schema is None and unknown[:1] in (["offset"], ["topic"]):
        raise InputError(
            f"line {header.line}: an envelope topic takes no column {unknown[0]!r}, which `sparklog consume` writes: copy "
            "a topic as Parquet or Arrow, or remove the column"
        )
    if unknown:
        raise InputError(
            f"line {header.line}: the topic has no column {unknown[0]!r}{did_you_mean(unknown[0], columns)}"
        )
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


def _records(text: bytes, delimiter: str, line: int, *, with_empty: bool = False) -> Iterator[Piece]:
    """Yield the records of `text` with their line numbers. `line`: the number of the first line. `with_empty`: True if
    an empty line is a record, too."""
    lines = lines_of(text)
    csv.field_size_limit(LINE_BYTES_MAX)
    reader = csv.reader((part.decode("latin-1") for part in lines), delimiter=delimiter)
    start = 0
    try:
        for row in reader:
            if row or with_empty:
                yield Piece(line + start, b"".join(lines[start : reader.line_num]))
            start = reader.line_num
    except csv.Error as e:
        raise InputError(
            f"line {line + start}: a carriage return outside of quotes does not end the line. End each line with \\n or "
            "\\r\\n; or is this no CSV file?"
        ) from e


def _record_list(text: bytes, delimiter: str, line: int, *, with_empty: bool) -> list[Piece]:
    return list(_records(text, delimiter, line, with_empty=with_empty))


def _csv_type(t: Any) -> Any:
    """Return the type as which PyArrow reads a column for `t`. `parse_as` makes the column's values of texts."""
    is_text = pa.types.is_nested(t) or pa.types.is_temporal(t) or pa.types.is_decimal(t)
    return pa.string() if is_text else wide_type(t)


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


def require_usual_numbers(column: Any, t: Any) -> None:
    """Raise UnusualNumberError if the rules for numbers can read a double of the column, at any depth, otherwise.

    Such a double is not finite, is -0.0, or is so large that a whole number can have been rounded. `t`: the topic's
    type."""
    for chunk in column.chunks:
        _require_usual(chunk, t)


def _require_usual(array: Any, t: Any) -> None:
    if pa.types.is_list(array.type):
        _require_usual(array.flatten(), t.value_type)
    elif pa.types.is_struct(array.type):
        for child, field in zip(array.flatten(), t, strict=True):
            _require_usual(child, field.type)
    elif pa.types.is_floating(array.type) and len(array) > array.null_count:
        numbers = np.asarray(array.fill_null(1.0).to_numpy(zero_copy_only=False))
        exact_max = 2.0**24 if pa.types.is_float32(t) else 2.0**53
        usual = (np.abs(numbers) < exact_max) & ((numbers != 0) | ~np.signbit(numbers))
        if not usual.all():
            raise UnusualNumberError("a number that the rules have to read")


def parse_as(table: pa.Table, schema: pa.Schema, *, is_json: bool = False) -> pa.Table:
    """Convert columns that were read as text to their types, and columns that were read as double to float.

    `is_json`: True for texts of JSON, where blanks around a time are an error, and a decimal in an unusual form is left
    to the rules. Raises SchemaMismatchError, JsonValueError.
    """
    for field in schema:
        index = table.schema.get_field_index(field.name)
        if index < 0:
            continue
        column, t = table.column(index), field.type
        if pa.types.is_binary(t) and schema is not _ENVELOPE_INPUT:
            table = table.set_column(index, field.name, _marked_bytes(column, field))
            continue
        is_text = pa.types.is_string(column.type) and not pa.types.is_string(t)
        try:
            if is_text:
                parsed = _parse_texts(column, field, is_json=is_json)
            elif column.type != t and column.type == wide_type(t):
                parsed = fit_column(column, t, rounded=True)
            else:
                continue
        except pa.ArrowException as e:
            one = is_text and len(column) == 1
            fault = f"{column[0].as_py()!r} does not fit" if one else str(e).splitlines()[0]
            raise SchemaMismatchError(f"column {field.name!r} is {t}: {fault}{form_hint(t)}") from e
        table = table.set_column(index, field.name, parsed)
    return table


def _marked_bytes(column: Any, field: pa.Field) -> Any:
    """Return a binary column with the bytes for which texts such as {"base64": "…"} stand."""
    marked = pc.starts_with(column, b'{"base64":')
    if not pc.any(marked).as_py():
        return column
    values = column.to_pylist()
    for row in np.flatnonzero(marked.fill_null(False).to_numpy()):
        with suppress(JsonValueError):
            values[row] = column_value(parse_object(values[row]), field, text_as_bytes)
    return pa.chunked_array([pa.array(values, column.type)])


def _parse_texts(column: Any, field: pa.Field, *, is_json: bool) -> Any:
    t = field.type
    if pa.types.is_nested(t):
        return read_texts(column.to_pylist(), field)
    column = column.combine_chunks()
    if not is_json:
        column = pc.utf8_trim_whitespace(column)
    if pa.types.is_temporal(t):
        return parse_times(column, t)
    if pa.types.is_decimal(t) and pc.all(pc.match_substring_regex(column, DECIMAL_PATTERN)).as_py() is not False:
        return column.cast(t)
    if is_json:
        raise UnusualNumberError("a number that the rules have to read")
    values = [None if text is None else number_of_text(text) for text in column.to_pylist()]
    return whole_column([column_value(value, field, text_as_bytes) for value in values], field)
