"""The input of `sparklog produce`: a file or stdin as a stream of Arrow tables.

Memory holds a part of the input only: a block of CSV or JSON lines, a batch of a Parquet or an Arrow file.
"""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa

from sparklog.cli.csv_input import CsvOptions, parse_as, read_csv, record_end, require_usual_numbers, wide_type
from sparklog.cli.input_lines import InputError, Piece, Refuse, blocks, fail, fitting_block, lines_of
from sparklog.errors import SchemaMismatchError
from sparklog.export.json_rows import JsonValueError, needs_rows, read_rows

__all__ = ["Chunk", "InputError", "InputOptions", "Source", "open_input"]

BATCH_ROWS = 65_536
_LINE_START = re.compile(rb"^[ \t\r]*[^ \t\r\n]", re.MULTILINE)
_NULL = re.compile(rb"^[ \t\r]*null", re.MULTILINE)


class Chunk(NamedTuple):
    """Rows of the input that `InputOptions.accept` has taken."""

    table: pa.Table
    done: int
    """Progress so far, in the unit of `Source.total`."""


@dataclass(frozen=True)
class Source:
    """A readable input."""

    chunks: Iterator[Chunk]
    """The rows; can be iterated once."""
    total: int | None
    """Size of the input in bytes (text), rows (Parquet) or batches (Arrow), for the progress bar; None: unknown."""


@dataclass(frozen=True)
class InputOptions:
    """The options of the input. All but `accept` are for text."""

    schema: pa.Schema | None
    """The topic's schema; None for an envelope topic."""
    accept: Callable[[pa.Table], None] = lambda table: None
    """Gets each table of rows. It can raise one of REFUSALS, and then has taken no row: text is tried again in smaller
    pieces, down to the record at fault."""
    key_separator: str | None = None
    """Text between key and value of a line; None: a line is a value."""
    delimiter: str = ","
    null_values: tuple[str, ...] = ("",)
    """Unquoted CSV texts that mean null."""
    refuse: Refuse = fail
    """Handler of each record that does not fit the topic; the default raises InputError."""


def open_input(path: Path | None, stdin: BinaryIO, format: str, options: InputOptions) -> Source:
    """Open the file `path`, or `stdin` if it is None. `format` is csv, jsonl, parquet, arrow or lines. Raises
    InputError, OSError."""
    if format in ("parquet", "arrow"):
        source = _parquet(_seekable(path, "parquet")) if format == "parquet" else _arrow(path, stdin)
        return replace(source, chunks=(Chunk(_accepted(c.table, options), c.done) for c in source.chunks))
    total = None if path is None else path.stat().st_size
    file = stdin if path is None else path.open("rb")
    read: Callable[[BinaryIO, InputOptions], Iterator[Chunk]]
    if format == "csv":
        read = _csv
    elif format == "jsonl":
        read = _jsonl if options.schema is not None else _lines
    else:
        read = _lines
    return Source(_close_at_end(file, path is not None, read(file, options)), total)


def _close_at_end(file: BinaryIO, ours: bool, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    try:
        yield from chunks
    finally:
        if ours:
            file.close()


def _seekable(path: Path | None, format: str) -> Path:
    if path is None:
        raise InputError(f"{format} cannot be read from stdin: give the file's name")
    return path


def _accepted(table: pa.Table, options: InputOptions) -> pa.Table:
    options.accept(table)
    return table


def _lines(file: BinaryIO, options: InputOptions) -> Iterator[Chunk]:
    """Yield each line as a record's value. With a key separator, the key is the text before the first separator."""
    number = 1
    for block, done in blocks(file):
        pieces = partial(_pieces, block, number)
        for table in fitting_block(block, pieces, partial(_line_table, options=options), _line_reason, options.refuse):
            yield Chunk(table, done)
        number += block.count(b"\n")


def _line_table(block: bytes, options: InputOptions) -> pa.Table:
    lines = block.split(b"\n")
    if not lines[-1]:
        lines.pop()
    values: list[bytes] = [line.removesuffix(b"\r") for line in lines]
    if not options.key_separator:
        return _accepted(pa.table({"value": pa.array(values, pa.binary())}), options)
    parts = [value.partition(options.key_separator.encode()) for value in values]
    bare = next((key for key, is_named, _ in parts if not is_named), None)
    if bare is not None:
        raise _NoKeyError(f"has no key separator {options.key_separator!r}: {_shorten(bare)}")
    columns = {"key": [key for key, _, _ in parts], "value": [value for _, _, value in parts]}
    return _accepted(pa.table({n: pa.array(c, pa.binary()) for n, c in columns.items()}), options)


class _NoKeyError(ValueError):
    """A line lacks the key separator."""


def _line_reason(error: Exception, piece: Piece) -> str:
    return f"{'' if isinstance(error, _NoKeyError) else ':'} {error}"


def _pieces(block: bytes, line: int) -> list[Piece]:
    """Return the lines of a block, with their numbers from `line` on."""
    return [Piece(number, text) for number, text in enumerate(lines_of(block), line)]


def _shorten(line: bytes) -> str:
    text = line[:60].decode("utf-8", "replace")
    return repr(text + ("…" if len(line) > 60 else ""))


def _csv(file: BinaryIO, options: InputOptions) -> Iterator[Chunk]:
    how = CsvOptions(options.schema, options.delimiter, options.null_values)
    cut = partial(record_end, delimiter=options.delimiter)
    accept = partial(_accepted, options=options)
    return (Chunk(table, done) for table, done in read_csv(blocks(file, cut), how, accept, options.refuse))


def _jsonl(file: BinaryIO, options: InputOptions) -> Iterator[Chunk]:
    assert options.schema is not None
    schema = options.schema
    line = 1

    def convert(text: bytes) -> pa.Table:
        return _accepted(_read_json(text, schema), options)

    for block, done in blocks(file):
        if line == 1:
            block = block.removeprefix(codecs.BOM_UTF8)
        if block.strip():
            pieces = partial(_json_pieces, block, line)
            for table in fitting_block(block, pieces, convert, _json_reason, options.refuse):
                yield Chunk(table, done)
        line += block.count(b"\n")


def _json_pieces(block: bytes, line: int) -> list[Piece]:
    return [piece for piece in _pieces(block, line) if piece.text.strip()]


def _read_json(block: bytes, schema: pa.Schema) -> pa.Table:
    """Parse a block of JSON lines: with PyArrow's reader, or by the rules if it cannot read the block."""
    if not any(needs_rows(f.type) for f in schema):
        with suppress(pa.ArrowException, ValueError, SchemaMismatchError):
            return _json_table(block, schema)
    return read_rows(block, schema)


def _json_table(block: bytes, schema: pa.Schema) -> pa.Table:
    """Parse a block of JSON lines with PyArrow's reader, which takes half the time of `read_rows`. Raises one of
    REFUSALS for all texts that the rules may judge otherwise."""
    from pyarrow import json as arrow_json

    if not block.isascii():
        block.decode()  # PyArrow's reader accepts text that is not UTF-8
    lines = _count_lines(block)
    types = [pa.string() if pa.types.is_temporal(t) or pa.types.is_decimal(t) else wide_type(t) for t in schema.types]
    as_text = pa.schema(list(zip(schema.names, types, strict=True)))
    parse = arrow_json.ParseOptions(explicit_schema=as_text, unexpected_field_behavior="error")
    read = arrow_json.ReadOptions(block_size=len(block), use_threads=False)
    rows = arrow_json.read_json(io.BytesIO(block), read, parse)
    if rows.num_rows > lines:
        raise JsonValueError("a line is one object, and nothing behind it")
    for column, field in zip(rows.columns, schema, strict=True):
        require_usual_numbers(column, field.type)
    return parse_as(rows, schema, is_json=True)


def _count_lines(block: bytes) -> int:
    """Return the number of lines that are not blank.

    Raises JsonValueError for a line that begins with null: PyArrow's reader ends the process if it is the first line,
    and makes a row of a later one.
    """
    text = np.frombuffer(block, np.uint8)
    starts = np.flatnonzero(text[:-1] == ord("\n")) + 1
    if text[0] == ord("{") and (text[starts] == ord("{")).all():  # nearly always; the expressions below are slower
        return len(starts) + 1
    if _NULL.search(block):
        raise JsonValueError("a line is one object: {…}")
    return len(_LINE_START.findall(block))


def _json_reason(error: Exception, piece: Piece) -> str:
    """Return the error text that follows the line number."""
    if piece.text.lstrip().startswith(b"["):
        return ": a line is one object: {…}; `jq -c '.[]'` turns an array into lines"
    return f": {str(error).splitlines()[0]}"


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
