"""`consume --key`: selects the records with one key."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import typer

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
            parts = json.loads(text)
        except ValueError:
            parts = []
        if not isinstance(parts, list) or len(parts) != len(names):
            raise typer.BadParameter(
                f"--key {text!r}: topic {topic.name} has the key columns {', '.join(names)}; write a JSON list of their "
                f"values, as in '[{', '.join(['1'] * len(names))}]'"
            )
    return {name: _scalar(topic, name, part) for name, part in zip(names, parts, strict=True)}


def _scalar(topic: TopicDescription, name: str, value: Any) -> Any:
    t = topic.schema.field(name).type
    if value is None:
        return pa.scalar(None, t)
    text = value if isinstance(value, str) else json.dumps(value)
    try:
        return pa.scalar(text).cast(t)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
        raise typer.BadParameter(f"--key {text!r}: column {name} of topic {topic.name} is {t}") from e


def has_key(data: Any, values: dict[str, Any]) -> Any:
    """Return a boolean mask of the rows whose key columns have these values; null equals null."""
    mask = None
    for name, value in values.items():
        column = data.column(name)
        hit = pc.fill_null(pc.equal(column, value), False) if value.is_valid else pc.is_null(column)
        mask = hit if mask is None else pc.and_(mask, hit)
    return mask
