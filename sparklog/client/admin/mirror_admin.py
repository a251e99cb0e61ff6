"""Administration of mirrors: create, promote, pause, resume and delete.

A mirror is the set of its topics: each has the mirror's definition in its settings. So a call that was interrupted is
repeated, and continues.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sparklog.client.admin.mirror_description import mirrored_topics
from sparklog.client.admin.mirror_groups import GroupCopier
from sparklog.client.admin.mirror_plan import (
    NAMED_MAX,
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
from sparklog.metadata.mirror_settings import NAME, PROMOTED_TOPIC_ID, REFUSED_OF
from sparklog.metadata.refused_topics import refused_topic
from sparklog.mirror.definition import (
    AVRO,
    PAUSED,
    PROTOBUF,
    REFUSED_MAX,
    MirrorDefinition,
    MirroredTopic,
    TopicColumns,
    check_definition,
    columns_text,
    mirrored_topic,
    promoted_settings,
)
from sparklog.mirror.rules import Pause, SourceBounds, absent_text, judge_topic
from sparklog.mirror.source import MirrorSource
from sparklog.types import TopicPartition

PAUSED_BY_USER = "paused by a user"
POLL_S = 0.5
OPEN_REMEDY = "end its producer, or the transaction ('kafka-transactions.sh' of Kafka, 'sparklog transaction' of sparklog finds it)"
COPIES_MAX = 10
"""Largest number of copies of the groups' offsets at a promotion, until none fails."""
DELETE_ROUNDS = 10
"""Largest number of times that the topics of a deleted mirror are listed."""


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
        str(Path(source_config).absolute()) if source_config else "",  # workers run in other directories
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
    check_refused_max(definition, refused_max)
    topics_here = infos()
    source = open_source(definition, timeout_ms)
    try:
        names = require_topics(definition, source, topics_here)
        failures = create_missing_topics(admin, definition, source)
    finally:
        source.close()
    if refused_max is not None:
        for name in names:
            if name not in failures:
                admin.alter_topic(name, {REFUSED_MAX: refused_max})
    if failures:
        name, reason = next(iter(failures.items()))
        others = [other for other in names if other not in failures]
        kept = f"; the mirror goes on with {', '.join(others[:NAMED_MAX])}" if others else ""
        more = f" and {len(others) - NAMED_MAX} more" if len(others) > NAMED_MAX else ""
        noun = "topic" if len(failures) == 1 else "topics"
        raise InvalidConfigError(
            f"{len(failures)} {noun} of mirror {definition.name!r} not created: {name}: {reason}{kept}{more}"
        )


def check_refused_max(definition: MirrorDefinition, refused_max: int | None) -> None:
    """Raise InvalidConfigError for a limit of refused records without values that become columns."""
    if refused_max is not None and not definition.is_typed:
        raise InvalidConfigError(
            f"refused_max = {refused_max} concerns typed topics, because envelope topics refuse no record: name the format "
            "of the values (--value-format json), or leave --refused-max out"
        )


def pause_mirror(admin: Topics, infos: Mapping[str, TopicInfo], name: str, reason: str) -> list[str]:
    """Pause a mirror's topics, and return their names. Without a reason of the user's own, topics that are paused keep
    theirs. Raises InvalidConfigError for an unknown mirror."""
    return _set_pause(admin, infos, name, reason or PAUSED_BY_USER)


def resume_mirror(admin: Topics, infos: Mapping[str, TopicInfo], name: str) -> list[str]:
    """Resume a mirror's topics, and return their names. Raises InvalidConfigError for an unknown mirror."""
    return _set_pause(admin, infos, name, None)


def _set_pause(admin: Topics, infos: Mapping[str, TopicInfo], name: str, reason: str | None) -> list[str]:
    topics = mirrored_topics(infos, name)[name]
    for topic in topics:
        if reason != PAUSED_BY_USER or not topic.paused:
            admin.alter_topic(topic.topic, {PAUSED: reason})
    return [topic.topic for topic in topics]


def delete_mirror(delete: Callable[[str], None], infos: Callable[[], Mapping[str, TopicInfo]], name: str) -> list[str]:
    """Delete a mirror with its topics that are not promoted, and return their names. `delete`: deletes a topic, and
    raises UnknownTopicOrPartitionError for one that has been promoted meanwhile. `infos`: reads all topics here, again
    until none is of the mirror, because a worker can have created one meanwhile. Raises InvalidConfigError for an
    unknown mirror."""
    deleted: dict[str, None] = {}
    for _ in range(DELETE_ROUNDS):
        topics_here = infos()
        topics = [topic for topic in sorted(topics_here) if topics_here[topic].configs.get(NAME) == name]
        if not topics:
            break
        # refused topics last: while their typed topic exists, a worker would create them again
        topics.sort(key=lambda topic: bool(topics_here[topic].configs.get(REFUSED_OF)))
        for topic in topics:
            with contextlib.suppress(UnknownTopicOrPartitionError):
                delete(topic)
                deleted[topic] = None
    if not deleted:
        mirrored_topics(topics_here, name)  # raises
    return list(deleted)


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
        if topic_name in infos and infos[topic_name].configs.get(PROMOTED_TOPIC_ID):
            raise InvalidConfigError(
                f"topic {topic_name!r} is promoted already, and open for writers; 'sparklog mirror status {name}' shows "
                "the other topics of the mirror"
            )
        if topic_name not in by_name:
            raise InvalidConfigError(
                f"mirror {name!r} has no topic {topic_name!r}; it has {', '.join(sorted(by_name))}"
            )
    topics = [by_name[topic] for topic in sorted(chosen or by_name)]
    if not now:
        _check_running(topics)
    definition = topics[0].definition
    source = open_source(definition, request_timeout_ms)
    try:
        if not now:
            _wait_for_end(source, cluster, topics, name, Deadline(timeout_ms), request_timeout_ms, sleep)
        ends = _ends(cluster, _infos(cluster, topics, request_timeout_ms), request_timeout_ms)
        try:
            source.topics([t.topic for t in topics])
            _copy_groups(GroupCopier(admin, source), definition, ends, 1 if now else COPIES_MAX, sleep)
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


def _copy_groups(
    copier: GroupCopier,
    definition: MirrorDefinition,
    ends: Mapping[TopicPartition, int],
    rounds: int,
    sleep: Callable[[float], None],
) -> None:
    """Copy the groups' offsets, up to `rounds` times if some of them fail: their coordinator at the source can change.
    Raises RequestTimedOutError that names a group, and the source's errors."""
    for number in range(rounds):
        if number:
            sleep(POLL_S)
        copier.copy(definition, ends)
        if not copier.failure:
            return
    raise RequestTimedOutError(
        f"{copier.failure}. Nothing is promoted: mend the cause and repeat the command, or leave the group "
        "out ('sparklog topic alter TOPIC --config mirror.groups=PATTERN' for each topic of the mirror)"
    )


def _check_running(topics: Iterable[MirroredTopic]) -> None:
    """Raise InvalidConfigError for a paused topic."""
    for topic in topics:
        if topic.paused:
            raise InvalidConfigError(
                f"topic {topic.topic!r} is paused: {topic.paused}. Use 'sparklog mirror resume {topic.definition.name}', "
                "or promote the topic with the records that it has (--now)"
            )


def _infos(cluster: Cluster, topics: Sequence[MirroredTopic], timeout_ms: int) -> dict[str, TopicInfo]:
    """Return the present states of topics here. Raises UnknownTopicOrPartitionError for one that was deleted."""
    infos = cluster.topic_infos([topic.topic for topic in topics], timeout_ms=timeout_ms)
    for topic in topics:
        if topic.topic not in infos:
            raise UnknownTopicOrPartitionError(f"topic {topic.topic!r} was deleted here during its promotion")
    return infos


def _ends(cluster: Cluster, infos: Mapping[str, TopicInfo], timeout_ms: int) -> dict[TopicPartition, int]:
    """Return the log ends of the topics' present partitions here."""
    tps = [TopicPartition(name, p) for name, info in infos.items() for p in range(info.partitions)]
    return {tp: end.end for tp, end in mirrored_ends(cluster, tps, timeout_ms).items()}


def _wait_for_end(
    source: MirrorSource,
    cluster: Cluster,
    topics: Sequence[MirroredTopic],
    name: str,
    deadline: Deadline,
    request_timeout_ms: int,
    sleep: Callable[[float], None],
) -> None:
    """Wait until each partition that the source has now exists here, with the records that are committed there now.
    Raises RequestTimedOutError; InvalidConfigError if the source has no longer the topic that was mirrored, or the
    topic is paused meanwhile; UnknownTopicOrPartitionError if it is deleted meanwhile; and the source's errors."""
    targets = _targets(source, topics)
    while True:
        infos = _infos(cluster, topics, request_timeout_ms)
        ends = _ends(cluster, infos, request_timeout_ms)
        behind = [tp for tp, target in targets.items() if ends.get(tp, -1) < target.end]
        if not behind:
            return
        _check_running(filter(None, (mirrored_topic(topic, info.configs) for topic, info in infos.items())))
        if deadline.is_over:
            raise RequestTimedOutError(
                f"mirror {name!r} has not reached its source: {_lack(behind[0], ends, targets, name)}. --now promotes "
                "the topics with the records that they have"
            )
        sleep(POLL_S)


def _lack(
    tp: TopicPartition, ends: Mapping[TopicPartition, int], targets: Mapping[TopicPartition, SourceBounds], name: str
) -> str:
    """Return the text about the records that a partition lacks, with the cause."""
    end, target = ends.get(tp, -1), targets[tp]
    if target.stable <= end:
        return (
            f"{tp} lacks {target.end - end} offsets, which wait there for the end of an open transaction: {OPEN_REMEDY}"
        )
    lack = f"{tp} of the source does not exist here yet" if end < 0 else f"{tp} lacks {target.end - end} offsets"
    return (
        f"{lack}. Is a mirror worker running ('sparklog mirror run', or mirror.worker.enable), and does 'sparklog "
        f"mirror status {name}' show an error?"
    )


def _targets(source: MirrorSource, topics: Sequence[MirroredTopic]) -> dict[TopicPartition, SourceBounds]:
    """Return the offsets of each partition that the source has. The wait is for the end, not for the last stable
    offset: after an open transaction there can be committed records of other producers. Raises InvalidConfigError if
    the source has no longer the topic that was mirrored, and its errors."""
    at_source = source.topics([topic.topic for topic in topics])
    for topic in topics:
        present = at_source.get(topic.topic)
        verdict = (
            Pause(absent_text(topic.topic)) if present is None else judge_topic(topic.source_topic_id, present.topic_id)
        )
        if isinstance(verdict, Pause):
            raise InvalidConfigError(
                f"topic {topic.topic!r} cannot reach its source's end: {verdict.reason}. 'sparklog mirror promote "
                f"{topic.definition.name} {topic.topic} --now' promotes it with the records that it has"
            )
    tps = [TopicPartition(name, p) for name, topic in at_source.items() for p in range(len(topic.partitions))]
    targets = {}
    for tp, bounds in source.bounds(at_source, tps).items():
        if isinstance(bounds, SparklogError):
            raise bounds
        targets[tp] = bounds
    return targets
