"""The APIs of quotas: DESCRIBE_CLIENT_QUOTAS and ALTER_CLIENT_QUOTAS (KIP-546)."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from sparklog.protocol.base import NO_VERSION, AnswerVersion, AtLeast, Message, ThrottleMs
from sparklog.security.quota_records import quota_record
from sparklog.security.quotas import Entity

ENTITIES_PER_REQUEST_MAX = 1_000
QUOTAS_PER_ENTITY_MAX = 50
EntityName = Annotated[str, Meta(max_length=1_024)]
QuotaName = Annotated[str, Meta(max_length=64)]


class QuotaEntry(Message):
    """The quotas of one entity: a user, a client id, a user and a client id, or an address (`ip`).

    A field of the entity that is None is not part of it; "" is the default for all without quotas of their own. `used`:
    for a user by name, the present numbers of the things that the quotas limit (connections, topics, partitions).
    Connections are those to the answering broker.
    """

    user: EntityName | None
    client_id: EntityName | None
    quotas: dict[str, float]
    ip: EntityName | None = None
    used: dict[str, int] = {}


def entity_of_entry(entry: QuotaEntry) -> Entity:
    """Return the entity of an answer's entry."""
    return Entity(entry.user, entry.client_id, entry.ip)


def page_key(entry: QuotaEntry) -> str:
    """Return the key of an entity's record, after which the next page begins."""
    return quota_record(entity_of_entry(entry), {})[0].key


class ThrottledGroup(Message):
    """A group of clients that share a quota and have to wait now."""

    quota: str
    """Name of the quota."""
    user: str | None
    """Name of the user; None: the group is not limited to one user."""
    client_id: str | None
    """The client id; None: the group is not limited to one client id."""
    throttle_ms: int
    """Time left to wait in ms."""


class DescribeClientQuotasRequest(Message):
    """Request all quotas. `after`: key (`security/quota_records.py`) of the last entity of the page before; "": the
    first page."""

    after: Annotated[str, Meta(max_length=64)] = ""
    at_least: AtLeast = NO_VERSION


class DescribeClientQuotasResponse(Message):
    """Quotas in the order of their keys. `more`: True if a further page follows. `throttled`: groups that have to wait
    at the answering broker, at most 1,000."""

    entries: list[QuotaEntry]
    more: bool = False
    throttled: list[ThrottledGroup] = []
    throttle_ms: ThrottleMs = 0


class QuotaAlteration(Message):
    """New quotas of an entity. None as a value removes the quota. Quotas that are not named remain unchanged."""

    user: EntityName | None
    client_id: EntityName | None
    changes: Annotated[dict[QuotaName, float | None], Meta(min_length=1, max_length=QUOTAS_PER_ENTITY_MAX)]
    ip: EntityName | None = None


class AlterClientQuotasRequest(Message):
    """Change quotas, all or none of them. `validate_only`: only check the change."""

    alterations: Annotated[list[QuotaAlteration], Meta(min_length=1, max_length=ENTITIES_PER_REQUEST_MAX)]
    at_least: AtLeast = NO_VERSION
    validate_only: bool = False


class AlterClientQuotasResponse(Message):
    """The altered entities with all their quotas after the change."""

    entries: list[QuotaEntry]
    throttle_ms: ThrottleMs = 0
    metadata_version: AnswerVersion = NO_VERSION
