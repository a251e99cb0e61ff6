"""Administration of mirrors: plan, create, describe, promote, pause, resume and delete.

A mirror is the set of its topics: each has the mirror's definition in its settings. So a call that was interrupted is
repeated, and continues.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

from sparklog.client.admin.mirror_groups import GroupCopier, Groups
from sparklog.client.admin.mirror_reports import MirrorProgress, read_mirror_reports
from sparklog.client.admin.schema_argument import arrow_schema_of
from sparklog.client.admin.sparklog_source import SparklogSource
from sparklog.client.kafka.source import KafkaSource
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.deadline import Deadline
from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.reading.mirrored_ends import MirroredEnd, mirrored_ends, refused_logs
from sparklog.errors import (
    BrokerNotAvailableError,
    InvalidConfigError,
    RequestTimedOutError,
    SparklogError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from sparklog.format.ddl import ddl_of
from sparklog.format.schema import canonical_schema
from sparklog.metadata.mirror_settings import NAME, REFUSED_OF
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
    lost_records,
    mirrored_topic,
    promoted_settings,
)
from sparklog.mirror.plan import PlannedTopic, chosen_topics, planned_topic
from sparklog.mirror.readers import registered_columns
from sparklog.mirror.refused import REFUSED_SCHEMA, RefusedLog, refused_topic
from sparklog.mirror.rules import SourceBounds
from sparklog.mirror.source import MirrorSource, SourceTopic
from sparklog.security.client_security import client_security
from sparklog.types import TopicPartition

PAUSED_BY_USER = "paused by a user"
POLL_S = 0.5
NAMED_MAX = 10


@dataclass(frozen=True)
class MirrorPartition:
    """The progress of a mirrored partition."""

    partition: int
    """Number of the partition."""
    source_end: int
    """Last stable offset of the source; -1: not known."""
    end: int
    """Log end here: the next offset that the mirror copies."""
    lag: int
    """Number of offsets that the source has committed and the mirror lacks; -1: not known."""
    lag_seconds: float
    """Seconds since the topic had all committed records of the source; 0 without lag; -1: not known."""
    lost: int
    """Number of offsets that the source had deleted before the mirror read them."""
    refused: int = 0
    """Number of records that did not fit the columns of a typed topic."""


@dataclass(frozen=True)
class MirrorTopic:
    """A topic of a mirror."""

    topic: str
    """Name of the topic, here and at the source."""
    state: str
    """"running" or "paused"."""
    reason: str
    """Reason of the pause; empty: not paused."""
    partitions: tuple[MirrorPartition, ...]
    """Progress of each partition."""
    error: str = ""
    """Error of the worker's newest round; empty: it succeeded, or no worker has reported."""
    is_reported: bool = False
    """True if a worker has reported to a broker that answers, since this broker's start."""


@dataclass(frozen=True)
class MirrorDescription:
    """A mirror with its topics."""

    name: str
    """Name of the mirror."""
    source: str
    """Address of the source."""
    source_config: str
    """Properties file for the source, on the hosts of the workers; empty: plaintext."""
    topics_pattern: str
    """Regular expressions of the topics."""
    groups_pattern: str
    """Regular expressions of the groups; empty: none."""
    topics: tuple[MirrorTopic, ...]
    """Topics that are not promoted yet."""
    error: str
    """Error of asking the source now; empty: it has answered."""

    @property
    def lag(self) -> int:
        """Sum of the partitions' lags; -1: not known."""
        lags = [p.lag for topic in self.topics for p in topic.partitions]
        return -1 if not lags or min(lags) < 0 else sum(lags)


class Topics(Groups, Protocol):
    """The calls of `Admin` that a mirror needs."""

    def list_topics(self) -> list[str]: ...

    def create_topic(
        self,
        name: str,
        *,
        partitions: int,
        schema: Any,
        key_columns: Iterable[str],
        timestamp_column: str | None,
        configs: Mapping[str, object],
    ) -> Any: ...

    def alter_schema(self, name: str, *, schema: Any) -> Any: ...

    def alter_topic(self, name: str, configs: Mapping[str, object | None]) -> Any: ...

    def delete_topic(self, name: str) -> None: ...


def open_source(definition: MirrorDefinition, timeout_ms: int) -> MirrorSource:
    """Return the client of a mirror's source. Raises InvalidConfigError."""
    security = client_security(definition.source_config or None)
    if definition.is_of_sparklog:
        return SparklogSource(definition.bootstrap_servers, security, timeout_ms=timeout_ms)
    return KafkaSource(definition.bootstrap_servers, security, timeout_ms=timeout_ms)


class MirrorPlan(NamedTuple):
    """The topics of the source that do not exist here."""

    topics: tuple[PlannedTopic, ...]
    """Topics that the mirror can create."""
    refused: dict[str, str]
    """Reasons why the other topics cannot be created, by name."""


def plan_mirror(definition: MirrorDefinition, source: MirrorSource, here: Iterable[str]) -> MirrorPlan:
    """Return the topics that the mirror would create; those of `here`, which exist, are left out. Raises errors of the
    source that concern all topics."""
    all_topics = source.topics()
    existing = set(here)
    taken = {refused_topic(name) for name in all_topics} if definition.is_typed else set()
    names = [name for name in chosen_topics(definition, all_topics, _internal(all_topics)) if name not in existing]
    settings = source.settings(names)
    planned, refused = [], {}
    registered = None
    if definition.value_format in (AVRO, PROTOBUF):
        from sparklog.client.net.registry_reader import registry_schemas  # late: the parsers of schemas load for long

        registered = partial(registered_columns, registry_schemas(definition.registry))
    for name in names:
        topic, configs = all_topics[name], settings.get(name, {})
        try:
            if isinstance(configs, SparklogError):
                raise configs
            if name in taken:
                raise InvalidConfigError("its name is that of the refused records of another topic: leave it out")
            planned.append(planned_topic(definition, topic, configs, registered))
        except BrokerNotAvailableError:
            raise  # the registry does not answer
        except SparklogError as e:
            refused[name] = str(e)
    return MirrorPlan(tuple(planned), refused)


def create_missing_topics(admin: Topics, definition: MirrorDefinition, source: MirrorSource) -> dict[str, str]:
    """Create the topics that the source has and that do not exist here. Returns the reasons for topics that were not
    created, by name. Raises errors of the source."""
    planned, refused = plan_mirror(definition, source, admin.list_topics())
    reasons = dict(refused)
    for topic in planned:
        try:
            if topic.refused is not None:
                create_refused_topic(admin, topic.name, topic.partitions, topic.refused)
            with contextlib.suppress(TopicAlreadyExistsError):  # another worker has created it
                admin.create_topic(
                    topic.name,
                    partitions=topic.partitions,
                    schema=topic.schemas[0] if topic.schemas else None,
                    key_columns=topic.key_columns,
                    timestamp_column=topic.timestamp_column,
                    configs=topic.configs,
                )
                for schema in topic.schemas[1:]:
                    admin.alter_schema(topic.name, schema=schema)
        except SparklogError as e:
            if e.retriable:
                raise
            reasons[topic.name] = str(e)
    return reasons


def create_refused_topic(admin: Topics, topic: str, partitions: int, configs: Mapping[str, object]) -> None:
    """Create the topic of a typed topic's refused records, unless it exists."""
    with contextlib.suppress(TopicAlreadyExistsError):
        admin.create_topic(
            refused_topic(topic),
            partitions=partitions,
            schema=REFUSED_SCHEMA,
            key_columns=(),
            timestamp_column=None,
            configs=configs,
        )


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


def require_topics(definition: MirrorDefinition, source: MirrorSource, here: Mapping[str, TopicInfo]) -> list[str]:
    """Return the source's topics that the mirror copies. `here`: the topics here. Raises InvalidConfigError if there is
    none, or one exists here that the mirror has not created; and errors of the source."""
    names = chosen_topics(definition, (all_topics := source.topics()), _internal(all_topics))
    if not names:
        raise InvalidConfigError(
            f"no topic of {definition.source} matches {definition.topics!r}, or the mirror's user cannot describe it; the "
            "expressions match whole names, such as 'orders,logs-.*'"
        )
    _check_names(definition, names, here)
    return names


def _internal(topics: Mapping[str, SourceTopic]) -> list[str]:
    return [name for name, topic in topics.items() if topic.is_internal]


def _check_names(definition: MirrorDefinition, names: Sequence[str], here: Mapping[str, TopicInfo]) -> None:
    """Raise InvalidConfigError if a topic exists here that the mirror has not created, or the mirror has another
    definition."""
    taken = []
    for name in names:
        if name not in here:
            continue
        topic = mirrored_topic(name, here[name].configs)
        if topic is None or topic.definition.name != definition.name:
            taken.append(name)
        elif definition.is_typed and not is_refused_topic(here.get(refused_topic(name)), definition.name, name):
            taken.append(refused_topic(name))
        elif topic.definition != definition:
            raise InvalidConfigError(
                f"mirror {definition.name!r} exists with the source {topic.definition.source} and the topics "
                f"{topic.definition.topics!r}; use another name, or 'sparklog mirror delete {definition.name}'"
            )
    if taken:
        more = f" and {len(taken) - NAMED_MAX} more" if len(taken) > NAMED_MAX else ""
        raise InvalidConfigError(
            f"topics of the source exist here already: {', '.join(taken[:NAMED_MAX])}{more}. A mirror keeps the "
            "offsets of its source, so it begins with new topics: delete them, or leave them out of --topics"
        )


def is_refused_topic(info: TopicInfo | None, mirror: str, topic: str) -> bool:
    """Return True if the topic has the refused records of the mirror's typed topic, or does not exist."""
    return info is None or (info.configs.get(NAME) == mirror and info.configs.get(REFUSED_OF) == topic)


def mirrored_topics(infos: Mapping[str, TopicInfo], name: str | None = None) -> dict[str, list[MirroredTopic]]:
    """Return the mirrored topics by mirror; with `name` those of this mirror. Raises InvalidConfigError for a mirror
    without topics."""
    mirrors: dict[str, list[MirroredTopic]] = {}
    for topic_name in sorted(infos):
        topic = mirrored_topic(topic_name, infos[topic_name].configs)
        if topic is not None and name in (None, topic.definition.name):
            mirrors.setdefault(topic.definition.name, []).append(topic)
    if name is not None and name not in mirrors:
        raise InvalidConfigError(
            f"there is no mirror {name!r}, or all its topics are promoted; 'sparklog mirror status' lists the mirrors"
        )
    return mirrors


def describe_mirrors(
    cluster: Cluster, infos: Mapping[str, TopicInfo], timeout_ms: int, *, asks_source: bool = True
) -> list[MirrorDescription]:
    """Describe all mirrors of topics in `infos`; see `Admin.describe_mirrors`. `asks_source`: False to take the
    source's ends from the workers' reports alone."""
    mirrors = sorted(mirrored_topics(infos).items())
    names = [topic.topic for _, topics in mirrors for topic in topics]
    reports = read_mirror_reports(cluster, names, timeout_ms=timeout_ms)
    return [_description(cluster, infos, topics, reports, timeout_ms, asks_source) for _, topics in mirrors]


def _description(
    cluster: Cluster,
    infos: Mapping[str, TopicInfo],
    topics: Sequence[MirroredTopic],
    reports: Mapping[str, MirrorProgress],
    timeout_ms: int,
    asks_source: bool,
) -> MirrorDescription:
    definition = topics[0].definition
    tps = [TopicPartition(t.topic, p) for t in topics for p in range(infos[t.topic].partitions)]
    ends = mirrored_ends(cluster, tps, timeout_ms)
    refused = refused_logs(cluster, {tp: ends[tp].end for tp in tps if refused_topic(tp.topic) in infos}, timeout_ms)
    error = ""
    source_ends = {TopicPartition(t, p): end for t, one in reports.items() for p, end in one.source_ends.items()}
    if asks_source:
        try:
            source_ends |= _source_ends(definition, [t.topic for t in topics], tps, timeout_ms)
        except SparklogError as e:
            error = str(e)
    now_ms = time.time() * 1000
    described = []
    for topic in topics:
        lost, report = lost_records(topic.lost), reports.get(topic.topic)
        partitions = tuple(
            _partition(
                tp,
                ends[tp],
                source_ends.get(tp, -1),
                lost.get(tp.partition, 0),
                _count(refused.get(tp)),
                report,
                now_ms,
            )
            for tp in tps
            if tp.topic == topic.topic
        )
        state = "paused" if topic.paused else "running"
        problem = "" if report is None else report.error
        described.append(MirrorTopic(topic.topic, state, topic.paused, partitions, problem, report is not None))
    return MirrorDescription(
        definition.name,
        definition.source,
        definition.source_config,
        definition.topics,
        definition.groups,
        tuple(described),
        error,
    )


def _source_ends(
    definition: MirrorDefinition, names: Sequence[str], tps: Sequence[TopicPartition], timeout_ms: int
) -> dict[TopicPartition, int]:
    """Return the last stable offsets of the source's partitions that answer. Raises errors of the source."""
    source = open_source(definition, timeout_ms)
    try:
        bounds = source.bounds(source.topics(names), tps)
    finally:
        source.close()
    return {tp: one.stable for tp, one in bounds.items() if isinstance(one, SourceBounds)}


def _partition(
    tp: TopicPartition,
    end: MirroredEnd,
    source_end: int,
    lost: int,
    refused: int,
    report: MirrorProgress | None,
    now_ms: float,
) -> MirrorPartition:
    lag = max(0, source_end - end.end) if source_end >= 0 else -1
    as_of_ms = report.as_of_ms if report is not None and report.as_of_ms else end.timestamp_ms
    lag_seconds = 0.0 if lag == 0 else -1.0
    if lag > 0 and as_of_ms > 0:
        lag_seconds = max(0.0, (now_ms - as_of_ms) / 1000)
    return MirrorPartition(tp.partition, source_end, end.end, lag, lag_seconds, lost, refused)


def _count(log: RefusedLog | None) -> int:
    return 0 if log is None else log.count


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
