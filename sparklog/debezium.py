"""Converts Debezium's change events to rows of a keyed topic."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sparklog.errors import DeserializationError

OPERATION_COLUMN = "_op"
OPERATIONS = ("c", "u", "d", "r", "t", "m")


def unwrap_debezium(envelopes: Any, schema: str | None = None, *, column: str = "value") -> Any:
    """Turn Debezium's change events into rows: the columns of the changed row, and `_op`.

    An event has the fields `before`, `after` and `op`, either at the top or inside a field `payload`. The row is the
    value of `after`; for a deletion ("d") it is the value of `before`, because the row needs the key. Tombstones (null)
    and events without a row are left out.

    Args:
        envelopes: A Spark DataFrame whose `column` has the events as JSON; or an iterable of events, each as JSON text,
            bytes, or a dict.
        schema: Columns of the changed row, as DDL text. None is allowed for an iterable only.
        column: Name of the DataFrame's column with the events.

    Returns:
        A DataFrame, or for an iterable a list of dicts for `Producer.send_batch`.

    Raises:
        DeserializationError: An event of an iterable is not a Debezium event. In a DataFrame such events are left out.
        TypeError: `schema` is missing for a DataFrame.

    Example:
        ```python
        producer.send_batch("accounts", sparklog.unwrap_debezium(events))
        ```
    """
    if hasattr(envelopes, "selectExpr"):
        if schema is None:
            raise TypeError("unwrap_debezium of a DataFrame needs schema=: the columns of the changed row, as DDL text")
        return _unwrap_frame(envelopes, schema, column)
    return [row for envelope in envelopes if (row := _row(envelope)) is not None]


def _row(envelope: Any) -> dict[str, Any] | None:
    event = envelope
    if isinstance(event, bytes | bytearray | memoryview | str):
        try:
            event = json.loads(bytes(event) if isinstance(event, memoryview) else event)
        except ValueError as e:
            raise DeserializationError(f"a Debezium event is no JSON: {e}") from e
    if isinstance(event, Mapping) and "payload" in event and "op" not in event:
        event = event["payload"]
    if event is None:
        return None
    if not isinstance(event, Mapping) or event.get("op") not in OPERATIONS:
        raise DeserializationError(
            f"no Debezium event: {str(envelope)[:200]!r}; use an object with op, before and after"
        )
    row = event.get("before" if event["op"] == "d" else "after")
    if row is None:
        return None
    if not isinstance(row, Mapping):
        raise DeserializationError(
            f"a Debezium event has a {type(row).__name__} as its row, not an object: {str(envelope)[:200]!r}; for "
            "MongoDB use the connector's ExtractNewDocumentState"
        )
    return {**row, OPERATION_COLUMN: event["op"]}


def _unwrap_frame(frame: Any, schema: str, column: str) -> Any:
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import StringType, StructType

    changed: Any = StructType.fromDDL(schema)
    event = StructType().add("before", changed).add("after", changed).add("op", StringType())
    wrapped = StructType().add("payload", event)
    text = F.col(column).cast("string")
    inner = F.from_json(text, wrapped).getField("payload")
    parsed = frame.select(F.coalesce(inner, F.from_json(text, event)).alias("event"))
    parsed = parsed.where(F.col("event.op").isin(*OPERATIONS))
    row = F.when(F.col("event.op") == "d", F.col("event.before")).otherwise(F.col("event.after"))
    rows = parsed.select(row.alias("row"), F.col("event.op").alias(OPERATION_COLUMN)).where("row IS NOT NULL")
    return rows.select("row.*", OPERATION_COLUMN)
