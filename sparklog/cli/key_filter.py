"""`consume --key`: selects the records with one key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import typer

from sparklog.export.json_rows import JsonValueError, whole_column
from sparklog.format.json_exact import BINARY_MARK, column_value, number_of_text, parse_json, text_as_bytes

if TYPE_CHECKING:
    from sparklog.client.admin.admin import TopicDescription


def key_columns(topic: TopicDescription) -> tuple[str, ...]:
    """Return the columns that hold a record's key. Raises typer.BadParameter for a topic without keys."""
    if topic.kind == "envelope":
        return ("key",)
    if not topic.key_columns:
        raise typer.BadParameter(f"--key: topic {topic.name} has no key columns; `sparklog sql` filters by any column")
    return topic.key_columns


def key_values(topic: TopicDescription, text: str) -> dict[str, Any]:
    """Parse the value of `--key` to Arrow scalars by key column.

    Several key columns need a JSON list of their values. Raises typer.BadParameter.
    """
    names = key_columns(topic)
    if topic.kind == "envelope":
        return {"key": pa.scalar(text.encode("utf-8", "surrogateescape"), pa.binary())}
    parts: list[Any] = [text]
    if len(names) > 1:
        try:
            parts = parse_json(text)
        except JsonValueError:
            parts = []
        if not isinstance(parts, list) or len(parts) != len(names):
            raise typer.BadParameter(
                f"--key {text!r}: topic {topic.name} has the key columns {', '.join(names)}; write a JSON list of their "
                f"values, as in '[{', '.join(['1'] * len(names))}]'"
            )
    return {name: _scalar(topic, name, part) for name, part in zip(names, parts, strict=True)}


def _scalar(topic: TopicDescription, name: str, value: Any) -> Any:
    field = topic.schema.field(name)
    if value is None:
        return pa.scalar(None, field.type)
    try:
        return whole_column([column_value(_of_text(value, field.type), field, text_as_bytes)], field)[0]
    except JsonValueError as e:
        raise typer.BadParameter(f"--key {value!s:.80}: {e}") from e


def _of_text(value: Any, t: Any) -> Any:
    """Return the value of JSON for which a text stands in CSV. Raises JsonValueError."""
    if not isinstance(value, str):
        return value
    if pa.types.is_integer(t) or pa.types.is_floating(t) or pa.types.is_decimal(t):
        return number_of_text(value)
    is_marked = pa.types.is_binary(t) and value.startswith(f'{{"{BINARY_MARK}":')
    return parse_json(value) if pa.types.is_boolean(t) or is_marked else value


def has_key(data: Any, values: dict[str, Any]) -> Any:
    """Return a boolean mask of the rows whose key columns have these values. Null equals null, and NaN equals NaN."""
    mask = None
    for name, value in values.items():
        column = data.column(name)
        if not value.is_valid:
            hit = pc.is_null(column)
        elif pa.types.is_floating(value.type) and value.as_py() != value.as_py():
            hit = pc.fill_null(pc.is_nan(column), False)
        else:
            hit = pc.fill_null(pc.equal(column, value), False)
        mask = hit if mask is None else pc.and_(mask, hit)
    return mask
