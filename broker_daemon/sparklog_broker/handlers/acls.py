"""CREATE_ACLS, DELETE_ACLS, DESCRIBE_ACLS. The answer comes when a change is in effect on this broker. Other brokers of
a cluster apply it with their next image.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from sparklog.errors import InvalidRequestError, SecurityDisabledError
from sparklog.protocol.acl_messages import (
    ACLS_PER_REQUEST_MAX,
    AclEntry,
    AclFilterEntry,
    AllowedOperationsRequest,
    AllowedOperationsResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    ResourceEntry,
)
from sparklog.security.acl_records import AclFilter, acl_from_texts, acl_record, as_texts, filter_from_texts
from sparklog.security.acls import OPERATIONS, Acl, ResourceType, number_of
from sparklog.security.records import CHANGE_BYTES_MAX, RecordId, RecordKind
from sparklog_broker.network.large_responses import NEWER_CLIENT, one_by_one
from sparklog_broker.network.reply import Response
from sparklog_broker.request_context import RequestContext
from sparklog_broker.security.access import Access

DELETED_BYTES_MAX = CHANGE_BYTES_MAX // 2


def _access(context: RequestContext) -> Access:
    access = context.broker.access
    if access is None:
        raise SecurityDisabledError('this broker has no authorizer: set authorizer = "acl" in its configuration')
    return access


async def create_acls(request: CreateAclsRequest, payload: memoryview, context: RequestContext) -> Response:
    access = _access(context)
    records = dict(acl_record(acl_from_texts(*_fields(entry))) for entry in request.acls)
    new = {name: value for name, value in records.items() if name.key not in access.acls}
    if new:
        await context.broker.security_records.change(new)
    return Response(CreateAclsResponse(len(new)))


async def delete_acls(request: DeleteAclsRequest, payload: memoryview, context: RequestContext) -> Response:
    access = _access(context)
    filters = [_filter(entry) for entry in request.filters]
    gone: dict[str, Acl] = {}
    more, size = False, 0
    for count, (key, acl) in enumerate(list(access.acls.items())):
        if any(f.takes(acl) for f in filters):
            size += len(acl.name)
            if len(gone) == ACLS_PER_REQUEST_MAX or (gone and size > DELETED_BYTES_MAX):
                more = True
                break
            gone[key] = acl
        if count % 1_000 == 999:
            await asyncio.sleep(0)
    if gone:
        await context.broker.security_records.change({RecordId(RecordKind.ACLS, key): None for key in gone})
    return Response(DeleteAclsResponse([_entry(acl) for acl in gone.values()], more))


async def describe_acls(request: DescribeAclsRequest, payload: memoryview, context: RequestContext) -> Response:
    broker = context.broker
    described = _described(_access(context), _filter(request.filter), request.after)
    await broker.time_slices.begin()
    return await broker.large_responses.build(
        DescribeAclsResponse([]),
        "acls",
        one_by_one(described, context.older_version),
        paged=True,
        remedy=NEWER_CLIENT,
        version=context.older_version,
    )


def _described(access: Access, acl_filter: AclFilter, after: str) -> Iterator[AclEntry]:
    acls = dict(access.acls)
    return (_entry(acls[key]) for key in sorted(acls) if key > after and acl_filter.takes(acls[key]))


def _fields(entry: AclEntry) -> tuple[str, ...]:
    return tuple(getattr(entry, name) for name in entry.__struct_fields__)


def _filter(entry: AclFilterEntry) -> AclFilter:
    return filter_from_texts(*(getattr(entry, name) for name in entry.__struct_fields__))


def _entry(acl: Acl) -> AclEntry:
    return AclEntry(*as_texts(acl))


async def allowed_operations(
    request: AllowedOperationsRequest, payload: memoryview, context: RequestContext
) -> Response:
    """Answer with the operations that the peer may do. Without an authorizer these are all."""
    numbers = (_allowed(context, resource) for resource in request.resources)
    return Response(AllowedOperationsResponse(await context.broker.time_slices.list_of(numbers)))


def _allowed(context: RequestContext, resource: ResourceEntry) -> int:
    try:
        kind = ResourceType(resource.resource_type)
    except ValueError:
        raise InvalidRequestError(
            f"resource type {resource.resource_type!r}: use one of {', '.join(ResourceType)}"
        ) from None
    return sum(1 << number_of(o) for o in OPERATIONS[kind] if context.may(o, kind, resource.name))
