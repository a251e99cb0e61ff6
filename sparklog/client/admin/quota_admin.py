"""The description of all quotas."""

from __future__ import annotations

from typing import NamedTuple

from sparklog.client.admin.call import Call
from sparklog.client.net.paging import after_last
from sparklog.protocol.quota_messages import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    ThrottledGroup,
    entity_of_entry,
    page_key,
)
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
    following = after_last("entries", page_key)
    pages = list(call.pages(DescribeClientQuotasRequest(), DescribeClientQuotasResponse, following))
    entries = {entity_of_entry(e): e for page in pages for e in page.entries}
    used = {entity: e.used for entity, e in entries.items() if e.used}
    return QuotaDescription({entity: e.quotas for entity, e in entries.items()}, pages[0].throttled, used)
