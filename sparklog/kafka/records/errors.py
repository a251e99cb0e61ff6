"""Errors of single records in a batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa

from sparklog.errors import SchemaMismatchError, SparklogError, UnsupportedVersionError

RECORDS_NAMED_MAX = 1_000
"""Largest number of records of one batch whose errors an answer contains."""


class InvalidRecordError(SchemaMismatchError):
    """The error of a batch with records that the topic does not accept. Its message is that of the first such
    record."""

    def __init__(self, records: Mapping[int, str]) -> None:
        super().__init__(next(iter(records.values())))
        self.records = records
        """Messages by the index of the record in its batch, in ascending order; at most RECORDS_NAMED_MAX."""


class MalformedBatchError(SchemaMismatchError):
    """The error of a batch whose checksum is right, but whose content is no list of records. Sending it again does not
    help."""


class UnsupportedCodecError(UnsupportedVersionError):
    """The error of a batch whose compression the request's version of the API does not know."""


def keyless(topic: str, indices: Iterable[int]) -> InvalidRecordError:
    """Return the error for records without a key in a compacted topic."""
    return InvalidRecordError(
        {
            i: f"record {i} has no key: topic {topic!r} is compacted, and keeps the last record of each key"
            for i in indices
        }
    )


def without_frames(error: SparklogError) -> SparklogError:
    """Return the error without its traceback and causes, whose frames keep the memory of the batch."""
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error


def places(mask: pa.BooleanArray) -> list[int]:
    """Return the indices of the first RECORDS_NAMED_MAX records for which `mask` is true."""
    rows: list[int] = np.flatnonzero(mask)[:RECORDS_NAMED_MAX].tolist()
    return rows
