"""The form of a typed topic's keys, which decides the partition of a row (`kafka.key.format`).

| value | key of a row | partition |
|---|---|---|
| json | canonical JSON of the key columns (`format/canonical_json.py`) | Kafka's hash of these bytes |
| text | UTF-8 bytes of the only key column | Kafka's hash of these bytes |
| avro, protobuf, json-schema | a record of the topic's key schema, with its id | Kafka's hash of these bytes |
| empty | as json | hash of the columns' values (`client/producer/partitioner.py`) |

The bytes of a key with a schema begin with the schema's id. So a topic has one key schema for life, with its id: the
setting `kafka.key.schema`, which is set once. All clients that write rows encode keys with this schema.

A topic has its form for life, because another form moves keys to other partitions. A new topic gets a form when it is
created: text for one key column of text, because Kafka's clients send such a key as its bytes; json for all other keys.
Topics without the setting are empty: releases without the setting have created them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, TypeVar

import msgspec
import pyarrow as pa
from msgspec import Meta, Struct

from sparklog.errors import InvalidConfigError
from sparklog.format.decoders import json_decoder

KEY_FORMAT_SETTING = "kafka.key.format"
VALUE_FORMAT_SETTING = "kafka.value.format"
REFUSED_SETTING, REFUSED_TO_TOPIC = "kafka.refused.records", "topic"
"""Setting that sends refused records to a topic of their own (`metadata/refused_topics.py`), and its value."""
KEY_SCHEMA_SETTING = "kafka.key.schema"
JSON, TEXT = "json", "text"
SCHEMA_FORMATS = ("avro", "protobuf", "json-schema")
"""Forms of keys with a schema of a registry."""
KEY_SCHEMA_CHARS_MAX = 65_536
KEY_SCHEMA_PARTS_MAX = 100
"""Largest number of schemas that a key schema uses; a registry has the same limit."""

T = TypeVar("T")


class PinnedPart(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A schema to which the key schema of a topic refers, directly or through others."""

    schema: str = ""
    """Text of an Avro or JSON schema."""
    compiled: str = ""
    """Descriptor of a Protobuf schema in base64."""
    uses: dict[str, int] = {}
    """Places among the parts of the schemas to which it refers, by its names for them. They stand before it."""


class PinnedSchema(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The key schema of a topic, as the setting `kafka.key.schema` has it."""

    id: Annotated[int, Meta(ge=0, lt=2**31)]
    """Id in the registry, with which each key begins."""
    schema: str = ""
    """Text of an Avro or JSON schema."""
    type: Literal["AVRO", "JSON", "PROTOBUF"] = "AVRO"
    compiled: str = ""
    """Descriptor of a Protobuf schema in base64, so that clients need no compiler."""
    parts: Annotated[list[PinnedPart], Meta(max_length=KEY_SCHEMA_PARTS_MAX)] = []
    """The schemas to which it refers, so that clients need no registry."""
    uses: dict[str, int] = {}
    """Places among the parts, as those of a part."""

    @property
    def text(self) -> str:
        """The setting's text."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def read(cls, text: str) -> PinnedSchema:
        """Return the schema of a setting's text. Raises ValueError."""
        return json_decoder(cls).decode(text)


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
    _check_key_schema(topic, settings)
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
    """Raise InvalidConfigError if changed settings of a topic have another form of its keys, or another key schema than
    an earlier one."""
    old, new = (str(configs.get(KEY_FORMAT_SETTING, "")) for configs in (before, after))
    if old != new:
        raise InvalidConfigError(
            f"topic {topic!r}: {KEY_FORMAT_SETTING} cannot be changed from {old or 'empty'} to {new or 'empty'}, because "
            "equal keys would go to other partitions; create a new topic with the setting"
        )
    schema = before.get(KEY_SCHEMA_SETTING)
    if schema and after.get(KEY_SCHEMA_SETTING) != schema:
        raise InvalidConfigError(
            f"topic {topic!r}: {KEY_SCHEMA_SETTING} cannot be changed, because equal keys would go to other partitions; "
            "create a new topic"
        )
    _check_key_schema(topic, after)


def _check_key_schema(topic: str, configs: Mapping[str, object]) -> None:
    """Raise InvalidConfigError if the settings have a key schema that the topic cannot have."""
    text = str(configs.get(KEY_SCHEMA_SETTING, ""))
    if not text:
        return
    form = configs.get(KEY_FORMAT_SETTING, "")
    if form not in SCHEMA_FORMATS:
        reason = f"only keys in {', '.join(SCHEMA_FORMATS)} have a schema ({KEY_FORMAT_SETTING})"
    elif len(text) > KEY_SCHEMA_CHARS_MAX:
        reason = f"it has {len(text)} characters, at most {KEY_SCHEMA_CHARS_MAX} are allowed"
    else:
        try:
            PinnedSchema.read(text)
        except ValueError as e:
            reason = f"it is no schema with its id: {e}"
        else:
            return
    raise InvalidConfigError(f"topic {topic!r}: {KEY_SCHEMA_SETTING}={text:.100}: {reason}")


def key_rules(partitions: int, key_columns: Sequence[str], configs: Mapping[str, object]) -> int:
    """Return a number for the properties of a topic by which a gateway accepts a record's key: the number of partitions
    if the topic has key columns, and compaction, in which each record needs a key. Never negative.

    `configs`: the topic's settings, with those that it inherits. The broker compares the number with that of its own
    topic, so that no record is accepted by an earlier state of the topic."""
    compacts = "compact" in str(configs.get("cleanup.policy", "")).split(",")
    return 2 * (partitions if key_columns else 0) + compacts


def _is_text(schema: pa.Schema, key_columns: Sequence[str]) -> bool:
    return len(key_columns) == 1 and bool(pa.types.is_string(schema.field(key_columns[0]).type))
