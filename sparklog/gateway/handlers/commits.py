"""OFFSET_COMMIT and OFFSET_FETCH. The broker stores the offsets, so that Kafka's and sparklog's consumers share
them."""

from __future__ import annotations

from collections.abc import Iterator

from sparklog.errors import GroupIdNotFoundError, SparklogError
from sparklog.gateway.handlers.coordinators import refuse_group
from sparklog.gateway.handlers.entries import check_entry, share_turns
from sparklog.gateway.handlers.names import is_group_id, is_partition, is_topic_name, missing_code
from sparklog.gateway.session import Session
from sparklog.kafka.wire import requests, responses
from sparklog.kafka.wire.errors import Kafka, coordinator_code, kafka_code
from sparklog.protocol.apis import Api
from sparklog.protocol.group_messages import (
    CommittedOffset,
    FetchedOffset,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    TopicPartitions,
)

METADATA_CHARS_MAX = 4_096
COMMIT_CHARS_MAX = 1024 * 1024
"""Largest number of characters in the names and metadata of one commit to the broker."""
COMMITS_MAX = 10_000
"""Largest number of offsets of one commit to the broker."""
PAGES_MAX = 10_000
_FetchedTopic = tuple[str, list[responses.OffsetFetchTopicPartition]]


def committable(
    topics: list[requests.OffsetCommitTopic], outcomes: dict[tuple[str, int], Kafka]
) -> list[CommittedOffset]:
    """Return the offsets of a request that the broker can store. The errors of the others are added to `outcomes`, by
    topic and partition."""
    offsets = []
    for topic in topics:
        for p in topic["partitions"]:
            key = topic["name"], p["partition_index"]
            metadata = p["committed_metadata"] or ""
            if not is_partition(*key):
                outcomes[key] = missing_code(topic["name"])
            elif len(metadata) > METADATA_CHARS_MAX:
                outcomes[key] = Kafka.OFFSET_METADATA_TOO_LARGE
            elif p["committed_offset"] < 0:
                outcomes[key] = Kafka.OFFSET_OUT_OF_RANGE
            else:
                epoch = p.get("committed_leader_epoch", -1)
                offsets.append(CommittedOffset(*key, p["committed_offset"], epoch, metadata))
    return offsets


def commit_answer(
    topics: list[requests.OffsetCommitTopic], outcomes: dict[tuple[str, int], Kafka], default: Kafka
) -> Iterator[tuple[str, list[responses.OffsetCommitTopicPartition]]]:
    """Yield the topics of the answer with their partitions, in the order of the request. `outcomes`: codes by topic and
    partition; partitions without one get `default`."""
    for topic in topics:
        name = topic["name"]
        indexes = [p["partition_index"] for p in topic["partitions"]]
        yield name, [{"partition_index": i, "error_code": outcomes.get((name, i), default)} for i in indexes]


def commits_of(offsets: list[CommittedOffset]) -> Iterator[list[CommittedOffset]]:
    """Yield the offsets in parts that fit into a request to the broker."""
    part: list[CommittedOffset] = []
    size = 0
    for offset in offsets:
        size += len(offset.metadata) + len(offset.topic)
        if part and (size > COMMIT_CHARS_MAX or len(part) == COMMITS_MAX):
            yield part
            part, size = [], len(offset.metadata) + len(offset.topic)
        part.append(offset)
    if part:
        yield part


async def offset_commit(session: Session, request: requests.OffsetCommit, version: int) -> responses.OffsetCommit:
    """Commit offsets. Members need the current generation; other clients may commit while the group has no members."""
    topics, group_id = request["topics"], request["group_id"]
    outcomes: dict[tuple[str, int], Kafka] = {}
    default = await refuse_group(session, group_id)
    if default is None:
        default = session.gateway.groups.check_commit(
            group_id,
            request["member_id"],
            request.get("group_instance_id"),
            request["generation_id_or_member_epoch"],
        )
    throttle_ms = 0
    offsets = committable(topics, outcomes) if default is Kafka.NONE else []
    for part in commits_of(offsets):
        default = Kafka.UNKNOWN_SERVER_ERROR
        try:
            answer = await (await session.broker()).ask(
                Api.OFFSET_COMMIT, OffsetCommitRequest(group_id, part), OffsetCommitResponse
            )
        except SparklogError as e:
            default = coordinator_code(e)
            break
        else:
            await share_turns(session, len(part))
            throttle_ms = max(throttle_ms, answer.throttle_ms)
            outcomes |= {(r.topic, r.partition): kafka_code(r.error_code) for r in answer.results}
    return {
        "throttle_time_ms": throttle_ms,
        "topics": [{"name": name, "partitions": p} for name, p in commit_answer(topics, outcomes, default)],
    }


async def offset_fetch(session: Session, request: requests.OffsetFetch, version: int) -> responses.OffsetFetch:
    """Answer with the committed offsets of one group; from version 8 on, of several groups."""
    stable = request.get("require_stable", False)
    if version < 8:
        code, topics = await _fetch(session, request["group_id"], request["topics"], stable=stable)
        if code is not Kafka.NONE and version < 2:
            names = request["topics"] or ()
            topics = [(t["name"], [_missing(p, code) for p in t["partition_indexes"]]) for t in names]
        return {"error_code": code, "topics": [{"name": name, "partitions": p} for name, p in topics]}
    groups: list[responses.OffsetFetchGroup] = []
    for i, group in enumerate(request["groups"]):
        code, topics = await _fetch(session, group["group_id"], group["topics"], stable=stable, index=i)
        groups.append(
            {
                "group_id": group["group_id"],
                "error_code": code,
                "topics": [{"name": name, "partitions": p} for name, p in topics],
            }
        )
    return {"groups": groups}


async def _fetch(
    session: Session, group_id: str, topics: list[requests.OffsetFetchTopic] | None, *, stable: bool, index: int = 0
) -> tuple[Kafka, list[_FetchedTopic]]:
    """Return the code of a group, and its topics with the offsets of their partitions."""
    if not is_group_id(group_id):
        return Kafka.INVALID_GROUP_ID, []
    requested_topics = None
    if topics is not None:
        requested_topics = [
            TopicPartitions(t["name"], sorted({p for p in t["partition_indexes"] if is_partition(t["name"], p)}))
            for t in topics
            if is_topic_name(t["name"])
        ]
    try:
        check_entry(index)
        offsets = (
            await _read(session, OffsetFetchRequest(group_id, requested_topics, stable))
            if requested_topics != []
            else []
        )
    except GroupIdNotFoundError:
        offsets = []
    except SparklogError as e:
        return coordinator_code(e), []
    if topics is None:
        names: dict[str, list[responses.OffsetFetchTopicPartition]] = {}
        for offset in offsets:
            names.setdefault(offset.topic, []).append(_offset(offset.partition, offset))
        return Kafka.NONE, list(names.items())
    by_key = {(o.topic, o.partition): o for o in offsets}
    return Kafka.NONE, [
        (t["name"], [_offset(p, by_key.get((t["name"], p))) for p in t["partition_indexes"]]) for t in topics
    ]


async def _read(session: Session, request: OffsetFetchRequest) -> list[FetchedOffset]:
    """Return all committed offsets, which the broker sends in pages. Raises the broker's errors."""
    broker = await session.broker()
    request.paged = True
    offsets: list[FetchedOffset] = []
    for _ in range(PAGES_MAX):
        answer = await broker.ask(Api.OFFSET_FETCH, request, OffsetFetchResponse)
        offsets += answer.offsets
        if not answer.more or not answer.offsets:
            return offsets
        if request.partitions is None:
            request.after_topic, request.after_partition = answer.offsets[-1].topic, answer.offsets[-1].partition
        else:
            seen = {(o.topic, o.partition) for o in offsets}
            request.partitions = [
                TopicPartitions(t.topic, rest)
                for t in request.partitions
                if (rest := [p for p in t.partitions if (t.topic, p) not in seen])
            ]
    return offsets


def _offset(partition: int, offset: FetchedOffset | None) -> responses.OffsetFetchTopicPartition:
    if offset is None:
        return _missing(partition, Kafka.NONE)
    code = kafka_code(offset.error_code)
    return {
        "partition_index": partition,
        "committed_offset": -1 if code else offset.offset,
        "committed_leader_epoch": -1 if code else offset.leader_epoch,
        "metadata": offset.metadata,
        "error_code": Kafka.NONE if code is Kafka.UNKNOWN_TOPIC_OR_PARTITION else code,
    }


def _missing(partition: int, code: Kafka) -> responses.OffsetFetchTopicPartition:
    return {
        "partition_index": partition,
        "committed_offset": -1,
        "committed_leader_epoch": -1,
        "metadata": "",
        "error_code": code,
    }
