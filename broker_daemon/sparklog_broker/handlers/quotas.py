"""DESCRIBE_CLIENT_QUOTAS and ALTER_CLIENT_QUOTAS."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from sparklog.protocol.quota_messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    QuotaEntry,
    ThrottledGroup,
)
from sparklog.security.quota_records import parse_key, quota_record
from sparklog.security.quotas import NUMBERS, Entity, QuotaKey
from sparklog.security.records import RecordId
from sparklog_broker.network.large_responses import NEWER_CLIENT, one_by_one
from sparklog_broker.network.reply import Response
from sparklog_broker.request_context import RequestContext

THROTTLED_MAX = 1_000


async def describe_client_quotas(
    request: DescribeClientQuotasRequest, payload: memoryview, context: RequestContext
) -> Response:
    broker = context.broker
    await broker.time_slices.begin()
    throttled = [ThrottledGroup(str(t.key), *t.group, t.throttle_ms) for t in broker.throttling.waiting()]
    return await broker.large_responses.build(
        DescribeClientQuotasResponse([], throttled=list(islice(throttled, THROTTLED_MAX))),
        "entries",
        one_by_one(_entries(context, request.after), context.older_version),
        paged=True,
        remedy=NEWER_CLIENT,
        version=context.older_version,
    )


def _entries(context: RequestContext, after: str) -> Iterator[QuotaEntry]:
    entries = dict(context.broker.throttling.entries)
    return (_entry(*entries[key], context) for key in sorted(entries) if key > after)


async def alter_client_quotas(
    request: AlterClientQuotasRequest, payload: memoryview, context: RequestContext
) -> Response:
    """Answer when the change is in effect on this broker. Other brokers apply it with their next image."""
    now: dict[Entity, dict[QuotaKey, float]] = {e: dict(q) for e, q in context.broker.throttling.entries.values()}
    altered: dict[Entity, dict[QuotaKey, float]] = {}
    for alteration in request.alterations:
        entity = Entity(alteration.user, alteration.client_id, alteration.ip)
        quotas = altered.setdefault(entity, now.get(entity, {}))
        for name, limit in alteration.changes.items():
            key = parse_key(name)
            if limit is None:
                quotas.pop(key, None)
            else:
                quotas[key] = limit
    records: dict[RecordId, bytes | None] = dict(quota_record(entity, quotas) for entity, quotas in altered.items())
    if not request.validate_only:
        await context.broker.security_records.change(records)
    return Response(AlterClientQuotasResponse([_entry(entity, quotas, context) for entity, quotas in altered.items()]))


def _entry(entity: Entity, quotas: Mapping[QuotaKey, float], context: RequestContext) -> QuotaEntry:
    limits = {str(key): limit for key, limit in sorted(quotas.items())}
    return QuotaEntry(entity.user, entity.client_id, limits, entity.ip, _used(entity, quotas, context))


def _used(entity: Entity, quotas: Mapping[QuotaKey, float], context: RequestContext) -> dict[str, int]:
    user, owners = entity.user, context.broker.topics.owners
    if not user or quotas.keys().isdisjoint(NUMBERS):
        return {}
    topics, partitions = owners.owned(user)
    have = {
        QuotaKey.MAX_CONNECTIONS: context.broker.throttling.connections.count(user=user),
        QuotaKey.MAX_TOPICS: topics,
        QuotaKey.MAX_PARTITIONS: partitions,
    }
    return {str(key): have[key] for key in NUMBERS if key in quotas}
