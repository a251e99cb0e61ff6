"""The form of a typed topic's keys, which decides the partition of a row (`kafka.key.format`).

| value | key of a row | partition |
|---|---|---|
| json | canonical JSON of the key columns (`format/canonical_json.py`) | Kafka's hash of these bytes |
| text | UTF-8 bytes of the only key column | Kafka's hash of these bytes |
| empty | as json | hash of the columns' values (`client/producer/partitioner.py`) |

A topic has its form for life, because another form moves keys to other partitions. A new topic gets a form when it is
created: text for one key column of text, because Kafka's clients send such a key as its bytes; json for all other keys.
Topics without the setting are empty: releases without the setting have created them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import pyarrow as pa

from sparklog.errors import InvalidConfigError

KEY_FORMAT_SETTING = "kafka.key.format"
VALUE_FORMAT_SETTING = "kafka.value.format"
JSON, TEXT = "json", "text"

T = TypeVar("T")


def default_key_format(schema: pa.Schema, key_columns: Sequence[str]) -> str:
    """Return the form of a new typed topic's keys; "" for a topic without key columns."""
    if not key_columns:
        return ""
    return TEXT if _is_text(schema, key_columns) else JSON


def with_key_format(
    topic: str, schema: pa.Schema | None, key_columns: Sequence[str], configs: Mapping[str, T | str]
) -> dict[str, T | str]:
    """Return the settings of a new topic with the form of its keys. `topic`: name of the topic, for the error message.
    `schema`: the topic's columns; None for an envelope topic. `configs`: the checked settings of the request. An empty
    form is left out of the result. Raises InvalidConfigError."""
    settings = dict(configs)
    default = "" if schema is None else default_key_format(schema, key_columns)
    form = settings.pop(KEY_FORMAT_SETTING, default)
    if not form:
        return settings
    if schema is None:
        reason = "the keys of an envelope topic are bytes without a form; leave the setting out"
    elif not key_columns:
        reason = "the topic has no key columns; create it with key columns (key_columns=…, --key-columns …)"
    elif form == TEXT and not _is_text(schema, key_columns):
        reason = "only one key column of text can be written as text; use json"
    else:
        return {**settings, KEY_FORMAT_SETTING: form}
    raise InvalidConfigError(f"topic {topic!r}: {KEY_FORMAT_SETTING}={form}: {reason}")


def check_value_format(topic: str, schema: pa.Schema | None, configs: Mapping[str, object]) -> None:
    """Raise InvalidConfigError if an envelope topic, whose `schema` is None, has a form of its records."""
    form = configs.get(VALUE_FORMAT_SETTING, JSON)
    if schema is None and form != JSON:
        raise InvalidConfigError(
            f"topic {topic!r}: {VALUE_FORMAT_SETTING}={form}: the values of an envelope topic are bytes without a form; "
            "leave the setting out, or create a topic with columns"
        )


def check_same_key_format(topic: str, before: Mapping[str, object], after: Mapping[str, object]) -> None:
    """Raise InvalidConfigError if changed settings of a topic have another form of its keys."""
    old, new = (str(configs.get(KEY_FORMAT_SETTING, "")) for configs in (before, after))
    if old != new:
        raise InvalidConfigError(
            f"topic {topic!r}: {KEY_FORMAT_SETTING} cannot be changed from {old or 'empty'} to {new or 'empty'}, because "
            "equal keys would go to other partitions; create a new topic with the setting"
        )


def key_rules(partitions: int, key_columns: Sequence[str], configs: Mapping[str, object]) -> int:
    """Return a number for the properties of a topic by which a gateway accepts a record's key: the number of partitions
    if the topic has key columns, and compaction, in which each record needs a key. Never negative.

    `configs`: the topic's settings, with those that it inherits. The broker compares the number with that of its own
    topic, so that no record is accepted by an earlier state of the topic."""
    compacts = "compact" in str(configs.get("cleanup.policy", "")).split(",")
    return 2 * (partitions if key_columns else 0) + compacts


def _is_text(schema: pa.Schema, key_columns: Sequence[str]) -> bool:
    return len(key_columns) == 1 and bool(pa.types.is_string(schema.field(key_columns[0]).type))
