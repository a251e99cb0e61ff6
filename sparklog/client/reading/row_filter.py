"""Arrow expressions as filters of rows. Pure."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

_NOT_BOUND = (pa.ArrowInvalid, pa.ArrowKeyError, pa.ArrowNotImplementedError)


def binding_error(expression: Any, schema: pa.Schema) -> Exception | None:
    """Return Arrow's error if an expression cannot filter rows of a schema; None if it can."""
    try:
        schema.empty_table().filter(expression)
    except (*_NOT_BOUND, TypeError) as e:
        return e
    return None


def columns_of(expression: Any, schema: pa.Schema) -> tuple[str, ...]:
    """Return the columns that an expression needs, in the schema's order.

    Arrow does not list the columns of an expression. Therefore columns are removed as long as the expression can still
    be bound to the rest.

    `expression`: an expression that can be bound to the schema."""
    names = list(schema.names)
    size = max(1, len(names) // 2)
    while True:
        for start in range(0, len(names), size):
            remaining = names[:start] + names[start + size :]
            if binding_error(expression, pa.schema([schema.field(name) for name in remaining])) is None:
                names = remaining
                break
        else:
            if size == 1:
                return tuple(names)
            size = max(1, size // 2)
