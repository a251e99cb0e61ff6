"""Functions that list and change the quotas of users, client ids and IP addresses. Any broker accepts a change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from sparklog.client.admin.changes import change
from sparklog.client.net.paging import pages
from sparklog.client.net.retry import RetryPolicy, request_until
from sparklog.protocol.apis import Api
from sparklog.protocol.quota_messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    QuotaAlteration,
    QuotaEntry,
    ThrottledGroup,
)
from sparklog.security.quota_records import quota_record
from sparklog.security.quotas import Entity

if TYPE_CHECKING:
    from sparklog.client.net.cluster import Cluster


class QuotaDescription(NamedTuple):
    """All quotas, and the clients that are throttled."""

    quotas: dict[Entity, dict[str, float]]
    """Quota values by entity and quota name."""
    throttled: list[ThrottledGroup]
    """Groups that the queried broker throttles at the moment."""
    used: dict[Entity, dict[str, int]] = {}  # noqa: RUF012 - a default that is never changed
    """Numbers in use by entity and quota name, for the limits of users that are named (not of the default user).
    Connections are those to the queried broker."""


def describe_quotas(cluster: Cluster, *, timeout_ms: int = 30_000) -> QuotaDescription:
    """List all quotas; see `Admin.describe_client_quotas`."""
    policy = RetryPolicy.within(timeout_ms)

    def ask(before: DescribeClientQuotasResponse | None) -> DescribeClientQuotasResponse:
        request = DescribeClientQuotasRequest("" if before is None else str(position(before)))
        return request_until(cluster, Api.DESCRIBE_CLIENT_QUOTAS, request, DescribeClientQuotasResponse, policy)

    def position(page: DescribeClientQuotasResponse) -> object:
        if not page.entries:
            return None
        return quota_record(_entity(page.entries[-1]), {})[0].key

    found = list(pages(ask, position))
    used = {_entity(e): e.used for page in found for e in page.entries if e.used}
    return QuotaDescription({_entity(e): e.quotas for page in found for e in page.entries}, found[0].throttled, used)


def alter_quotas(
    cluster: Cluster, entity: Entity, changes: Mapping[str, float | None], *, timeout_ms: int = 30_000
) -> dict[str, float]:
    """Change quotas; see `Admin.alter_client_quotas`."""
    request = AlterClientQuotasRequest([QuotaAlteration(entity.user, entity.client_id, dict(changes), entity.ip)])
    answer = change(cluster, Api.ALTER_CLIENT_QUOTAS, request, AlterClientQuotasResponse, timeout_ms)
    assert answer is not None
    return answer.entries[0].quotas


def _entity(entry: QuotaEntry) -> Entity:
    return Entity(entry.user, entry.client_id, entry.ip)
