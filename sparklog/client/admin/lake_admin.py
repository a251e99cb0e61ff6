"""Administration of lakes: enable, disable, resume, rebuild and describe; reports of the workers to the brokers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from sparklog.client.admin.call import Call
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.reading.offset_lookup import find_offsets
from sparklog.errors import (
    InvalidConfigError,
    LakePausedError,
    LakeUnavailableError,
    SparklogError,
)
from sparklog.lake.columns import check_columns, check_key_partitions, check_partition_by, table_schema
from sparklog.lake.delta_commit import DeltaCommitter
from sparklog.lake.delta_errors import CommitConflictError, require_deltalake
from sparklog.lake.delta_snapshot import DeltaSnapshot
from sparklog.lake.location import normal_location
from sparklog.lake.rewrite import rewrite_wider
from sparklog.lake.rules import check_table
from sparklog.lake.settings import LakeSettings
from sparklog.lake.topic_table import open_or_create
from sparklog.metadata.lake_settings import moved_keys
from sparklog.protocol.lake_messages import (
    DescribeLakesRequest,
    DescribeLakesResponse,
    LakeOffset,
    LakeState,
    ReportLakeRequest,
    ReportLakeResponse,
)
from sparklog.settings import LAKE_PREFIX, PARTITIONS_ADDED, Scope, settings_of
from sparklog.types import EARLIEST_TIMESTAMP, INTERNAL_TOPICS, LATEST_TIMESTAMP, READ_COMMITTED, TopicPartition

ATTEMPTS = 20
_REBUILD = "'sparklog lake rebuild'"
PAUSED_BY_USER = "paused by a user"

AlterTopic = Callable[[str, Mapping[str, object | None]], object]


@dataclass(frozen=True)
class LakePartition:
    """A partition of a topic and its rows in the Delta table."""

    partition: int
    """Number of the partition."""
    next_offset: int
    """Offset after the last one that the table has."""
    end_offset: int
    """Last stable offset of the log."""
    lag: int
    """Number of offsets that the table lacks."""
    files: int
    """Number of the table's files with rows of this partition only."""


@dataclass(frozen=True)
class LakeDescription:
    """The state of a topic's Delta table."""

    topic: str
    """Name of the topic."""
    location: str
    """Location of the table."""
    mode: str
    """"append" or "upsert"."""
    interval_ms: int
    """Time between commits in ms."""
    paused: str
    """Reason of the pause; empty: not paused."""
    table_id: str
    """Id of the table; empty: not created yet."""
    version: int
    """Version of the table; -1: not known."""
    files: int
    """Number of its files; -1: not known."""
    last_commit_ms: int
    """Time of the last commit of rows in ms since 1970; 0: not known."""
    lag: int
    """Number of offsets that the table lacks, over all partitions."""
    lag_seconds: float
    """Seconds since the last moment at which the table had all committed records; 0 without lag; -1: not known."""
    error: str
    """Error of the worker's last round, or of opening the table now; empty: none."""
    partitions: tuple[LakePartition, ...]
    """State of each partition."""


def enable_lake(
    info: TopicInfo,
    alter: AlterTopic,
    *,
    location: str,
    interval_ms: int | None,
    mode: str | None,
    file_size_bytes: int | None,
    partition_by: Sequence[str],
) -> None:
    """Give a topic a Delta table; see `Admin.enable_lake`."""
    if info.name in INTERNAL_TOPICS:
        raise InvalidConfigError(f"topic {info.name!r} is internal and cannot have a Delta table")
    require_deltalake()
    before = LakeSettings.of(info.configs, info.broker_defaults)
    place = normal_location(location)
    if before.location and normal_location(before.location) != place:
        raise InvalidConfigError(
            f"topic {info.name!r} has its Delta table at {before.location}; use 'sparklog lake disable {info.name}' "
            "before another location"
        )
    changes: dict[str, object | None] = {
        "lake.location": place,
        "lake.mode": mode,
        "lake.commit.interval.ms": interval_ms,
        "lake.file.size.bytes": file_size_bytes,
        "lake.partition.by": ",".join(partition_by) or None,
        "lake.paused": None,
    }
    settings = LakeSettings.of({n: v for n, v in changes.items() if v is not None}, info.broker_defaults)
    schema = table_schema(info.schema, is_envelope=info.is_envelope)
    check_columns(schema)
    check_partition_by(settings.table_partitions, schema)
    if settings.is_upsert:
        _check_upsert(info, settings, schema)
    table: DeltaSnapshot | None
    try:
        table = open_or_create(info.name, info.topic_id, settings, schema)
    except CommitConflictError as e:
        e.raise_if_lasting(place)
        table = DeltaSnapshot.open(place)
    if table is None or table.topic_id != info.topic_id:
        raise InvalidConfigError(
            f"the Delta table at {place} does not belong to topic {info.name!r} (id {info.topic_id}); "
            "choose an empty location"
        )
    if table.mode not in ("", settings.mode):
        raise InvalidConfigError(
            f"the topic's table at {place} was made with mode {table.mode}, which cannot become {settings.mode}: use "
            "that mode, or an empty location"
        )
    if tuple(table.partition_columns) != settings.table_partitions:
        raise InvalidConfigError(
            f"the topic's table at {place} is partitioned by {', '.join(table.partition_columns) or 'nothing'}, mode "
            f"and partition columns ask for {', '.join(settings.table_partitions) or 'nothing'}; choose an empty "
            "location"
        )
    alter(info.name, {**changes, "lake.mode": settings.mode, "lake.table.id": table.table_id})


def _check_upsert(info: TopicInfo, settings: LakeSettings, schema: pa.Schema) -> None:
    """Raise InvalidConfigError if the topic cannot have an upserted table."""
    if not info.is_envelope and not info.key_columns:
        raise InvalidConfigError(
            f"lake.mode = upsert needs a key: topic {info.name!r} has no key columns; create a topic with "
            "--key-columns, or use mode append"
        )
    if info.configs.get(PARTITIONS_ADDED):
        raise InvalidConfigError(moved_keys(info.name))
    check_key_partitions(settings.partition_by, info.key_columns, schema)


def disable_lake(info: TopicInfo, alter: AlterTopic) -> None:
    """Remove the lake settings of a topic; see `Admin.disable_lake`."""
    alter(info.name, {name: None for name in settings_of(Scope.TOPIC) if name.startswith(LAKE_PREFIX)})


def settings_with_lake(info: TopicInfo) -> LakeSettings:
    """Return a topic's lake settings. Raises InvalidConfigError."""
    settings = LakeSettings.of(info.configs, info.broker_defaults)
    if not settings.location:
        raise InvalidConfigError(
            f"topic {info.name!r} has no Delta table; use 'sparklog lake enable {info.name} --location URL'"
        )
    return settings


def resume_from_table(call: Call, info: TopicInfo) -> None:
    """Set the next offset of each partition to the offset after the partition's last row in the table, or to the log's
    first offset if the table has no row of the partition. Raises InvalidConfigError; LakePausedError: The table is gone
    or belongs to another topic, or the log has deleted offsets after the last row; LakeUnavailableError: The table
    cannot be reached, or other writers commit all the time."""
    settings = settings_with_lake(info)
    starts = _starts(call, info)
    for _ in range(ATTEMPTS):
        table = _own_table(info, settings)
        state = table.state(info.topic_id, info.partitions, file_offsets={})
        offsets = {p: state.largest_offsets[p] + 1 if p in state.largest_offsets else starts[p] for p in starts}
        for partition, offset in offsets.items():
            if offset < starts[partition]:
                raise LakePausedError(
                    f"the table has rows of partition {partition} up to offset {offset - 1}, the log begins at "
                    f"{starts[partition]}: the offsets between are gone; set lake.hold.retention=false to continue "
                    "without them"
                )
        try:
            DeltaCommitter(table).reset(offsets)
        except CommitConflictError as e:
            e.raise_if_lasting(table.location)
            continue
        return
    raise LakeUnavailableError(f"the table of topic {info.name!r} keeps changing: try again")


def rebuild_lake(call: Call, info: TopicInfo, alter: AlterTopic) -> None:
    """Write a topic's Delta table again; see `Admin.rebuild_lake`."""
    settings = settings_with_lake(info)
    schema = table_schema(info.schema, is_envelope=info.is_envelope)
    check_columns(schema)
    starts = _starts(call, info)
    place = normal_location(settings.location)
    for _ in range(ATTEMPTS):
        table = DeltaSnapshot.open(place)
        if table is None:
            alter(info.name, {"lake.table.id": None, "lake.paused": None})
            return
        if table.topic_id != info.topic_id:
            raise LakePausedError(
                f"the table at {place} does not belong to topic {info.name!r} and is left unchanged; remove it or "
                "use another location"
            )
        table.check_features(rewrites=_REBUILD)
        try:
            DeltaCommitter(table).reset(starts, schema)
        except CommitConflictError as e:
            e.raise_if_lasting(table.location)
            continue
        alter(info.name, {"lake.table.id": table.table_id, "lake.paused": None})
        return
    raise LakeUnavailableError(f"the table of topic {info.name!r} keeps changing: try again")


def widen_table(info: TopicInfo, alter: AlterTopic) -> None:
    """Write the rows of a topic's Delta table again with wider columns; see `Admin.rebuild_lake`."""
    settings = settings_with_lake(info)
    table = _own_table(info, settings)
    check_table(table.state(info.topic_id, info.partitions, file_offsets={}), info.topic_id, settings.table_id)
    table.check_features(rewrites=_REBUILD)
    schema = table_schema(info.schema, is_envelope=info.is_envelope)
    if not rewrite_wider(table, schema, settings.file_size_bytes):
        raise InvalidConfigError(
            f"no column of topic {info.name!r} is wider than in its table at {table.location}; without --keep-rows the "
            "table is filled again from the log"
        )
    alter(info.name, {"lake.paused": None})


def _own_table(info: TopicInfo, settings: LakeSettings) -> DeltaSnapshot:
    table = DeltaSnapshot.open(normal_location(settings.location))
    if table is None or table.topic_id != info.topic_id:
        raise LakePausedError(
            f"topic {info.name!r} has no table at {settings.location}; use 'sparklog lake rebuild {info.name}'"
        )
    return table


def _starts(call: Call, info: TopicInfo) -> dict[int, int]:
    """Return the first offset of each partition."""
    tps = [TopicPartition(info.name, p) for p in range(info.partitions)]
    starts = find_offsets(call.cluster, dict.fromkeys(tps, EARLIEST_TIMESTAMP), call.attempts)
    return {tp.partition: starts[tp].offset for tp in tps}


def describe_lake(call: Call, info: TopicInfo) -> LakeDescription:
    """Describe a topic's Delta table; see `Admin.describe_lake`."""
    settings = settings_with_lake(info)
    report = read_reports(call.cluster, [info.name], timeout_ms=call.left_ms).get(info.name)
    offsets: dict[int, int] = {} if report is None else dict(report.next_offsets)
    error = "" if report is None else report.error
    version = files = -1
    last_commit_ms = 0 if report is None else report.last_commit_ms
    counts: dict[int, int] = {}
    try:
        table = DeltaSnapshot.open(normal_location(settings.location))
        if table is None:
            error = error or f"no Delta table found at {settings.location}"
        elif table.topic_id == info.topic_id:
            offsets |= table.next_offsets(info.topic_id, info.partitions)
            table_files = table.files()
            version, files = table.version, len(table_files)
            for file in table_files:
                if file.partition is not None:
                    counts[file.partition] = counts.get(file.partition, 0) + 1
            commit = table.last_commit()
            last_commit_ms = last_commit_ms if commit is None else int(commit["timestamp"])
        else:
            error = error or f"the table at {settings.location} does not belong to the topic"
    except (InvalidConfigError, LakeUnavailableError) as e:  # the brokers' reports are shown instead
        error = error or str(e)
        if report is not None:
            version, files = report.version, report.files
    tps = [TopicPartition(info.name, p) for p in range(info.partitions)]
    latest = dict.fromkeys(tps, LATEST_TIMESTAMP)
    ends = find_offsets(call.cluster, latest, call.attempts, isolation=READ_COMMITTED)
    starts = _starts(call, info)
    partitions = tuple(
        LakePartition(
            tp.partition,
            offset := offsets.get(tp.partition, starts[tp.partition]),
            ends[tp].offset,
            max(0, ends[tp].offset - offset),
            counts.get(tp.partition, 0),
        )
        for tp in tps
    )
    lag = sum(p.lag for p in partitions)
    as_of_ms = (0 if report is None else report.as_of_ms) or last_commit_ms
    lag_seconds = 0.0 if not lag else max(0.0, time.time() - as_of_ms / 1000) if as_of_ms else -1.0
    return LakeDescription(
        topic=info.name,
        location=settings.location,
        mode=settings.mode,
        interval_ms=settings.commit_interval_ms,
        paused=settings.paused,
        table_id=settings.table_id,
        version=version,
        files=files,
        last_commit_ms=last_commit_ms,
        lag=lag,
        lag_seconds=lag_seconds,
        error=error,
        partitions=partitions,
    )


@dataclass(frozen=True)
class LakeReport:
    """The newest report of a lake worker about a topic, with the next offsets that the partitions' leaders know. The
    fields are those of `report_lake`."""

    next_offsets: Mapping[int, int]
    as_of_ms: int
    version: int
    files: int
    last_commit_ms: int
    error: str


def read_reports(cluster: Cluster, topics: Iterable[str], *, timeout_ms: int) -> dict[str, LakeReport]:
    """Return the newest report about each topic, from all brokers that answer within `timeout_ms`. Topics without a
    report are absent."""
    names, call = list(topics), Call(cluster, timeout_ms)
    newest: dict[str, LakeState] = {}
    offsets: dict[str, dict[int, int]] = {}
    for endpoint in cluster.brokers(timeout_ms=call.left_ms) if names else ():
        try:
            answer = call.ask_broker(endpoint, DescribeLakesRequest(names), DescribeLakesResponse)
        except SparklogError as e:
            if not e.retriable:
                raise
            continue  # the next offsets of the partitions that it leads are missing then
        for lake in answer.lakes:
            offsets.setdefault(lake.topic, {}).update((o.partition, o.next_offset) for o in lake.offsets)
            if lake.topic not in newest or lake.reported_ms >= newest[lake.topic].reported_ms:
                newest[lake.topic] = lake
    return {
        topic: LakeReport(offsets[topic], r.as_of_ms, r.version, r.files, r.last_commit_ms, r.error)
        for topic, r in newest.items()
    }


def report_lake(
    cluster: Cluster,
    info: TopicInfo,
    next_offsets: Mapping[int, int],
    *,
    as_of_ms: int = 0,
    version: int = -1,
    files: int = -1,
    last_commit_ms: int = 0,
    error: str = "",
    timeout_ms: int = 5_000,
) -> None:
    """Report the state of a topic's table to all brokers. A broker that is away misses this report.

    `next_offsets`: by partition. `as_of_ms`: the table has all records that were committed before this time in ms since
    1970; 0: not known. `error`: error of the last round; empty: none. The other figures are those of LakeDescription.
    """
    offsets = [LakeOffset(p, offset) for p, offset in sorted(next_offsets.items())]
    request = ReportLakeRequest(
        info.name, info.topic_id, offsets, as_of_ms, version, files, last_commit_ms, error[:4_000]
    )
    call = Call(cluster, timeout_ms)
    for endpoint in cluster.brokers(timeout_ms=timeout_ms):
        try:
            call.ask_broker(endpoint, request, ReportLakeResponse)
        except SparklogError as e:
            if not e.retriable:
                raise
