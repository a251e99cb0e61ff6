"""Text input as blocks of whole lines, and the search for the records that do not fit the topic."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, NamedTuple

import msgspec
import pyarrow as pa

from sparklog.errors import InvalidPartitionsError, MessageTooLargeError, SchemaMismatchError
from sparklog.export.printable import text_or_base64

BLOCK_BYTES = 4 * 1024 * 1024
LINE_BYTES_MAX = 256 * 1024 * 1024
REFUSALS = (pa.ArrowException, SchemaMismatchError, InvalidPartitionsError, MessageTooLargeError, ValueError)
"""Errors about records: they cannot be read, or the producer refuses them."""
_THE_ROW = re.compile(r"\brow 0(?= (?:has|names) )")


class InputError(Exception):
    """The input does not have the expected form. The message has the line."""


class Piece(NamedTuple):
    """The text of one record."""

    line: int
    """Number of the record's first line, from 1."""
    text: bytes


class Refused(NamedTuple):
    """A record that does not fit the topic."""

    line: int
    """Number of the record's first line, from 1."""
    reason: str
    """Error text that follows the line number; begins with ", ", ": " or a space."""
    text: bytes


Refuse = Callable[[Refused], None]


def fail(refused: Refused) -> None:
    """Raise InputError for the first refused record."""
    raise InputError(f"line {refused.line}{refused.reason}")


class RefusedLines:
    """Counts refused records, and writes them to `out` unless it is None: a JSON line with line, reason and text. The
    text is `{"base64": …}` if it is not UTF-8."""

    def __init__(self, out: BinaryIO | None) -> None:
        self._out = out
        self._encoder = msgspec.json.Encoder()
        self.count = 0

    def __call__(self, refused: Refused) -> None:
        self.count += 1
        if self._out is not None:
            text = text_or_base64(refused.text.rstrip(b"\r\n"))
            row = {"line": refused.line, "reason": refused.reason.removeprefix(", ").removeprefix(": "), "text": text}
            self._out.write(self._encoder.encode(row) + b"\n")
            self._out.flush()


def lines_of(text: bytes) -> list[bytes]:
    """Return the lines of the text, each with its newline. The last line can lack the newline."""
    lines = [line + b"\n" for line in text.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def last_line_end(text: bytes) -> int:
    """Return the position after the last newline; 0 if there is none."""
    return text.rfind(b"\n") + 1


def blocks(
    file: BinaryIO, cut: Callable[[bytes], int] = last_line_end, *, line_bytes_max: int = LINE_BYTES_MAX
) -> Iterator[tuple[bytes, int]]:
    """Yield blocks of whole records, each with the number of bytes read so far.

    The last block can lack its newline. `cut` returns the end position of the last whole record of a text; 0 if there
    is none. Raises InputError if more than `line_bytes_max` bytes contain no end of a record.
    """
    rest = b""
    done = 0
    # read1 returns the available bytes, so that lines from a keyboard or a slow pipe are sent without delay
    read = getattr(file, "read1", file.read)
    while block := read(BLOCK_BYTES):
        done += len(block)
        rest += block
        at = cut(rest)
        if at:
            yield rest[:at], done
            rest = rest[at:]
        if len(rest) > line_bytes_max:
            raise InputError(f"a line is longer than {line_bytes_max} bytes: is this a text file?")
    if rest:
        yield rest, done


def fitting_block(
    block: bytes,
    pieces: Callable[[], Sequence[Piece]],
    convert: Callable[[bytes], pa.Table],
    reason: Callable[[Exception, Piece], str],
    refuse: Refuse,
) -> Iterator[pa.Table]:
    """Yield the tables of a block: one if `convert` accepts the block, else those of `fitting` for its `pieces`."""
    try:
        table = convert(block)
    except REFUSALS:
        yield from fitting(pieces(), convert, reason, refuse)
    else:
        yield table


def fitting(
    pieces: Sequence[Piece],
    convert: Callable[[bytes], pa.Table],
    reason: Callable[[Exception, Piece], str],
    refuse: Refuse,
) -> Iterator[pa.Table]:
    """Yield tables of the records that `convert` accepts, in order, and pass the other records to `refuse`.

    A block with a faulty record is halved until the record stands alone. A block without faults is converted once.
    """
    if not pieces:
        return
    try:
        table = convert(b"".join(p.text for p in pieces))
    except REFUSALS as e:
        if len(pieces) == 1:
            text = _THE_ROW.sub("the record", reason(e, pieces[0]))  # the producer counts the rows of a table
            refuse(Refused(pieces[0].line, text, pieces[0].text))
            return
        middle = len(pieces) // 2
        yield from fitting(pieces[:middle], convert, reason, refuse)
        yield from fitting(pieces[middle:], convert, reason, refuse)
    else:
        yield table
