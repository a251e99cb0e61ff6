"""The description of all quotas."""

from __future__ import annotations

from typing import NamedTuple

from sparklog.client.admin.call import Call, after_last
from sparklog.protocol.quota_messages import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    QuotaEntry,
    ThrottledGroup,
)
from sparklog.security.quota_records import quota_record
from sparklog.security.quotas import Entity


class QuotaDescription(NamedTuple):
    """All quotas, and the clients that are throttled."""

    quotas: dict[Entity, dict[str, float]]
    """Quota values by entity and quota name."""
    throttled: list[ThrottledGroup]
    """Groups that the queried broker throttles at the moment."""
    used: dict[Entity, dict[str, int]] = {}  # noqa: RUF012 - a default that is never changed
    """Numbers in use by entity and quota name, for the limits of users that are named (not of the default user).
    Connections are those to the queried broker."""


def describe_quotas(call: Call) -> QuotaDescription:
    """List all quotas; see `Admin.describe_client_quotas`."""
    following = after_last("entries", lambda entry: quota_record(_entity(entry), {})[0].key)
    pages = list(call.pages(DescribeClientQuotasRequest(), DescribeClientQuotasResponse, following))
    entries = {_entity(e): e for page in pages for e in page.entries}
    used = {entity: e.used for entity, e in entries.items() if e.used}
    return QuotaDescription({entity: e.quotas for entity, e in entries.items()}, pages[0].throttled, used)


def _entity(entry: QuotaEntry) -> Entity:
    return Entity(entry.user, entry.client_id, entry.ip)
