"""The timestamp of a batch for look-ups by time, and for the age of its segment."""

from __future__ import annotations

from sparklog.format.batch import ATTRIBUTE_CONTROL, ATTRIBUTE_LOG_APPEND_TIME, BatchHeader

LOWEST_TIMESTAMP_MS = -(2**63)
"""Timestamp of a batch or segment without records, or without a record that has a timestamp."""


def batch_timestamp_ms(header: BatchHeader) -> int:
    """Return the largest timestamp of a batch's records. If the batch has `LogAppendTime`, this is the broker's append
    time. A marker, which has no timestamp, gets LOWEST_TIMESTAMP_MS."""
    if header.attributes & ATTRIBUTE_CONTROL:
        return LOWEST_TIMESTAMP_MS
    return header.append_time_ms if header.attributes & ATTRIBUTE_LOG_APPEND_TIME else header.max_timestamp_ms


def roll_time_ms(header: BatchHeader) -> int:
    """Return the time of a batch for the rule of `segment.ms`: the batch's timestamp; for a marker its append time."""
    return header.append_time_ms if header.attributes & ATTRIBUTE_CONTROL else batch_timestamp_ms(header)
