"""The topic of refused records: `<topic>.refused`, with a row for each record that does not fit the typed topic.

The row of a record has the partition and the offset of the record, so that the log end of the refused topic tells which
refused records are stored. A worker appends the rows before it appends the gap in the topic. If it dies between, the
refused topic ends above the topic: these offsets are decided, and are not decided a second time.
"""

from __future__ import annotations

import pyarrow as pa
from msgspec import Struct

from sparklog.format.schema import HEADER_TYPE, TIMESTAMP_TYPE
from sparklog.mirror.rules import NO_EPOCH

SUFFIX = ".refused"
REASON_CHARS_MAX = 1_000
REFUSED_SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADER_TYPE),
        ("timestamp", TIMESTAMP_TYPE),
        ("reason", pa.string()),
        ("client_id", pa.string()),
        ("number", pa.int64()),
    ]
)
"""Columns of a refused topic. `partition` and `offset`: place of the record in its topic, or at the source. `number`:
number of refused records of the partition up to this one."""


def refused_topic(topic: str) -> str:
    """Return the name of a topic's refused topic."""
    return topic + SUFFIX


class RefusedLog(Struct, frozen=True):
    """The state of a partition of a refused topic."""

    start: int = 0
    """Log start offset."""
    end: int = 0
    """Log end: refused records below it are stored."""
    epoch: int = NO_EPOCH
    """The source's leader epoch of the last refused record."""
    count: int = 0
    """Number of refused records so far."""
    ahead: frozenset[int] = frozenset()
    """Offsets of stored rows at or above the end of the topic: a worker has stored them, and died before it appended
    the gap."""
