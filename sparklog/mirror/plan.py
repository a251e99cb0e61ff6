"""The plan of a mirror's topics: names, partitions and settings that a source's topics get here. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from msgspec import Struct

from sparklog.errors import InvalidConfigError, InvalidTopicError, SchemaMismatchError
from sparklog.format.ddl import parse_ddl
from sparklog.format.key_format import KEY_FORMAT_SETTING, KEY_SCHEMA_SETTING
from sparklog.format.schema import canonical_schema
from sparklog.kafka.topic_settings import own_text
from sparklog.metadata.mirror_settings import REFUSED_OF
from sparklog.metadata.refused_topics import refused_topic, refused_topic_settings
from sparklog.metadata.store import PARTITIONS_MAX
from sparklog.mirror.definition import SOURCE_NAME_CHARS_MAX, MirrorDefinition, matcher
from sparklog.mirror.source import SourceTopic
from sparklog.settings import LAKE_PREFIX, MIRROR_PREFIX, Scope, settings_of
from sparklog.types import check_topic_name

if TYPE_CHECKING:  # the parsers of schemas take long to load
    from sparklog.kafka.schemas.schema_types import Parsed

COPIED = (
    "cleanup.policy",
    "retention.ms",
    "retention.bytes",
    "max.message.bytes",
    "compression.type",
    "segment.bytes",
    "segment.ms",
    "delete.retention.ms",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "max.compaction.lag.ms",
)
"""Settings in effect at the source that a topic gets at its creation."""
_AT_LEAST = ("max.message.bytes",)
"""Settings that are only raised: batches have other sizes here."""
INTERNAL_PREFIX = "__"
OF_ITS_CLUSTER = (
    "min.insync.replicas",
    "unclean.leader.election.enable",
    "remote.storage.enable",
    "local.retention.ms",
    "local.retention.bytes",
)
"""Settings of a sparklog cluster's topic that concern its replicas and its object store, not its records."""


class PlannedTopic(Struct, frozen=True):
    """A topic that a mirror is to create. A typed topic gets a topic for its refused records, too."""

    name: str
    partitions: int
    configs: Mapping[str, object]
    """Settings of the topic, those of the mirror included."""
    remarks: tuple[str, ...]
    """Settings of the source that are not kept, with the reason."""
    schemas: Sequence[pa.Schema | str] = ()
    """Schemas of a typed topic in their order, as DDL or Arrow; empty: an envelope topic."""
    key_columns: Sequence[str] = ()
    """Key columns of a typed topic."""
    timestamp_column: str | None = None
    """Column with the event time of a typed topic's rows."""
    refused: Mapping[str, object] | None = None
    """Settings of the topic of refused records; None: there is none."""


class Registered(NamedTuple):
    """Functions that look a topic's newest schemas up in the registry."""

    columns: Callable[[str], pa.Schema] | None
    """Returns the columns of the values; None: the values have no schemas that name columns."""
    key: Callable[[str], tuple[int, Parsed]] | None
    """Returns the schema of the keys with its id; None: the keys have no schemas."""


NO_REGISTRY = Registered(None, None)


def chosen_topics(definition: MirrorDefinition, names: Iterable[str], internal: Iterable[str] = ()) -> list[str]:
    """Return the source's topics that the mirror copies. Internal topics of Kafka are never copied."""
    pattern, hidden = matcher(definition.topics), set(internal)
    return sorted(
        name
        for name in names
        if len(name) <= SOURCE_NAME_CHARS_MAX
        and pattern.fullmatch(name)
        and name not in hidden
        and not name.startswith(INTERNAL_PREFIX)
    )


def planned_topic(
    definition: MirrorDefinition,
    topic: SourceTopic,
    settings: Mapping[str, object],
    registered: Registered = NO_REGISTRY,
) -> PlannedTopic:
    """Return the plan of one topic. `settings`: those at the source. Raises InvalidTopicError for a topic that cannot
    exist here; InvalidConfigError for a typed topic without columns, or with keys that do not fit them; and the errors
    of `registered`."""
    name, partitions = topic.name, len(topic.partitions)
    check_topic_name(name)
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise InvalidTopicError(f"topic {name!r} has {partitions} partitions at the source; 1 to {PARTITIONS_MAX} fit")
    copied, remarks = own_settings(settings) if definition.is_of_sparklog else copied_settings(settings)
    configs = copied | definition.settings(topic.topic_id)
    if not definition.is_typed:
        return PlannedTopic(
            name, partitions, configs, tuple(remarks), topic.schemas, topic.key_columns, topic.timestamp_column
        )
    columns = definition.columns_of(name)
    if columns is None and registered.columns is None:
        raise InvalidConfigError(
            f"topic {name!r} has no columns: name them (--ddl '{name}=id BIGINT, …'), or leave the topic out of --topics"
        )
    check_topic_name(refused_topic(name))
    refused = refused_settings(definition, name, copied)
    keys: Sequence[str] = () if columns is None else columns.key_columns
    schema: pa.Schema | str
    if registered.columns is not None and (columns is None or not columns.ddl):
        schema = registered.columns(name)
    else:
        assert columns is not None
        schema = columns.ddl
    if registered.key is not None:
        schema, keys, more = _with_keys(schema, keys, registered.key(name))
        configs |= more
    return PlannedTopic(name, partitions, configs, tuple(remarks), (schema,), keys, refused=refused)


def _with_keys(
    schema: pa.Schema | str, keys: Sequence[str], key: tuple[int, Parsed]
) -> tuple[pa.Schema, Sequence[str], dict[str, object]]:
    """Return the columns of a topic with those of its keys, the names of these, and the settings of the keys. `keys`:
    the chosen key columns; empty: those of the schema. Raises InvalidConfigError."""
    from sparklog.kafka.values.framed_keys import form_of_schema, pinned_schema, with_key_columns  # late: takes long

    columns = canonical_schema(parse_ddl(schema) if isinstance(schema, str) else schema)
    try:
        columns, names = with_key_columns(columns, key[1], keys)
        pinned = pinned_schema(*key).text
    except SchemaMismatchError as e:
        raise InvalidConfigError(f"its keys do not fit its columns: {e}") from None
    return columns, names, {KEY_FORMAT_SETTING: form_of_schema(key[1]), KEY_SCHEMA_SETTING: pinned}


def refused_settings(definition: MirrorDefinition, topic: str, settings: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of a topic of refused records. `settings`: those of the typed topic."""
    return {**definition.settings(""), REFUSED_OF: topic, **refused_topic_settings(settings)}


def own_settings(source: Mapping[str, object]) -> tuple[dict[str, object], list[str]]:
    """Return the settings of a sparklog cluster's topic that a topic here gets, and remarks about the others."""
    others = (MIRROR_PREFIX, LAKE_PREFIX)
    kept = {n: v for n, v in source.items() if not n.startswith(others) and n not in OF_ITS_CLUSTER}
    left = sorted(n for n in source if n in OF_ITS_CLUSTER)
    return kept, [f"{name} = {source[name]!r:.100} is not kept: it concerns the source's cluster" for name in left]


def copied_settings(source: Mapping[str, object]) -> tuple[dict[str, object], list[str]]:
    """Return the settings for a topic here, without defaults, and remarks about those that are not kept."""
    table = settings_of(Scope.TOPIC)
    settings: dict[str, object] = {}
    remarks: list[str] = []
    for name in COPIED:
        if name not in source:
            continue
        setting = table[name]
        try:
            value = setting.parse(own_text(setting, str(source[name])))
        except InvalidConfigError as e:
            remarks.append(f"{name} = {source[name]!r:.100} is not kept: {e}")
            continue
        is_small = name in _AT_LEAST and isinstance(value, int) and value < int(setting.default)
        if value != setting.default and not is_small:
            settings[name] = value
    if source.get("message.timestamp.type") == "LogAppendTime":
        remarks.append(
            "message.timestamp.type = LogAppendTime is not kept: records keep the time of their append at the source "
            "as their own time (CreateTime)"
        )
    if source.get("min.insync.replicas", "1") != "1":
        remarks.append(
            f"min.insync.replicas = {source['min.insync.replicas']!r:.100} is not kept: replicas are those of this cluster"
        )
    return settings, remarks
