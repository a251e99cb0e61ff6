"""Records of one partition that are still being collected by `send`, until the sender encodes them."""

from __future__ import annotations

import time
from array import array

import numpy as np
import pyarrow as pa

from sparklog.client.producer.futures import Delivery
from sparklog.client.producer.rows import Headers, envelope_batch
from sparklog.format.small_batch import ROWS_MAX as SMALL_ROWS_MAX
from sparklog.format.small_batch import SmallRows
from sparklog.types import TopicPartition

Rest = tuple[bytes | None, Headers | None, int | None]
"""The parts of a record besides its value: key, headers, timestamp in ms."""


class OpenBatch:
    """Records of one partition that are still being collected, as columns of Python objects.

    The batch has reserved `reserved_bytes` of `buffer.memory`; no record uses the `room_bytes` among them yet. Parts
    that most records lack take no memory for those records: `keys` can be shorter than `values` (the rest have no key),
    and `headers` and `explicit_timestamps_ms` map the number of a row to its value.
    """

    __slots__ = (
        "created",
        "delivery",
        "explicit_timestamps_ms",
        "headers",
        "keys",
        "reserved_bytes",
        "room_bytes",
        "timestamps_ns",
        "values",
    )

    def __init__(self, tp: TopicPartition) -> None:
        self.created = time.monotonic()
        self.delivery = Delivery(tp)
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.headers: dict[int, Headers] = {}
        self.timestamps_ns = array("q")
        self.explicit_timestamps_ms: dict[int, int] = {}
        self.reserved_bytes = 0
        self.room_bytes = 0

    @property
    def is_typed(self) -> bool:
        """True if the records are rows of a typed topic."""
        return bool(self.values) and not isinstance(self.values[0], bytes | None)

    @property
    def size_bytes(self) -> int:
        return self.reserved_bytes - self.room_bytes

    def set_rest(self, row: int, rest: Rest) -> None:
        """Set key, headers and timestamp of the next row, which has the number `row`."""
        key, headers, timestamp_ms = rest
        if key is not None:
            keys = self.keys
            if len(keys) != row:
                keys[row:] = [None] * (row - len(keys))
            keys.append(key)
        if headers:
            self.headers[row] = headers
        if timestamp_ms is not None:
            self.explicit_timestamps_ms[row] = timestamp_ms

    def drop_unfinished(self) -> None:
        """Remove the parts of an unfinished row after an exception (Ctrl-C) in `send`."""
        n = len(self.values)
        del self.keys[n:], self.timestamps_ns[n:]
        for column in (self.headers, self.explicit_timestamps_ms):
            column.pop(n, None)

    def small_rows(self) -> SmallRows | None:
        """Return the records if they are few and simple, and give the delivery their timestamps. None for typed topics,
        for more than SMALL_ROWS_MAX records, and for records with headers, with a null value, or of which only some
        have a key."""
        n = len(self.values)
        if self.is_typed or not 0 < n <= SMALL_ROWS_MAX or self.headers or len(self.keys) not in (0, n):
            return None
        values, keys = ([v for v in column if v is not None] for column in (self.values, self.keys))
        if len(values) != n or len(keys) != len(self.keys):
            return None
        stamps = [ns // 1000 for ns in self.timestamps_ns[:n]]
        for row, timestamp_ms in self.explicit_timestamps_ms.items():
            stamps[row] = timestamp_ms * 1000
        self.delivery.timestamps_us = stamps
        return SmallRows(values, keys or None, stamps)

    def to_arrow(self) -> pa.RecordBatch:
        """Return the records in the columns of an envelope topic. The delivery gets their timestamps."""
        n = len(self.values)
        stamps = np.frombuffer(self.timestamps_ns, np.int64, n) // 1000
        for row, timestamp_ms in self.explicit_timestamps_ms.items():
            stamps[row] = timestamp_ms * 1000
        self.delivery.timestamps_us = stamps
        keys = self.keys[:n] + [None] * (n - len(self.keys)) if self.keys else None
        headers = [self.headers.get(row) for row in range(n)] if self.headers else None
        return envelope_batch(self.values, keys, headers, stamps)
