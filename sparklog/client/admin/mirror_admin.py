"""Administration of mirrors: create, promote, pause, resume and delete.

A mirror is the set of its topics: each has the mirror's definition in its settings. So a call that was interrupted is
repeated, and continues.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sparklog.client.admin.mirror_description import mirrored_topics
from sparklog.client.admin.mirror_groups import GroupCopier
from sparklog.client.admin.mirror_plan import (
    Topics,
    create_missing_topics,
    is_refused_topic,
    open_source,
    require_topics,
)
from sparklog.client.admin.schema_argument import arrow_schema_of
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.deadline import Deadline
from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.reading.mirrored_ends import mirrored_ends
from sparklog.errors import InvalidConfigError, RequestTimedOutError, SparklogError, UnknownTopicOrPartitionError
from sparklog.format.ddl import ddl_of
from sparklog.format.schema import canonical_schema
from sparklog.metadata.mirror_settings import NAME, REFUSED_OF
from sparklog.metadata.refused_topics import refused_topic
from sparklog.mirror.definition import (
    AVRO,
    PAUSED,
    PROTOBUF,
    REFUSED_MAX,
    MirrorDefinition,
    TopicColumns,
    check_definition,
    columns_text,
    promoted_settings,
)
from sparklog.mirror.source import MirrorSource
from sparklog.types import TopicPartition

PAUSED_BY_USER = "paused by a user"
POLL_S = 0.5


def mirror_definition(
    name: str,
    *,
    source: str,
    topics: str,
    groups: str | None = None,
    source_config: str | None = None,
    value_format: str | None = None,
    columns: Mapping[str, Any] | None = None,
    key_columns: Mapping[str, Iterable[str]] | None = None,
    drop_headers: bool = False,
    bytes_per_second: int = 0,
    registry: str | None = None,
    key_format: str | None = None,
) -> MirrorDefinition:
    """Return the definition; see `Admin.create_mirror`. Raises InvalidConfigError for a definition that no mirror can
    have, and InvalidTopicError for columns that no topic can have."""
    schemas, keys = dict(columns or {}), dict(key_columns or {})
    are_registered = value_format in (AVRO, PROTOBUF)
    for pattern in keys.keys() - schemas.keys() if not are_registered else ():
        raise InvalidConfigError(f"key columns for {pattern!r}, which has no columns; columns are for {list(schemas)}")
    their_columns = [
        TopicColumns(
            pattern, ddl_of(canonical_schema(arrow_schema_of("columns", schema))), tuple(keys.get(pattern, ()))
        )
        for pattern, schema in schemas.items()
    ]
    their_columns += [TopicColumns(p, "", tuple(names)) for p, names in keys.items() if p not in schemas]
    definition = MirrorDefinition(
        name,
        source,
        source_config or "",
        topics,
        groups or "",
        value_format or "",
        columns_text(their_columns),
        drop_headers,
        bytes_per_second,
        registry or "",
        key_format or "",
    )
    check_definition(definition)
    return definition


def create_mirror(
    admin: Topics,
    infos: Callable[[], Mapping[str, TopicInfo]],
    definition: MirrorDefinition,
    timeout_ms: int,
    refused_max: int | None = None,
) -> None:
    """Create a mirror's topics; see `Admin.create_mirror`. `infos`: reads all topics here."""
    check_definition(definition)
    topics_here = infos()
    source = open_source(definition, timeout_ms)
    try:
        names = require_topics(definition, source, topics_here)
        failures = create_missing_topics(admin, definition, source)
    finally:
        source.close()
    if failures:
        name, reason = next(iter(failures.items()))
        raise InvalidConfigError(
            f"{len(failures)} topics of mirror {definition.name!r} were not created: {name}: {reason}"
        )
    if refused_max is not None and definition.is_typed:
        for name in names:
            admin.alter_topic(name, {REFUSED_MAX: refused_max})


def pause_mirror(admin: Topics, infos: Mapping[str, TopicInfo], name: str, reason: str) -> list[str]:
    """Pause a mirror's topics, and return their names. Raises InvalidConfigError for an unknown mirror."""
    return _set_pause(admin, infos, name, reason or PAUSED_BY_USER)


def resume_mirror(admin: Topics, infos: Mapping[str, TopicInfo], name: str) -> list[str]:
    """Resume a mirror's topics, and return their names. Raises InvalidConfigError for an unknown mirror."""
    return _set_pause(admin, infos, name, None)


def _set_pause(admin: Topics, infos: Mapping[str, TopicInfo], name: str, reason: str | None) -> list[str]:
    topics = [topic.topic for topic in mirrored_topics(infos, name)[name]]
    for topic in topics:
        admin.alter_topic(topic, {PAUSED: reason})
    return topics


def delete_mirror(admin: Topics, infos: Mapping[str, TopicInfo], name: str) -> list[str]:
    """Delete a mirror with its topics that are not promoted, and return their names. Raises InvalidConfigError for an
    unknown mirror."""
    topics = [topic for topic in sorted(infos) if infos[topic].configs.get(NAME) == name]
    if not topics:
        mirrored_topics(infos, name)  # raises
    refused = [topic for topic in topics if infos[topic].configs.get(REFUSED_OF)]
    for topic in [*(topic for topic in topics if topic not in refused), *refused]:  # a worker would create the latter
        with contextlib.suppress(UnknownTopicOrPartitionError):
            admin.delete_topic(topic)
    return topics


def promote_mirror(
    admin: Topics,
    cluster: Cluster,
    infos: Mapping[str, TopicInfo],
    name: str,
    chosen: Sequence[str] | None,
    *,
    now: bool,
    request_timeout_ms: int,
    timeout_ms: int,
    sleep: Callable[[float], None] = time.sleep,
) -> list[str]:
    """Open topics of a mirror for writers; see `Admin.promote_mirror`."""
    by_name = {topic.topic: topic for topic in mirrored_topics(infos, name)[name]}
    for topic_name in chosen or ():
        if topic_name not in by_name:
            raise InvalidConfigError(
                f"mirror {name!r} has no topic {topic_name!r}; it has {', '.join(sorted(by_name))}"
            )
    topics = [by_name[topic] for topic in sorted(chosen or by_name)]
    paused = [topic for topic in topics if topic.paused]
    if paused and not now:
        raise InvalidConfigError(
            f"topic {paused[0].topic!r} is paused: {paused[0].paused}. Use 'sparklog mirror resume {name}', or promote "
            "the topic with the records that it has (--now)"
        )
    definition = topics[0].definition
    tps = [TopicPartition(t.topic, p) for t in topics for p in range(infos[t.topic].partitions)]
    source = open_source(definition, request_timeout_ms)
    try:
        if not now:
            _wait_for_end(source, cluster, tps, name, Deadline(timeout_ms), request_timeout_ms, sleep)
        ends = {tp: end.end for tp, end in mirrored_ends(cluster, tps, request_timeout_ms).items()}
        try:
            source.topics([t.topic for t in topics])
            GroupCopier(admin, source).copy(definition, ends)
        except SparklogError:
            if not now:
                raise  # else the source may be gone: the groups keep the offsets of the last copy
    finally:
        source.close()
    for topic in topics:
        refused = refused_topic(topic.topic)
        if definition.is_typed and refused in infos and is_refused_topic(infos[refused], name, topic.topic):
            admin.alter_topic(refused, promoted_settings())  # first: a repetition finds the typed topic
        admin.alter_topic(topic.topic, promoted_settings(topic.source_topic_id))
    return [topic.topic for topic in topics]


def _wait_for_end(
    source: MirrorSource,
    cluster: Cluster,
    tps: Sequence[TopicPartition],
    name: str,
    deadline: Deadline,
    request_timeout_ms: int,
    sleep: Callable[[float], None],
) -> None:
    """Wait until each partition has the records that are committed at the source now. Raises RequestTimedOutError, and
    the source's errors."""
    targets = {}
    for tp, bounds in source.bounds(source.topics(sorted({tp.topic for tp in tps})), tps).items():
        if isinstance(bounds, SparklogError):
            raise bounds
        targets[tp] = bounds.stable
    while True:
        ends = mirrored_ends(cluster, tps, request_timeout_ms)
        behind = {tp: target - ends[tp].end for tp, target in targets.items() if ends[tp].end < target}
        if not behind:
            return
        if deadline.is_over:
            tp = next(iter(behind))
            raise RequestTimedOutError(
                f"mirror {name!r} has not reached its source: {tp} lacks {behind[tp]} offsets. Is a mirror worker "
                f"running ('sparklog mirror run', or mirror.worker.enable), and is the topic not paused ('sparklog "
                f"mirror status {name}')? --now promotes the topics with the records that they have"
            )
        sleep(POLL_S)
