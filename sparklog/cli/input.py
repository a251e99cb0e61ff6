"""Files and stdin as a stream of Arrow tables: what `sparklog produce` reads.

Nothing is ever held whole: CSV and JSON lines are read in blocks, Parquet by row groups, Arrow by batches. Every reader
yields `Chunk`s; `done` counts in the unit of `Source.total` (bytes, rows or batches), for the progress bar.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from sparklog.cli.json_rows import JsonValueError, needs_rows, read_rows
from sparklog.errors import SchemaMismatchError
from sparklog.format.schema import ENVELOPE_SCHEMA, fit_column

BLOCK_BYTES = 4 * 1024 * 1024
BATCH_ROWS = 65_536
LINE_BYTES_MAX = 256 * 1024 * 1024

FORMATS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".ipc": "arrow",
    ".feather": "arrow",
    ".arrows": "arrow",
    ".txt": "lines",
    ".log": "lines",
}
"""How a file is read, by its ending."""

_WITH_ZONE = r"\d{2}:\d{2}.*(Z|z|[+-]\d{2}(:?\d{2})?)\s*$"
_WITH_TIME = r"\d{2}:\d{2}"


class InputError(Exception):
    """The input cannot be read as what it should be; the message says where."""


class Chunk(NamedTuple):
    """Some rows, and how far the source is read."""

    table: pa.Table
    done: int


@dataclass(frozen=True)
class Source:
    """A readable input: `chunks` can be iterated once; `total` None: not known."""

    chunks: Iterator[Chunk]
    total: int | None


@dataclass(frozen=True)
class InputOptions:
    """How text is read: `schema` is the topic's (None: an envelope topic's own columns are taken as they come)."""

    schema: pa.Schema | None
    key_separator: str | None = None
    delimiter: str = ","
    null_values: tuple[str, ...] = ("",)


def open_input(path: Path | None, stdin: BinaryIO, format: str, options: InputOptions) -> Source:
    """The input at `path` (None: `stdin`) read as `format` (a value of `FORMATS`).

    Raises InputError, OSError; while iterating also SchemaMismatchError.
    """
    if format == "parquet":
        return _parquet(_seekable(path, "parquet"))
    if format == "arrow":
        return _arrow(path, stdin)
    total = None if path is None else path.stat().st_size
    file = stdin if path is None else path.open("rb")
    read: Callable[[BinaryIO, InputOptions], Iterator[Chunk]]
    if format == "csv":
        read = _csv
    elif format == "jsonl":
        read = _jsonl if options.schema is not None else _lines
    else:
        read = _lines
    return Source(_closing(file, path is not None, read(file, options)), total)


def _closing(file: BinaryIO, ours: bool, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    try:
        yield from chunks
    finally:
        if ours:
            file.close()


def _seekable(path: Path | None, format: str) -> Path:
    if path is None:
        raise InputError(f"{format} cannot be read from stdin: give the file's name")
    return path


class _Counted(io.RawIOBase):
    """A binary stream that counts what was read of it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.count = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.count += len(data)
        return data


def _blocks(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Blocks of whole lines (the last one may lack its newline), with the bytes read so far."""
    rest = b""
    done = 0
    # read1: lines typed or piped in slowly are handed on as they come
    read = getattr(file, "read1", file.read)
    while block := read(BLOCK_BYTES):
        done += len(block)
        cut = block.rfind(b"\n") + 1
        if cut:
            yield rest + block[:cut], done
            rest = block[cut:]
        else:
            rest += block
        if len(rest) > LINE_BYTES_MAX:
            raise InputError(f"a line is longer than {LINE_BYTES_MAX} bytes: is this a text file?")
    if rest:
        yield rest, done


def _lines(file: BinaryIO, options: InputOptions) -> Iterator[Chunk]:
    """Each line is a record's value; with a key separator, what stands before its first occurrence is the key."""
    separator = options.key_separator.encode() if options.key_separator else None
    number = 0
    for block, done in _blocks(file):
        lines = block.split(b"\n")
        if not lines[-1]:
            lines.pop()
        values: list[bytes] = [line.removesuffix(b"\r") for line in lines]
        columns: dict[str, Any] = {}
        if separator is not None:
            parts = [value.partition(separator) for value in values]
            for i, (_, found, _) in enumerate(parts):
                if not found:
                    raise InputError(
                        f"line {number + i + 1} has no key separator {options.key_separator!r}: {_shorten(values[i])}"
                    )
            columns["key"] = pa.array([key for key, _, _ in parts], pa.binary())
            values = [value for _, _, value in parts]
        number += len(lines)
        yield Chunk(pa.table({**columns, "value": pa.array(values, pa.binary())}), done)


def _shorten(line: bytes) -> str:
    text = line[:60].decode("utf-8", "replace")
    return repr(text + ("…" if len(line) > 60 else ""))


def _csv(file: BinaryIO, options: InputOptions) -> Iterator[Chunk]:
    from pyarrow import csv

    types: dict[str, Any] = {"key": pa.binary(), "value": pa.binary(), "timestamp": pa.string()}
    if options.schema is not None:
        types = {f.name: _csv_type(f) for f in options.schema}
    counted = _Counted(file)
    try:
        reader = csv.open_csv(
            counted,
            read_options=csv.ReadOptions(block_size=BLOCK_BYTES),
            parse_options=csv.ParseOptions(delimiter=options.delimiter, newlines_in_values=True),
            convert_options=csv.ConvertOptions(
                column_types=types,
                null_values=list(options.null_values),
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        for batch in reader:
            table = _parsed(pa.table(batch), ENVELOPE_SCHEMA if options.schema is None else options.schema)
            yield Chunk(table, counted.count)
    except pa.ArrowException as e:
        if "Empty CSV file" in str(e):
            return
        raise InputError(f"not readable as CSV: {_csv_reason(str(e))}") from e


def _csv_reason(text: str) -> str:
    """PyArrow's message with the column first, and the remedy for the commonest case."""
    reason = text.splitlines()[0]
    found = re.search(r"invalid value '(.*)'", reason)
    if found and found[1].upper() in ("NA", "NULL", "NAN", "N/A", "NONE", "\\N", "-"):
        return f"{reason}; if it means a missing value, add --null-value {found[1]!r}"
    return reason


def _jsonl(file: BinaryIO, options: InputOptions) -> Iterator[Chunk]:
    assert options.schema is not None
    schema = options.schema
    by_rows = any(needs_rows(f.type) for f in schema)
    lines = 0
    for block, done in _blocks(file):
        if block.strip():
            table = _json_rows(block, schema, lines) if by_rows else _json_table(block, schema, lines)
            yield Chunk(table, done)
        lines += block.count(b"\n")


def _json_rows(block: bytes, schema: pa.Schema, lines_before: int) -> pa.Table:
    try:
        return read_rows(block, schema)
    except JsonValueError as e:
        raise InputError(f"not readable as JSON lines: {e} (near line {lines_before + e.row + 1})") from e


def _json_table(block: bytes, schema: pa.Schema, lines_before: int) -> pa.Table:
    from pyarrow import json as arrow_json

    # PyArrow's reader takes any zone into a column without one, and gives a float beyond its range as infinity
    as_text = pa.schema([(f.name, pa.string() if pa.types.is_temporal(f.type) else _wide(f.type)) for f in schema])
    parse = arrow_json.ParseOptions(explicit_schema=as_text, unexpected_field_behavior="infer")
    read = arrow_json.ReadOptions(block_size=len(block), use_threads=False)
    try:
        table = arrow_json.read_json(io.BytesIO(block), read, parse)
    except pa.ArrowException as e:
        raise InputError(f"not readable as JSON lines: {_json_reason(str(e), lines_before)}") from e
    return _parsed(table, schema)


def _json_reason(text: str, lines_before: int) -> str:
    """PyArrow counts rows from 0 inside the block; people count lines from 1 in the file."""
    reason = text.splitlines()[0].removeprefix("JSON parse error: ")
    return re.sub(r"in row (\d+)", lambda m: f"in line {lines_before + int(m[1]) + 1}", reason)


def _wide(t: Any) -> Any:
    """`t` with double for float, at any depth: what is beyond float's range can be told then (`_parsed`)."""
    if pa.types.is_float32(t):
        return pa.float64()
    if pa.types.is_list(t):
        return pa.list_(t.value_field.with_type(_wide(t.value_type)))
    if pa.types.is_struct(t):
        return pa.struct([f.with_type(_wide(f.type)) for f in t])
    return t


def _csv_type(field: pa.Field) -> Any:
    if pa.types.is_nested(field.type) or pa.types.is_duration(field.type):
        raise InputError(f"column {field.name!r} is {field.type}, which CSV cannot hold: use jsonl, parquet or arrow")
    with_zone = pa.types.is_timestamp(field.type) and field.type.tz
    return pa.string() if with_zone else _wide(field.type)


def _parsed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Turns columns read as text into dates and times, those read as double into float. A time without a zone is taken
    as UTC where the column has a zone."""
    for field in schema:
        index = table.schema.get_field_index(field.name)
        if index < 0:
            continue
        column, t = table.column(index), field.type
        try:
            if pa.types.is_temporal(t) and pa.types.is_string(column.type):
                parsed = _zoned(column, t) if pa.types.is_timestamp(t) and t.tz else column.cast(t)
            elif column.type != t and column.type == _wide(t):
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


def _zoned(text: Any, t: Any) -> Any:
    has_zone = pc.match_substring_regex(text, _WITH_ZONE)
    has_time = pc.match_substring_regex(text, _WITH_TIME)
    suffix = pc.if_else(has_zone, "", pc.if_else(has_time, "Z", " 00:00:00Z"))
    return pc.binary_join_element_wise(pc.utf8_trim_whitespace(text), suffix, "").cast(t)


def _parquet(path: Path) -> Source:
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except pa.ArrowException as e:
        raise InputError(f"{path} is no Parquet file: {str(e).splitlines()[0]}") from e

    def chunks() -> Iterator[Chunk]:
        done = 0
        with file:
            for batch in file.iter_batches(BATCH_ROWS):
                done += batch.num_rows
                yield Chunk(pa.table(batch), done)

    return Source(chunks(), file.metadata.num_rows)


def _arrow(path: Path | None, stdin: BinaryIO) -> Source:
    name = "stdin" if path is None else str(path)
    try:
        if path is None:
            return Source(_stream(pa.ipc.open_stream(stdin)), None)
        mapped = pa.memory_map(str(path))
        if mapped.read(6) != b"ARROW1":
            mapped.seek(0)
            return Source(_stream(pa.ipc.open_stream(mapped)), None)
        file = pa.ipc.open_file(mapped)
    except pa.ArrowException as e:
        raise InputError(f"{name} is no Arrow file: {str(e).splitlines()[0]}") from e
    chunks = (Chunk(pa.Table.from_batches([file.get_batch(i)]), i + 1) for i in range(file.num_record_batches))
    return Source(chunks, file.num_record_batches)


def _stream(reader: Any) -> Iterator[Chunk]:
    for i, batch in enumerate(reader):
        yield Chunk(pa.Table.from_batches([batch]), i + 1)
