"""DESCRIBE_CLIENT_QUOTAS and ALTER_CLIENT_QUOTAS (KIP-546)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparklog.client.net.paging import after_last
from sparklog.errors import InvalidRequestError, SparklogError
from sparklog.gateway.handlers.entries import check_entry
from sparklog.gateway.session import Session
from sparklog.kafka.wire import requests, responses
from sparklog.kafka.wire.errors import Kafka, text_of, value_code
from sparklog.protocol.apis import Api
from sparklog.protocol.quota_messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    QuotaAlteration,
    QuotaEntry,
    page_key,
)

USER, CLIENT_ID, IP = ENTITY_TYPES = ("user", "client-id", "ip")
DEFAULT = ""
"""The broker's name of the entity for all without quotas of their own."""
EXACT, OF_DEFAULT, SPECIFIED = 0, 1, 2
"""Kinds of components of a filter: an entity by its name, the default, any entity of the type."""


async def describe_client_quotas(
    session: Session, request: requests.DescribeClientQuotas, version: int
) -> responses.DescribeClientQuotas:
    """Answer with the quotas of the entities that match all components of the filter. With `strict`, an entity has no
    other types than those of the components."""
    message, following = DescribeClientQuotasRequest(), after_last("entries", page_key)
    try:
        components = _checked(request["components"])
        pages = (await session.broker()).pages(
            Api.DESCRIBE_CLIENT_QUOTAS, message, DescribeClientQuotasResponse, following
        )
        entries = [entry async for page in pages for entry in page.entries]
    except SparklogError as e:
        return {"error_code": value_code(e), "error_message": text_of(e), "entries": None}
    return {
        "error_code": Kafka.NONE,
        "error_message": None,
        "entries": [
            {
                "entity": [{"entity_type": t, "entity_name": name or None} for t, name in entity.items()],
                "values": [{"key": key, "value": value} for key, value in entry.quotas.items()],
            }
            for entry in entries
            if entry.quotas and _matches(entity := _entity(entry), components, strict=request["strict"])
        ],
    }


def _entity(entry: QuotaEntry) -> dict[str, str]:
    """Return the names of an entity by their types; DEFAULT for the default."""
    names = {USER: entry.user, CLIENT_ID: entry.client_id, IP: entry.ip}
    return {entity_type: name for entity_type, name in names.items() if name is not None}


def _checked(
    components: Sequence[requests.DescribeClientQuotasComponent],
) -> Sequence[requests.DescribeClientQuotasComponent]:
    """Return the components of a filter. Raises InvalidRequestError for one that matches nothing."""
    for one in components:
        if one["entity_type"] not in ENTITY_TYPES:
            raise InvalidRequestError(f"entity type {one['entity_type']!r}; use one of {', '.join(ENTITY_TYPES)}")
        if one["match_type"] not in (EXACT, OF_DEFAULT, SPECIFIED) or (one["match_type"] == EXACT) is not bool(
            one["match"]
        ):
            raise InvalidRequestError(
                f"match type {one['match_type']} with {one['match']!r}: use {EXACT} with a name, {OF_DEFAULT} for the "
                f"default, or {SPECIFIED} for all entities of the type"
            )
    if len({one["entity_type"] for one in components}) < len(components):
        raise InvalidRequestError("an entity type is named twice")
    return components


def _matches(
    entity: Mapping[str, str], components: Sequence[requests.DescribeClientQuotasComponent], *, strict: bool
) -> bool:
    if strict and len(entity) != len(components):
        return False
    return all(
        one["entity_type"] in entity
        and (one["match_type"] == SPECIFIED or entity[one["entity_type"]] == (one["match"] or DEFAULT))
        for one in components
    )


async def alter_client_quotas(
    session: Session, request: requests.AlterClientQuotas, version: int
) -> responses.AlterClientQuotas:
    """Change the quotas of entities. Each entity has its own result."""
    entries: list[responses.AlterClientQuotasEntrie] = []
    for i, entry in enumerate(request["entries"]):
        code, text = Kafka.NONE, None
        try:
            check_entry(i)
            message = AlterClientQuotasRequest([_alteration(entry)], validate_only=request["validate_only"])
            await (await session.broker()).ask(Api.ALTER_CLIENT_QUOTAS, message, AlterClientQuotasResponse)
        except SparklogError as e:
            code, text = value_code(e), text_of(e)
        entries.append({"error_code": code, "error_message": text, "entity": [{**one} for one in entry["entity"]]})
    return {"entries": entries}


def _alteration(entry: requests.AlterClientQuotasEntrie) -> QuotaAlteration:
    """Return the change in the broker's form. Raises InvalidRequestError."""
    names = {one["entity_type"]: one["entity_name"] or DEFAULT for one in entry["entity"]}
    if len(names) < len(entry["entity"]) or not names.keys() <= set(ENTITY_TYPES):
        raise InvalidRequestError(f"an entity has each of the types {', '.join(ENTITY_TYPES)} at most once")
    if not entry["ops"]:
        raise InvalidRequestError("the change of an entity names no quota")
    changes = {op["key"]: None if op["remove"] else op["value"] for op in entry["ops"]}
    return QuotaAlteration(names.get(USER), names.get(CLIENT_ID), changes, names.get(IP))
