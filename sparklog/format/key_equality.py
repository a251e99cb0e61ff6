"""The rule of key equality, which partition choice, compaction, the newest rows and upserted tables share.

| column | two values are one key if |
|---|---|
| float, double | they are equal numbers (0.0 and -0.0 are one key), or both are NaN, whatever its bits and sign |
| all other types | their stored bytes are equal |

Nulls are equal to each other. DuckDB (`PARTITION BY`) and Spark (windows) compare floating-point numbers by the same
rule.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa


def canonical_numbers(numbers: np.ndarray) -> np.ndarray:
    """Return floating-point numbers with one zero, 0.0, and one NaN; arrays of other types stay unchanged."""
    if not np.issubdtype(numbers.dtype, np.floating):
        return numbers
    kind = numbers.dtype.type
    return np.asarray(np.where(np.isnan(numbers), kind(np.nan), numbers + kind(0)))


def canonical_key(column: Any) -> Any:
    """Return a key column whose equal keys have equal bytes. Nulls stay null. The result: the column; the same object
    for types other than floating-point numbers."""
    if not pa.types.is_floating(column.type):
        return column
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([canonical_key(chunk) for chunk in column.chunks], column.type)
    is_null = np.asarray(column.is_null().to_numpy(zero_copy_only=False)) if column.null_count else None
    numbers = canonical_numbers(column.fill_null(0).to_numpy(zero_copy_only=False))
    return pa.array(numbers, column.type, mask=is_null)
