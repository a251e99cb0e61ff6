"""Text as blocks of whole lines, and the lines of it that are no records: each is named, with its reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, NamedTuple

import msgspec
import pyarrow as pa

from sparklog.errors import SchemaMismatchError

BLOCK_BYTES = 4 * 1024 * 1024
LINE_BYTES_MAX = 256 * 1024 * 1024


class InputError(Exception):
    """The input does not have the expected form; the message names the place."""


class Piece(NamedTuple):
    """The lines of one record: `line` is the number of its first line, from 1."""

    line: int
    text: bytes


class Refused(NamedTuple):
    """A record that does not fit the topic."""

    line: int
    reason: str
    text: bytes


Refuse = Callable[[Refused], None]


def fail(refused: Refused) -> None:
    """End the input at its first refused record. Raises InputError."""
    raise InputError(f"line {refused.line}{refused.reason}")


class RefusedLines:
    """Counts refused records and writes them to `out` (None: nowhere) as JSON lines: line, reason, text."""

    def __init__(self, out: BinaryIO | None) -> None:
        self._out = out
        self._encoder = msgspec.json.Encoder()
        self.count = 0

    def __call__(self, refused: Refused) -> None:
        self.count += 1
        if self._out is not None:
            text = refused.text.decode("utf-8", "backslashreplace").rstrip("\r\n")
            row = {"line": refused.line, "reason": refused.reason.removeprefix(", ").removeprefix(": "), "text": text}
            self._out.write(self._encoder.encode(row) + b"\n")
            self._out.flush()


def lines_of(text: bytes) -> list[bytes]:
    """Return the lines, each with its end; the last one may have none."""
    lines = [line + b"\n" for line in text.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def last_line_end(text: bytes) -> int:
    """Return the position behind the last whole line."""
    return text.rfind(b"\n") + 1


def blocks(
    file: BinaryIO, cut: Callable[[bytes], int] = last_line_end, *, line_bytes_max: int = LINE_BYTES_MAX
) -> Iterator[tuple[bytes, int]]:
    """Yield blocks of whole records (the last one may lack its newline), with the bytes read so far. `cut` gives the
    position behind the last whole record of a text; 0: it has none. Raises InputError for a line that is too long."""
    rest = b""
    done = 0
    # read1: lines typed or piped in slowly are handed on as they come
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


def fitting(
    pieces: Sequence[Piece],
    convert: Callable[[bytes], pa.Table],
    reason: Callable[[Exception, Piece], str],
    refuse: Refuse,
) -> Iterator[pa.Table]:
    """Yield the tables of all pieces that `convert` accepts, in order; the others go to `refuse`. A refused piece is
    halved until each refused line stands alone, so that a block without faults costs one conversion.
    """
    if not pieces:
        return
    try:
        table = convert(b"".join(p.text for p in pieces))
    except (pa.ArrowException, SchemaMismatchError, ValueError) as e:
        if len(pieces) == 1:
            refuse(Refused(pieces[0].line, reason(e, pieces[0]), pieces[0].text))
            return
        middle = len(pieces) // 2
        yield from fitting(pieces[:middle], convert, reason, refuse)
        yield from fitting(pieces[middle:], convert, reason, refuse)
    else:
        yield table
