"""The definition of a mirror, as the settings of its topics repeat it, and the choice of topics and groups."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from sparklog.errors import InvalidConfigError
from sparklog.format.ddl import parse_ddl
from sparklog.format.schema import canonical_schema, require_columns
from sparklog.metadata.mirror_settings import (
    NAME,
    PROMOTED_TOPIC_ID,
    REFUSED_OF,
    SOURCE,
    SOURCE_TOPIC_ID,
    SPARKLOG,
    VALUE_FORMAT,
)
from sparklog.settings import MIRROR_PREFIX, Scope, settings_of

KAFKA = "kafka://"
SOURCE_CONFIG, TOPICS, GROUPS = "mirror.source.config", "mirror.topics", "mirror.groups"
COLUMNS, HEADERS, REGISTRY = "mirror.columns", "mirror.headers", "mirror.registry"
KEY_FORMAT = "mirror.key.format"
REFUSED_MAX, BYTES_PER_SECOND = "mirror.refused.max", "mirror.bytes.per.second"
PAUSED, LOST = "mirror.paused", "mirror.lost"
JSON, AVRO, PROTOBUF, JSON_SCHEMA = "json", "avro", "protobuf", "json-schema"
REGISTERED_FORMATS = (AVRO, PROTOBUF, JSON_SCHEMA)
"""Formats of values that begin with the id of a schema in a registry (`kafka/values/framed_records.py`)."""
VALUE_FORMATS = (JSON, *REGISTERED_FORMATS)
DROP = "drop"
COLUMNS_CHARS_MAX = 100_000
NAME_CHARS_MAX = 100
PATTERN_CHARS_MAX = 1_000
SOURCE_NAME_CHARS_MAX = 249
"""Longest name of a topic or group of the source that is compared with an expression."""
LOST_RANGES_MAX = 200
"""Largest number of lost ranges that a topic's setting lists; later ones are only in the worker's log."""
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_PORT = re.compile(r":\d+$")


class TopicColumns(Struct, frozen=True):
    """The columns of the mirror's topics that match an expression."""

    topics: str
    """Regular expression of whole names of topics; empty: all topics of the mirror."""
    ddl: str
    """Columns as Spark's DDL; empty: those of the newest schema in the registry."""
    key_columns: tuple[str, ...] = ()
    """Columns that the records' keys fill."""


class MirrorDefinition(Struct, frozen=True):
    """One mirror: its source, and the topics and groups that it copies."""

    name: str
    source: str
    """Address of the source: kafka://HOST:PORT or sparklog://HOST:PORT, several with commas."""
    source_config: str = ""
    """Properties file with the client settings for the source; empty: plaintext."""
    topics: str = ""
    """Regular expressions of the topics, separated by commas."""
    groups: str = ""
    """Regular expressions of the groups, separated by commas; empty: no group."""
    value_format: str = ""
    """Format of the values, which become columns; empty: the topics are envelope topics."""
    columns: str = ""
    """Columns of typed topics, as `columns_text` writes them."""
    drops_headers: bool = False
    """True to leave out the headers, for which a typed topic has no place; False to refuse records with headers."""
    bytes_per_second: int = 0
    """Largest rate at which one worker fetches from the source; 0: no limit."""
    registry: str = ""
    """Address of the registry that has the schemas of the values and keys."""
    key_format: str = ""
    """Format of the keys if they have schemas; empty: text or JSON."""

    @property
    def is_typed(self) -> bool:
        """True if the values of a Kafka cluster become the columns of typed topics."""
        return bool(self.value_format)

    @property
    def is_of_sparklog(self) -> bool:
        """True if the source is a sparklog cluster, whose topics keep their columns."""
        return self.source.startswith(SPARKLOG)

    def columns_of(self, topic: str) -> TopicColumns | None:
        """Return the columns of a new topic: the first that match it. None: none match. Raises InvalidConfigError."""
        for columns in read_columns(self.columns):
            if not columns.topics or matcher(columns.topics).fullmatch(topic):
                return columns
        return None

    def follows_registry(self, topic: str) -> bool:
        """Return True if a topic has the columns of its newest schema in the registry. Raises InvalidConfigError."""
        columns = self.columns_of(topic)
        return self.value_format in (AVRO, PROTOBUF) and (columns is None or not columns.ddl)

    @property
    def bootstrap_servers(self) -> str:
        """The source's brokers, as host:port separated by commas."""
        return self.source.removeprefix(KAFKA).removeprefix(SPARKLOG)

    def settings(self, source_topic_id: str) -> dict[str, object]:
        """Return the settings of a new topic of the mirror. `source_topic_id`: "" if the source has no ids."""
        settings: dict[str, object] = {
            NAME: self.name,
            SOURCE: self.source,
            SOURCE_CONFIG: self.source_config,
            TOPICS: self.topics,
            GROUPS: self.groups,
            VALUE_FORMAT: self.value_format,
            COLUMNS: self.columns,
            HEADERS: DROP if self.drops_headers else "",
            BYTES_PER_SECOND: self.bytes_per_second,
            REGISTRY: self.registry,
            KEY_FORMAT: self.key_format,
            SOURCE_TOPIC_ID: source_topic_id,
        }
        return {name: value for name, value in settings.items() if value}


class MirroredTopic(Struct, frozen=True):
    """A topic of a mirror, by its settings."""

    topic: str
    definition: MirrorDefinition
    source_topic_id: str
    """Id of the source's topic; "" if the source had no ids."""
    paused: str
    """Reason of the pause; "": not paused."""
    lost: tuple[str, ...]
    """Lost ranges, as PARTITION:FIRST-END."""
    refused_max: int = 0
    """Largest number of refused records of a typed topic; -1: no limit."""


def mirrored_topic(topic: str, configs: Mapping[str, object]) -> MirroredTopic | None:
    """Return the topic's state as a mirrored topic; None if no mirror fills it, or if it has the refused records of a
    mirrored topic."""

    def text(name: str) -> str:
        return str(configs.get(name) or "")

    def number(name: str) -> int:
        setting = settings_of(Scope.TOPIC)[name]
        return int(setting.parse(configs.get(name, setting.default)))

    if not text(NAME) or text(REFUSED_OF):
        return None
    definition = MirrorDefinition(
        text(NAME),
        text(SOURCE),
        text(SOURCE_CONFIG),
        text(TOPICS),
        text(GROUPS),
        text(VALUE_FORMAT),
        text(COLUMNS),
        text(HEADERS) == DROP,
        number(BYTES_PER_SECOND),
        text(REGISTRY),
        text(KEY_FORMAT),
    )
    lost = tuple(part for part in text(LOST).split(",") if part)
    return MirroredTopic(topic, definition, text(SOURCE_TOPIC_ID), text(PAUSED), lost, number(REFUSED_MAX))


def columns_text(columns: Sequence[TopicColumns]) -> str:
    """Return the text of a mirror's columns."""
    return json.dumps([[one.topics, one.ddl, list(one.key_columns)] for one in columns]) if columns else ""


def read_columns(text: str) -> list[TopicColumns]:
    """Return the columns that `columns_text` has written. Raises InvalidConfigError."""
    try:
        return [TopicColumns(topics, ddl, tuple(keys)) for topics, ddl, keys in json.loads(text or "[]")]
    except (ValueError, TypeError) as e:
        raise InvalidConfigError(
            f"{COLUMNS} = {text!r:.200}: a list of [expression, columns, key columns] is needed: {e}"
        ) from e


def promoted_settings(source_topic_id: str = "") -> dict[str, object | None]:
    """Return the change of settings that opens a topic for writers. `source_topic_id`: id of the source's topic, which
    the topic keeps; "": none."""
    removed = {name: None for name in settings_of(Scope.TOPIC) if name.startswith(MIRROR_PREFIX)}
    return removed | {PROMOTED_TOPIC_ID: source_topic_id or None}


def copied_topic_id(configs: Mapping[str, object]) -> str:
    """Return the id of the source's topic of which a topic is the copy, or was until its promotion; "": it is none.
    `configs`: settings of the topic."""
    setting = SOURCE_TOPIC_ID if configs.get(NAME) else PROMOTED_TOPIC_ID
    return "" if configs.get(REFUSED_OF) else str(configs.get(setting) or "")


def with_lost(lost: Iterable[str], partition: int, first: int, end: int) -> str:
    """Return the setting with one more lost range. It replaces a range with the same first offset, which was noted
    before the source deleted more records."""
    ranges = dict(part.rsplit("-", 1) for part in lost if "-" in part)
    ranges[f"{partition}:{first}"] = str(end)
    return ",".join([f"{begin}-{end}" for begin, end in ranges.items()][:LOST_RANGES_MAX])


def lost_records(lost: Iterable[str]) -> dict[int, int]:
    """Return the number of lost offsets by partition."""
    counts: dict[int, int] = {}
    for part in lost:
        partition, _, bounds = part.partition(":")
        first, _, end = bounds.partition("-")
        if partition.isdecimal() and first.isdecimal() and end.isdecimal():
            counts[int(partition)] = counts.get(int(partition), 0) + int(end) - int(first)
    return counts


def check_definition(definition: MirrorDefinition) -> None:
    """Raise InvalidConfigError for a definition that no mirror can have."""
    if not _NAME.fullmatch(definition.name) or len(definition.name) > NAME_CHARS_MAX:
        raise InvalidConfigError(
            f"mirror {definition.name!r}: a name has 1 to {NAME_CHARS_MAX} letters, digits, dots, hyphens and "
            "underscores"
        )
    if not definition.source.startswith((KAFKA, SPARKLOG)) or not _has_addresses(definition):
        raise InvalidConfigError(
            f"source {definition.source!r}: use {KAFKA}HOST:PORT for a Kafka cluster or {SPARKLOG}HOST:PORT for a sparklog "
            f"cluster, several brokers with commas: {KAFKA}a:9092,b:9092"
        )
    if not definition.topics:
        raise InvalidConfigError("no topics: name them by regular expressions with commas, such as 'orders,logs-.*'")
    for pattern in (definition.topics, definition.groups):
        matcher(pattern)
    _check_columns(definition)


def _has_addresses(definition: MirrorDefinition) -> bool:
    """Return False for a source without an address, or with an address of Kafka without a port, which has no default
    there."""
    parts = [part.strip() for part in definition.bootstrap_servers.split(",") if part.strip()]
    return bool(parts) and (definition.is_of_sparklog or all(map(_PORT.search, parts)))


def _check_columns(definition: MirrorDefinition) -> None:
    columns = read_columns(definition.columns)
    concerns_columns = bool(columns or definition.drops_headers or definition.registry or definition.key_format)
    if definition.is_of_sparklog and (definition.value_format or concerns_columns):
        raise InvalidConfigError(
            "columns, headers and the formats of values and keys concern Kafka's topics: the topics of a sparklog cluster keep "
            "their own columns"
        )
    if not definition.value_format:
        if concerns_columns:
            raise InvalidConfigError(
                "columns, headers, the registry and the format of keys concern typed topics: name the format of the values (--value-format "
                "json)"
            )
        return
    if definition.value_format not in VALUE_FORMATS:
        raise InvalidConfigError(
            f"value format {definition.value_format!r}: use one of {', '.join(VALUE_FORMATS)}, or none for topics that "
            "keep the values as bytes"
        )
    if definition.key_format and definition.key_format not in REGISTERED_FORMATS:
        raise InvalidConfigError(
            f"key format {definition.key_format!r}: use one of {', '.join(REGISTERED_FORMATS)}, or none for keys in text or "
            "JSON"
        )
    is_registered = definition.value_format in REGISTERED_FORMATS or bool(definition.key_format)
    if is_registered != bool(definition.registry):
        needs = (
            "needs a schema registry: name its address" if is_registered else "needs no schema registry: leave it out"
        )
        form = (
            f"key format {definition.key_format!r}"
            if definition.key_format
            else f"value format {definition.value_format!r}"
        )
        raise InvalidConfigError(f"{form} {needs} (--registry)")
    if not columns and definition.value_format in (JSON, JSON_SCHEMA):
        raise InvalidConfigError(
            f"value format {definition.value_format!r} needs the columns of the topics, such as --ddl 'id BIGINT, name "
            "STRING'"
        )
    if len(definition.columns) > COLUMNS_CHARS_MAX:
        raise InvalidConfigError(
            f"the columns take {len(definition.columns)} characters, at most {COLUMNS_CHARS_MAX} are allowed: create "
            "several mirrors"
        )
    for one in columns:
        matcher(one.topics)
        if one.ddl:
            require_columns(canonical_schema(parse_ddl(one.ddl)), list(one.key_columns), None)


def matcher(patterns: str) -> re.Pattern[str]:
    """Return the expression that matches a whole name by one of the comma-separated `patterns`. Raises
    InvalidConfigError."""
    if len(patterns) > PATTERN_CHARS_MAX:
        raise InvalidConfigError(f"a pattern of {len(patterns)} characters; at most {PATTERN_CHARS_MAX} are allowed")
    parts = [part.strip() for part in patterns.split(",") if part.strip()]
    try:
        for part in parts:
            re.compile(part)
        return re.compile("|".join(f"(?:{part})" for part in parts) if parts else r"(?!)")
    except re.error as e:
        raise InvalidConfigError(f"pattern {patterns!r:.200} is no regular expression: {e}") from e
