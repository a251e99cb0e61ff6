"""The APIs of consumer groups: heartbeats, offsets, and operators' requests."""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from operator import itemgetter

import msgspec

from sparklog.errors import InvalidProducerEpochError, SparklogError, UnknownTopicOrPartitionError
from sparklog.protocol import group_messages as m
from sparklog.protocol.apis import Api
from sparklog.protocol.codec import encode
from sparklog.replication.groups import GroupCoordinator
from sparklog.security.acls import Operation, ResourceType
from sparklog.types import TopicPartition
from sparklog_broker.broker import Broker
from sparklog_broker.coordinators.groups import GroupPartition
from sparklog_broker.coordinators.internal_topics import Producer
from sparklog_broker.handlers.named_once import check_each_once, check_partition_count
from sparklog_broker.network.large_responses import NEWER_CLIENT, FittingItems, one_by_one, parts_of, too_large
from sparklog_broker.network.reply import Response
from sparklog_broker.request_context import RequestContext

TOGETHER_MAX = 1_000
"""Largest number of partitions of a request that are processed without a pause of the event loop. Larger requests are
first reduced to known partitions, with pauses."""


async def group_heartbeat(request: m.GroupHeartbeatRequest, payload: memoryview, context: RequestContext) -> Response:
    if request.owned is not None:
        check_partition_count(request.owned)
        if sum(len(t.partitions) for t in request.owned) > TOGETHER_MAX:
            request = msgspec.structs.replace(request, owned=await _sorted_out(context.broker, request.owned))
    if request.topics is not None:
        request = msgspec.structs.replace(request, topics=list(dict.fromkeys(request.topics)))
    if not request.member_id and request.member_epoch == 0:
        request = msgspec.structs.replace(request, member_id=context.broker.environment.randomness.new_id())
    may_describe = partial(context.may, Operation.DESCRIBE, ResourceType.TOPIC)
    return Response(await context.broker.groups.heartbeat(request, context.peer_host, may_describe))


async def _sorted_out(broker: Broker, owned: Iterable[m.TopicPartitions]) -> list[m.TopicPartitions]:
    """Return `owned` without unknown partitions, except one of each topic, which shows that the member claims a
    partition that it cannot have. This bounds the indivisible work by the cluster's partitions and the request's
    topics.
    """
    sorted_topics: list[m.TopicPartitions] = []
    for named in owned:
        topic = broker.partitions.topics.get(named.topic)
        count = 0 if topic is None else topic.partitions
        present = [p for p in named.partitions if p < count]
        present += [p for p in named.partitions if p >= count][:1]
        sorted_topics.append(m.TopicPartitions(named.topic, present))
        await broker.time_slices.begin()
    return sorted_topics


async def offset_commit(request: m.OffsetCommitRequest, payload: memoryview, context: RequestContext) -> Response:
    """Answer when the offsets are below the high watermark."""
    await check_each_once(context.broker.time_slices, request.offsets)
    return Response(m.OffsetCommitResponse(await _commit(context.broker, request)))


async def txn_offset_commit(
    request: m.TxnOffsetCommitRequest, payload: memoryview, context: RequestContext
) -> Response:
    """Commit offsets in a transaction. The group's partition is first added to the transaction, so that its marker will
    reach the offsets.
    """
    await check_each_once(context.broker.time_slices, request.offsets)
    groups = context.broker.groups
    number = groups.partition_of(request.group_id).number
    await groups.topic.ensure()
    await context.broker.transaction_access.add_partitions(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        [TopicPartition(groups.topic.name, number)],
    )
    producer = Producer(request.producer_id, request.producer_epoch)
    try:
        results = await _commit(context.broker, request, producer)
    except InvalidProducerEpochError:  # the transaction has just ended
        identity = request.transactional_id, request.producer_id, request.producer_epoch
        raise await context.broker.transaction_access.stale(*identity) from None
    return Response(m.TxnOffsetCommitResponse(results))


async def _commit(
    broker: Broker, request: m.OffsetCommitRequest | m.TxnOffsetCommitRequest, producer: Producer | None = None
) -> list[m.OffsetResult]:
    """Commit the offsets at once. In a large request, offsets of unknown partitions are removed first, in slices of the
    loop's time, which bounds the indivisible work by the cluster's partitions.
    """
    if len(request.offsets) <= TOGETHER_MAX:
        return await broker.groups.commit(request, producer)
    exists = await broker.time_slices.list_of(_exists(broker, o) for o in request.offsets)
    present = [o for o, is_present in zip(request.offsets, exists, strict=True) if is_present]
    done = iter(await broker.groups.commit(msgspec.structs.replace(request, offsets=present), producer))
    results = (
        next(done) if is_present else _no_partition(o) for o, is_present in zip(request.offsets, exists, strict=True)
    )
    return await broker.time_slices.list_of(results)


def _exists(broker: Broker, offset: m.CommittedOffset) -> bool:
    topic = broker.partitions.topics.get(offset.topic)
    return topic is not None and offset.partition < topic.partitions


def _no_partition(offset: m.CommittedOffset) -> m.OffsetResult:
    error = UnknownTopicOrPartitionError(f"partition {TopicPartition(offset.topic, offset.partition)} does not exist")
    return m.OffsetResult(offset.topic, offset.partition, error.code, str(error))


async def offset_fetch(request: m.OffsetFetchRequest, payload: memoryview, context: RequestContext) -> Response:
    if request.partitions is not None:
        check_partition_count(request.partitions)
    broker = context.broker
    await broker.time_slices.begin()
    partition = broker.groups.partition_of(request.group_id)
    coordinator = partition.ready()
    shown = _shown_offsets(context, request, coordinator.fetched_offsets(request))
    items = one_by_one(shown, context.older_version)
    response = await broker.large_responses.build(
        m.OffsetFetchResponse([]),
        "offsets",
        items,
        paged=request.paged,
        remedy="ask for fewer partitions at once",
        version=context.older_version,
    )
    await partition.safe(coordinator)
    return response


def _shown_offsets(
    context: RequestContext, request: m.OffsetFetchRequest, offsets: Iterable[m.FetchedOffset]
) -> Iterable[m.FetchedOffset]:
    if request.partitions is None:
        return context.shown(Api.OFFSET_FETCH, offsets)
    return map(partial(_denied_or, context.denied), offsets) if context.denied else offsets


def _denied_or(denied: Mapping[str, SparklogError], offset: m.FetchedOffset) -> m.FetchedOffset:
    error = denied.get(offset.topic)
    return offset if error is None else m.FetchedOffset(offset.topic, offset.partition, error.code, message=str(error))


async def list_groups(request: m.ListGroupsRequest, payload: memoryview, context: RequestContext) -> Response:
    broker = context.broker
    states = {s.lower() for s in request.states}
    coordinators = broker.groups.coordinators()
    ids: list[Iterable[tuple[str, GroupCoordinator]]] = []
    for coordinator in coordinators.values():
        await broker.time_slices.begin()
        ids.append([(group_id, coordinator) for group_id in coordinator.group_ids(request.after)])
    summaries = (c.summary(group_id) for group_id, c in heapq.merge(*ids, key=itemgetter(0)))
    shown = context.shown(Api.LIST_GROUPS, summaries)
    version = context.older_version
    items = one_by_one((g for g in shown if not states or g.state.lower() in states), version)
    response = await broker.large_responses.build(
        m.ListGroupsResponse([]), "groups", items, paged=request.paged, remedy=NEWER_CLIENT, version=version
    )
    for partition, coordinator in coordinators.items():
        await partition.safe(coordinator)
    return response


async def describe_groups(request: m.DescribeGroupsRequest, payload: memoryview, context: RequestContext) -> Response:
    broker = context.broker
    response = m.DescribeGroupsResponse([])
    seen: dict[GroupPartition, GroupCoordinator] = {}
    await broker.time_slices.begin()
    built = await broker.large_responses.build(
        response,
        "groups",
        _described(context, request, response, seen),
        paged=request.paged,
        remedy=f"ask for one group at a time; {NEWER_CLIENT}",
        version=context.older_version,
    )
    for partition, coordinator in seen.items():
        await partition.safe(coordinator)
    return built


def _described(
    context: RequestContext,
    request: m.DescribeGroupsRequest,
    response: m.DescribeGroupsResponse,
    seen: dict[GroupPartition, GroupCoordinator],
) -> Iterator[Iterable[bytes]]:
    """Yield for each group the encoded parts of its description, with as many members as fit. If members are left over,
    note the next member in `response` and stop; an unpaged request raises ResponseTooLargeError instead.

    `LargeResponses.build` takes the next group only after it has added the previous group to the answer. `seen` gets
    the coordinators that were read, by partition.
    """
    groups, limit_bytes = context.broker.groups, context.broker.large_responses.limit_bytes
    first = request.members_from
    for group_id in dict.fromkeys(request.group_ids):
        if (denied := context.denied.get(group_id)) is not None:
            yield (encode(m.GroupDetails(denied.code, group_id, message=str(denied)), context.older_version),)
            first = 0
            continue
        partition = groups.partition_of(group_id)
        coordinator = seen.setdefault(partition, partition.ready())
        members_page = _members(coordinator, group_id, coordinator.member_ids(group_id)[first:])
        shown = context.shown(Api.DESCRIBE_GROUPS, members_page)
        members = FittingItems(shown, limit_bytes // 2 if request.paged else limit_bytes, context.older_version)
        details = coordinator.details(group_id)
        yield chain(members.collect(), _group_parts(details, members, context.older_version))
        if not members.complete:
            if not request.paged:
                raise too_large(limit_bytes, NEWER_CLIENT)
            response.more, response.members_from = True, first + len(members.encoded)
            return
        first = 0


def _members(coordinator: GroupCoordinator, group_id: str, member_ids: Iterable[str]) -> Iterator[m.GroupMember]:
    for member_id in member_ids:
        with contextlib.suppress(KeyError):  # the member has left in the meantime
            yield coordinator.member(group_id, member_id)


def _group_parts(details: m.GroupDetails, members: FittingItems, version: int | None) -> Iterator[bytes]:
    yield from parts_of(details, {"members": (len(members.encoded), members.encoded)}, version)


async def delete_group(request: m.DeleteGroupRequest, payload: memoryview, context: RequestContext) -> Response:
    groups = context.broker.groups
    if request.partitions is None:
        return Response(m.DeleteGroupResponse(await groups.delete(request.group_id)))
    check_partition_count(request.partitions)
    partitions = [TopicPartition(t.topic, p) for t in request.partitions for p in t.partitions]
    deleted, subscribed = await groups.delete_offsets(request.group_id, partitions)
    return Response(m.DeleteGroupResponse(deleted, subscribed=subscribed))
