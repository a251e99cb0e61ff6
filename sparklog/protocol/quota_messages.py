"""The APIs of quotas: DESCRIBE_CLIENT_QUOTAS and ALTER_CLIENT_QUOTAS (KIP-546)."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from sparklog.protocol.base import NO_VERSION, AnswerVersion, AtLeast, Message, ThrottleMs

ENTITIES_PER_REQUEST_MAX = 1_000
QUOTAS_PER_ENTITY_MAX = 50
EntityName = Annotated[str, Meta(max_length=1_024)]
QuotaName = Annotated[str, Meta(max_length=64)]


class QuotaEntry(Message):
    """The quotas of one entity: a user, a client id, or both, or an address; None: not named, "": the default. `used`:
    the user's present numbers (of connections: to this broker); only for users by name."""

    user: EntityName | None
    client_id: EntityName | None
    quotas: dict[str, float]
    ip: EntityName | None = None
    used: dict[str, int] = {}


class ThrottledGroup(Message):
    """The clients that share a quota and have to wait at the moment."""

    quota: str
    """Name of the quota."""
    user: str | None
    """Name of the user; None: any user."""
    client_id: str | None
    """The client id; None: any client id."""
    throttle_ms: int
    """Time left to wait in ms."""


class DescribeClientQuotasRequest(Message):
    """Request all quotas. `after`: only those whose keys (`security/quota_records.py`) follow this one."""

    after: Annotated[str, Meta(max_length=64)] = ""
    at_least: AtLeast = NO_VERSION


class DescribeClientQuotasResponse(Message):
    """Quotas in the order of their keys. `more`: True if a further page follows. `throttled`: at this broker, at most
    1,000."""

    entries: list[QuotaEntry]
    more: bool = False
    throttled: list[ThrottledGroup] = []
    throttle_ms: ThrottleMs = 0


class QuotaAlteration(Message):
    """New quotas of an entity; None removes a quota. Other quotas stay."""

    user: EntityName | None
    client_id: EntityName | None
    changes: Annotated[dict[QuotaName, float | None], Meta(min_length=1, max_length=QUOTAS_PER_ENTITY_MAX)]
    ip: EntityName | None = None


class AlterClientQuotasRequest(Message):
    """Change quotas: all or none."""

    alterations: Annotated[list[QuotaAlteration], Meta(min_length=1, max_length=ENTITIES_PER_REQUEST_MAX)]
    at_least: AtLeast = NO_VERSION


class AlterClientQuotasResponse(Message):
    """The entities as they are now."""

    entries: list[QuotaEntry]
    throttle_ms: ThrottleMs = 0
    metadata_version: AnswerVersion = NO_VERSION
