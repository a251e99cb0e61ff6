"""Sizes of records and batches before they are encoded, and the error of a record that is too large."""

from __future__ import annotations

import pyarrow as pa

from sparklog.errors import MessageTooLargeError

ROW_OVERHEAD_BYTES = 24
"""Upper bound of an envelope row's bytes besides its key and value: three offsets, a timestamp, validity."""
ENVELOPE_FIXED_BYTES_MIN, ENVELOPE_FIXED_BYTES_MAX = 640, 1024
"""Smallest and largest number of bytes of an envelope batch besides its rows."""
HEADER_BYTES = 192
"""Largest number of bytes that sparklog's header adds to an Arrow message."""


def estimated_bytes(batch: pa.RecordBatch) -> int:
    """Return the size in bytes of the batch encoded without compression, or slightly more. If the batch is stored
    packed, the result is up to 16 bytes per record too high."""
    return HEADER_BYTES + int(pa.ipc.get_record_batch_size(batch))


def too_large(topic: str, size_bytes: int, max_bytes: int) -> MessageTooLargeError:
    return MessageTooLargeError(
        f"a record of {size_bytes} bytes; topic {topic!r} takes batches of at most {max_bytes} bytes: make it smaller, "
        "or create the topic with a larger max.message.bytes"
    )
