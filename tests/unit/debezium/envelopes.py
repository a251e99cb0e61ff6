"""Debezium's events, as Kafka Connect's JsonConverter writes them."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

PLACEHOLDER = "__debezium_unavailable_value"
DECIMAL = "org.apache.kafka.connect.data.Decimal"
TIME, CONNECT, DATA = "io.debezium.time.", "org.apache.kafka.connect.data.", "io.debezium.data."


def field(name: str, literal: str, logical: str | None = None, **more: Any) -> dict[str, Any]:
    """Return the schema of a field."""
    made: dict[str, Any] = {"field": name, "type": literal, "optional": True, **more}
    return made if logical is None else {**made, "name": logical}


def decimal(name: str, precision: int, scale: int) -> dict[str, Any]:
    parameters = {"scale": str(scale), "connect.decimal.precision": str(precision)}
    return field(name, "bytes", DECIMAL, parameters=parameters)


def event(
    operation: str,
    before: Any = None,
    after: Any = None,
    fields: list[dict[str, Any]] | None = None,
    **more: Any,
) -> bytes:
    """Return an event; with `fields` it has a schema part."""
    payload = {"before": before, "after": after, "op": operation, "ts_ms": 1, **more}
    if fields is None:
        return json.dumps(payload).encode()
    rows = [{"type": "struct", "field": name, "fields": fields} for name in ("before", "after")]
    schema = {"type": "struct", "fields": [*rows, field("op", "string")], "name": "server.db.t.Envelope"}
    return json.dumps({"schema": schema, "payload": payload}).encode()


def key(columns: Mapping[str, Any], fields: list[dict[str, Any]] | None = None) -> bytes:
    """Return a record's key; with `fields` it has a schema part."""
    if fields is None:
        return json.dumps(columns).encode()
    return json.dumps({"schema": {"type": "struct", "fields": fields}, "payload": columns}).encode()


def in_base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def unscaled(number: int) -> str:
    """Return the base64 of a number in as few bytes as Java writes."""
    return in_base64(number.to_bytes((number.bit_length() + 8) // 8, "big", signed=True))
