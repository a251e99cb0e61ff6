"""OFFSET_COMMIT and OFFSET_FETCH. The broker stores the offsets, so that Kafka's and sparklog's consumers share
them."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from sparklog.errors import FencedMemberEpochError, GroupIdNotFoundError, NonEmptyGroupError, SparklogError
from sparklog.gateway.backend.topics import read_topics, topic_uuid
from sparklog.gateway.groups.runtime import NO_COMMITTER
from sparklog.gateway.handlers.coordinators import refuse_group
from sparklog.gateway.handlers.entries import check_entry, share_turns
from sparklog.gateway.handlers.member_heartbeats import member_code
from sparklog.gateway.handlers.metadata import visible_topics
from sparklog.gateway.handlers.names import UNNAMED, is_group_id, is_partition, is_topic_name, missing_code
from sparklog.gateway.handlers.topic_ids import id_text, name_topics
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
from sparklog.replication.groups import NO_EPOCH

METADATA_CHARS_MAX = 4_096
COMMIT_CHARS_MAX = 1024 * 1024
"""Largest number of characters in the names and metadata of one commit to the broker."""
COMMITS_MAX = 10_000
"""Largest number of offsets of one commit to the broker."""
PAGES_MAX = 10_000
MEMBER_EPOCHS_FROM = 9
"""First version of OFFSET_COMMIT whose clients know the errors for member epochs."""
GROUPS_FROM = 8
"""First version of OFFSET_FETCH that names several groups."""
TOPIC_IDS_FROM = 10
"""First version of OFFSET_FETCH that names topics by their ids."""


def committable(
    topics: list[requests.OffsetCommitTopic], outcomes: dict[tuple[str, int], Kafka]
) -> list[CommittedOffset]:
    """Return the offsets of a request that the broker can store. The errors of the others are added to `outcomes`, by
    topic and partition."""
    offsets = []
    for topic in topics:
        topic_id = topic.get("topic_id")
        for p in topic["partitions"]:
            key = topic["name"], p["partition_index"]
            metadata = p["committed_metadata"] or ""
            if not is_partition(*key):
                outcomes[key] = missing_code(topic["name"], topic_id)
            elif len(metadata) > METADATA_CHARS_MAX:
                outcomes[key] = Kafka.OFFSET_METADATA_TOO_LARGE
            elif p["committed_offset"] < 0:
                outcomes[key] = Kafka.OFFSET_OUT_OF_RANGE
            else:
                epoch = p.get("committed_leader_epoch", -1)
                offsets.append(CommittedOffset(*key, p["committed_offset"], epoch, metadata, id_text(topic_id)))
    return offsets


def commit_answer(
    topics: list[requests.OffsetCommitTopic], outcomes: dict[tuple[str, int], Kafka], default: Kafka
) -> list[responses.OffsetCommitTopic]:
    """Return the topics of the answer with their partitions, in the order of the request. `outcomes`: codes by topic
    and partition; partitions without one get `default`."""
    return [
        {
            "name": (name := topic.get("name", UNNAMED)),
            "topic_id": topic.get("topic_id"),
            "partitions": [
                {"partition_index": i, "error_code": outcomes.get((name, i), default)}
                for i in (p["partition_index"] for p in topic["partitions"])
            ],
        }
        for topic in topics
    ]


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
    identity = request["member_id"], request.get("group_instance_id"), request["generation_id_or_member_epoch"]
    committer, default = NO_COMMITTER, await refuse_group(session, group_id)
    if default is None:
        committer = session.gateway.groups.committer(group_id, *identity)
        default = committer.error
    code = member_code if version >= MEMBER_EPOCHS_FROM else coordinator_code
    if default is Kafka.NONE:
        try:
            await name_topics(session, topics)
        except SparklogError as e:
            default = code(e)
    throttle_ms = 0
    offsets = committable(topics, outcomes) if default is Kafka.NONE else []
    for part in commits_of(offsets):
        default = Kafka.UNKNOWN_SERVER_ERROR
        try:
            answer = await (await session.broker()).ask(
                Api.OFFSET_COMMIT,
                OffsetCommitRequest(group_id, part, committer.member_id, committer.epoch),
                OffsetCommitResponse,
            )
        except NonEmptyGroupError:  # the members of the classic group are about to join the broker's group
            default = Kafka.REBALANCE_IN_PROGRESS if request["member_id"] else Kafka.NON_EMPTY_GROUP
            break
        except SparklogError as e:
            default = code(e)
            break
        else:
            await share_turns(session, len(part))
            throttle_ms = max(throttle_ms, answer.throttle_ms)
            outcomes |= {(r.topic, r.partition): _committed_code(r.error_code, version) for r in answer.results}
    return {
        "throttle_time_ms": throttle_ms,
        "topics": commit_answer(topics, outcomes, default),
    }


def _committed_code(error_code: int, version: int) -> Kafka:
    """Return the code for one offset of a commit. If the partition is not the member's any more, it is
    STALE_MEMBER_EPOCH, after which clients give the commit up and stay in the group."""
    is_lost = error_code == FencedMemberEpochError.code and version >= MEMBER_EPOCHS_FROM
    return Kafka.STALE_MEMBER_EPOCH if is_lost else kafka_code(error_code)


async def offset_fetch(session: Session, request: requests.OffsetFetch, version: int) -> responses.OffsetFetch:
    """Answer with the committed offsets of one group; from version 8 on, of several groups."""
    stable = request.get("require_stable", False)
    if version >= GROUPS_FROM:
        by_id = version >= TOPIC_IDS_FROM
        groups = [
            await _fetch_by_id(session, group, stable=stable, index=i)
            if by_id
            else await _fetch(session, group, stable=stable, index=i)
            for i, group in enumerate(request["groups"])
        ]
        return {"groups": groups}
    topics: list[requests.OffsetFetchGroupTopic] | None = None
    if request["topics"] is not None:
        topics = [{"name": t["name"], "partition_indexes": t["partition_indexes"]} for t in request["topics"]]
    answer = await _fetch(session, {"group_id": request["group_id"], "topics": topics}, stable=stable)
    code = answer["error_code"]
    if code and version < 2:  # the answer has no error but those of partitions
        answer["topics"] = [
            {"name": t["name"], "partitions": [_missing(p, code) for p in t["partition_indexes"]]} for t in topics or ()
        ]
    named: list[responses.OffsetFetchTopic] = [
        {"name": t["name"], "partitions": t["partitions"]} for t in answer["topics"]
    ]
    return {"error_code": code, "topics": named}


async def _fetch_by_id(
    session: Session, group: requests.OffsetFetchGroup, *, stable: bool, index: int
) -> responses.OffsetFetchGroup:
    """Return the answer for a group whose topics are named by their ids. The broker keeps offsets by name, so it is
    asked for the present names."""
    requested, names = group["topics"], dict[UUID, str]()
    try:
        check_entry(index)
        if requested is not None:
            states = await visible_topics(session, (t["topic_id"] for t in requested))
            names = {topic_id: state.name for topic_id, state in states.items()}
            for topic in requested:
                topic["name"] = names.get(topic["topic_id"], UNNAMED)
        answer = await _fetch(session, group, stable=stable, index=index)
        if requested is None:
            described = await read_topics(await session.broker(), [t["name"] for t in answer["topics"]])
            ids = {state.name: topic_uuid(state) for state in described.topics}
            for answered in answer["topics"]:
                answered["topic_id"] = ids.get(answered["name"])
    except SparklogError as e:
        return {"group_id": group["group_id"], "error_code": coordinator_code(e), "topics": []}
    return answer


async def _fetch(
    session: Session, group: requests.OffsetFetchGroup, *, stable: bool, index: int = 0
) -> responses.OffsetFetchGroup:
    """Return the answer for a group whose topics have their names."""
    group_id, topics = group["group_id"], group["topics"]
    answer: responses.OffsetFetchGroup = {"group_id": group_id, "error_code": Kafka.NONE, "topics": []}
    if not is_group_id(group_id):
        return answer | {"error_code": Kafka.INVALID_GROUP_ID}
    partitions = None
    if topics is not None:
        partitions = [
            TopicPartitions(t["name"], sorted({p for p in t["partition_indexes"] if is_partition(t["name"], p)}))
            for t in topics
            if is_topic_name(t["name"])
        ]
    member_id, epoch = group.get("member_id") or "", group.get("member_epoch", NO_EPOCH)
    if session.gateway.groups.find(group_id) is not None:
        member_id, epoch = "", NO_EPOCH  # the broker does not know the members of classic groups
    request = OffsetFetchRequest(group_id, partitions, stable, member_id, epoch)
    try:
        check_entry(index)
        offsets = await _read(session, request) if partitions != [] else []
    except GroupIdNotFoundError:
        offsets = []
    except SparklogError as e:
        return answer | {"error_code": member_code(e)}
    if topics is None:
        by_name: dict[str, list[responses.OffsetFetchTopicPartition]] = {}
        for offset in offsets:
            by_name.setdefault(offset.topic, []).append(_offset(offset.partition, offset))
        return answer | {"topics": [{"name": name, "partitions": p} for name, p in by_name.items()]}
    by_key = {(o.topic, o.partition): o for o in offsets}

    def outcome(topic: requests.OffsetFetchGroupTopic, partition: int) -> responses.OffsetFetchTopicPartition:
        offset = by_key.get((topic["name"], partition))
        if offset is not None:
            return _offset(partition, offset)
        is_unnamed = topic["name"] == UNNAMED and "topic_id" in topic
        return _missing(partition, Kafka.UNKNOWN_TOPIC_ID if is_unnamed else Kafka.NONE)

    return answer | {
        "topics": [
            {
                "name": t["name"],
                "topic_id": t.get("topic_id"),
                "partitions": [outcome(t, p) for p in t["partition_indexes"]],
            }
            for t in topics
        ]
    }


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


def _offset(partition: int, offset: FetchedOffset) -> responses.OffsetFetchTopicPartition:
    code = kafka_code(offset.error_code)
    return {
        "partition_index": partition,
        "committed_offset": -1 if code else offset.offset,
        "committed_leader_epoch": -1 if code else offset.leader_epoch,
        "metadata": offset.metadata,
        "error_code": Kafka.NONE if code is Kafka.UNKNOWN_TOPIC_OR_PARTITION else code,
    }


def _missing(partition: int, code: int) -> responses.OffsetFetchTopicPartition:
    return {
        "partition_index": partition,
        "committed_offset": -1,
        "committed_leader_epoch": -1,
        "metadata": "",
        "error_code": code,
    }
