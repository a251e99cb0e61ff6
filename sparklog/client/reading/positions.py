"""Parses positions in a topic as users write them (`earliest`, `1000`, `-100`, `-1h`, `yesterday`) and finds their
offsets.

`read_table`, the commands and the console use this module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from msgspec import Struct

from sparklog.errors import InvalidRequestError
from sparklog.times import TIME_HELP, parse_time_ms, time_ms_of
from sparklog.types import OffsetAndTimestamp, TopicPartition, whole_number

POSITION_HELP = f"use earliest, latest, an offset, -N for N offsets before the end, or a time: {TIME_HELP}"
OFFSET_MAX = 2**62
_OFFSET = re.compile(r"-?[0-9][0-9_]{0,24}")


class AtTime(Struct, frozen=True):
    """The position of the first record at or after this time in ms since 1970; the end if no record is that new."""

    time_ms: int


class BeforeEnd(Struct, frozen=True):
    """The position that lies a number of offsets before a partition's end."""

    offsets: int


Position = Literal["earliest", "latest"] | int | AtTime | BeforeEnd
"""An int is an offset."""
Ask = Callable[[Mapping[TopicPartition, "str | int"]], Mapping[TopicPartition, OffsetAndTimestamp]]
"""Looks up an offset for each partition: `earliest`, `latest`, or a time in ms."""


def parse_position(text: str, now_ms: int) -> Position:
    """Return the position that a text names. `text`: `earliest`, `latest`, an offset, `-N` for N offsets before the
    end, or a time. Raises InvalidRequestError."""
    word = text.strip()
    if word.lower() == "earliest":
        return "earliest"
    if word.lower() == "latest":
        return "latest"
    if _OFFSET.fullmatch(word):
        number = int(word)
        if abs(number) > OFFSET_MAX:
            raise InvalidRequestError(f"offset {text!r}: at most {OFFSET_MAX}")
        return BeforeEnd(-number) if word.startswith("-") else number
    try:
        return AtTime(parse_time_ms(word, now_ms))
    except InvalidRequestError as e:
        if str(e).startswith("time zone"):
            raise
        raise InvalidRequestError(f"{text!r}: {POSITION_HELP}") from e


def position_of(value: object, now_ms: int) -> Position:
    """Return the position that an argument names. `value`: a text of `parse_position`, an offset, a datetime or a date;
    also as a scalar of NumPy or Arrow. Raises InvalidRequestError."""
    if isinstance(value, AtTime | BeforeEnd):
        return value
    original, value = value, _plain(value)
    if isinstance(value, str):
        return parse_position(value, now_ms)
    if isinstance(value, datetime | date) and value == value:  # pandas' NaT is a datetime, and no time
        return AtTime(time_ms_of(value, now_ms))
    number = whole_number(value)
    if number is not None and -OFFSET_MAX <= number <= OFFSET_MAX:
        return number if number >= 0 else BeforeEnd(-number)
    raise InvalidRequestError(f"{original!r}: {POSITION_HELP}")


def _plain(value: object) -> object:
    """Return the Python object of an Arrow scalar or a NumPy time, which are elements of a table's columns."""
    if isinstance(value, pa.Scalar):
        scalar: Any = value
        if pa.types.is_timestamp(value.type):
            scalar = scalar.cast(pa.timestamp("us", value.type.tz), safe=False)
        return scalar.as_py()
    if isinstance(value, np.datetime64):
        return value.astype("datetime64[us]").item()  # the item of a datetime64 in ns is a number
    return value


def offsets_of(
    position: Position,
    partitions: Sequence[TopicPartition],
    earliest: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
    ask: Ask,
) -> dict[TopicPartition, int]:
    """Return the position's offset in each partition. Only a position that is an offset can lie outside of a partition.
    `ask`: looks up the offsets of a time; called at most once, and for no other position. Raises SparklogError."""
    if position == "earliest" or (isinstance(position, AtTime) and position.time_ms <= 0):
        return {tp: earliest[tp] for tp in partitions}  # not asked: negative times are names in the protocol
    if position == "latest":
        return {tp: latest[tp] for tp in partitions}
    if isinstance(position, BeforeEnd):
        return {tp: max(earliest[tp], latest[tp] - position.offsets) for tp in partitions}
    if isinstance(position, AtTime):
        located = ask(dict.fromkeys(partitions, position.time_ms)) if partitions else {}
        return {tp: min(located[tp].offset, latest[tp]) if located[tp].offset >= 0 else latest[tp] for tp in partitions}
    return dict.fromkeys(partitions, position)
