"""The schema that a stored batch was written with: the batch's header names its id, which can be wrong."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from sparklog.errors import CorruptBatchError, UnknownSchemaError
from sparklog.format.batch import BatchHeader

SchemaOf = Callable[[int], pa.Schema]
"""A topic's schema by its id. Raises KeyError or UnknownSchemaError."""


def schema_of_batch(header: BatchHeader, schema_of: SchemaOf) -> pa.Schema:
    """Return the schema that `header` names. Raises CorruptBatchError if the topic does not have this schema."""
    try:
        return schema_of(header.schema_id)
    except (KeyError, UnknownSchemaError) as e:
        raise CorruptBatchError(f"it names schema {header.schema_id}, which the topic lacks") from e
