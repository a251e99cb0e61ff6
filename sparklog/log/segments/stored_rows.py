"""A check that stored batches can be decoded, for tools that inspect files. Such a tool knows the segment's head, but
not the topic's settings."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from sparklog.errors import CorruptBatchError
from sparklog.format.batch import BatchHeader
from sparklog.format.body_layout import InflatedSizeError
from sparklog.format.offset_column import decode_rows, topic_schema
from sparklog.settings import MIB

TOOL_INFLATED_BYTES_MAX = 256 * MIB
"""Largest decompressed size of a batch that tools check: a topic can allow more, but a tool must use little memory."""


class Misfit(NamedTuple):
    """The reason why a batch with a valid checksum failed the check. `is_unknown`: the batch is too large to be
    checked, so it can be sound."""

    message: str
    is_unknown: bool


class RowsCheck:
    """The check of the batches of one segment, whose head has `schema`."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = topic_schema(schema)

    def misfit(self, data: bytes, header: BatchHeader) -> Misfit | None:
        """Return the reason why readers cannot decode the batch `data`, or why this was not checked; None if they
        can."""
        try:
            decode_rows(data, self._schema, header, inflated_bytes_max=TOOL_INFLATED_BYTES_MAX)
        except InflatedSizeError as e:
            return Misfit(f"{e}: the rest was not checked", is_unknown=True)
        except CorruptBatchError as e:
            return Misfit(f"its records cannot be read: {e}", is_unknown=False)
        return None
