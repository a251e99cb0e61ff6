"""Errors of single records."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from sparklog.errors import SchemaMismatchError

RECORDS_NAMED_MAX = 1_000
"""Records of one batch that an answer names."""


class InvalidRecordError(SchemaMismatchError):
    """Records of one batch that the topic does not accept. The message describes the first of them."""

    def __init__(self, records: Mapping[int, str]) -> None:
        super().__init__(next(iter(records.values())))
        self.records = records
        """Messages by the place of the record in its batch, in ascending order; at most RECORDS_NAMED_MAX."""


def places(mask: pa.BooleanArray) -> list[int]:
    """Return the places of the first RECORDS_NAMED_MAX records of which `mask` is true."""
    found: list[int] = np.flatnonzero(mask)[:RECORDS_NAMED_MAX].tolist()
    return found
