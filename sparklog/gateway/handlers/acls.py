"""DESCRIBE_ACLS, CREATE_ACLS and DELETE_ACLS. The broker's ACLs are those of Kafka, whose enumerations have numbers."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

from sparklog.client.net.paging import after_last
from sparklog.errors import InvalidRequestError, SparklogError
from sparklog.gateway.handlers.entries import check_entry
from sparklog.gateway.session import Session
from sparklog.kafka.wire import requests, responses
from sparklog.kafka.wire.errors import Kafka, text_of, value_code
from sparklog.protocol.acl_messages import (
    AclEntry,
    AclFilterEntry,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    page_key,
)
from sparklog.protocol.apis import Api
from sparklog.security.acl_records import ANY, MATCH
from sparklog.security.acls import Operation, PatternType, Permission, ResourceType

ANY_NUMBER = 1
"""Number of "any" in a filter, in all enumerations."""
RESOURCE_TYPES: Mapping[int, str] = {
    2: ResourceType.TOPIC,
    3: ResourceType.GROUP,
    4: ResourceType.CLUSTER,
    5: ResourceType.TRANSACTIONAL_ID,
    7: ResourceType.USER,
}
PATTERN_TYPES: Mapping[int, str] = {3: PatternType.LITERAL, 4: PatternType.PREFIXED}
FILTER_PATTERN_TYPES: Mapping[int, str] = {**PATTERN_TYPES, ANY_NUMBER: ANY, 2: MATCH}
OPERATIONS: Mapping[int, str] = {
    2: Operation.ALL,
    3: Operation.READ,
    4: Operation.WRITE,
    5: Operation.CREATE,
    6: Operation.DELETE,
    7: Operation.ALTER,
    8: Operation.DESCRIBE,
    9: Operation.CLUSTER_ACTION,
    10: Operation.DESCRIBE_CONFIGS,
    11: Operation.ALTER_CONFIGS,
    12: Operation.IDEMPOTENT_WRITE,
}
PERMISSIONS: Mapping[int, str] = {2: Permission.DENY, 3: Permission.ALLOW}


async def describe_acls(session: Session, request: requests.DescribeAcls, version: int) -> responses.DescribeAcls:
    """Answer with the ACLs that match a filter, one resource pattern after the other."""
    try:
        message, following = DescribeAclsRequest(_filter(request)), after_last("acls", page_key)
        pages = (await session.broker()).pages(Api.DESCRIBE_ACLS, message, DescribeAclsResponse, following)
        acls = [acl async for page in pages for acl in page.acls]
    except SparklogError as e:
        return {"error_code": value_code(e), "error_message": text_of(e), "resources": []}
    return {
        "error_code": Kafka.NONE,
        "error_message": None,
        "resources": [
            {
                "resource_type": _number(RESOURCE_TYPES, resource_type),
                "resource_name": name,
                "pattern_type": _number(PATTERN_TYPES, pattern_type),
                "acls": [
                    {
                        "principal": acl.principal,
                        "host": acl.host,
                        "operation": _number(OPERATIONS, acl.operation),
                        "permission_type": _number(PERMISSIONS, acl.permission),
                    }
                    for acl in some
                ],
            }
            for (resource_type, pattern_type, name), some in groupby(sorted(acls, key=_pattern), _pattern)
        ],
    }


async def create_acls(session: Session, request: requests.CreateAcls, version: int) -> responses.CreateAcls:
    """Add ACLs. Each has its own result."""
    results: list[responses.CreateAclsResult] = []
    for i, creation in enumerate(request["creations"]):
        try:
            check_entry(i)
            acl = AclEntry(
                _word(RESOURCE_TYPES, creation["resource_type"], "resource type"),
                _word(PATTERN_TYPES, creation.get("resource_pattern_type", 3), "pattern type"),
                creation["resource_name"],
                creation["principal"],
                creation["host"],
                _word(OPERATIONS, creation["operation"], "operation"),
                _word(PERMISSIONS, creation["permission_type"], "permission"),
            )
            await (await session.broker()).ask(Api.CREATE_ACLS, CreateAclsRequest([acl]), CreateAclsResponse)
        except SparklogError as e:
            results.append({"error_code": value_code(e), "error_message": text_of(e)})
        else:
            results.append({"error_code": Kafka.NONE, "error_message": None})
    return {"results": results}


async def delete_acls(session: Session, request: requests.DeleteAcls, version: int) -> responses.DeleteAcls:
    """Remove the ACLs that match the filters. Each filter has its own result."""
    results: list[responses.DeleteAclsFilterResult] = []
    for i, one in enumerate(request["filters"]):
        deleted: list[AclEntry] = []
        try:
            check_entry(i)
            message, more = DeleteAclsRequest([_filter(one)]), True
            while more:
                answer = await (await session.broker()).ask(Api.DELETE_ACLS, message, DeleteAclsResponse)
                deleted += answer.deleted
                more = answer.more and bool(answer.deleted)
        except SparklogError as e:
            results.append({"error_code": value_code(e), "error_message": text_of(e), "matching_acls": []})
        else:
            matching = [_deleted(acl) for acl in deleted]
            results.append({"error_code": Kafka.NONE, "error_message": None, "matching_acls": matching})
    return {"filter_results": results}


def _filter(request: requests.DescribeAcls | requests.DeleteAclsFilter) -> AclFilterEntry:
    """Return the filter in the broker's words. Raises InvalidRequestError for a number without one."""

    def word(words: Mapping[int, str], number: int, kind: str) -> str | None:
        return None if number == ANY_NUMBER else _word(words, number, kind)

    return AclFilterEntry(
        word(RESOURCE_TYPES, request["resource_type_filter"], "resource type"),
        _word(FILTER_PATTERN_TYPES, request.get("pattern_type_filter", 3), "pattern type"),
        request["resource_name_filter"],
        request["principal_filter"],
        request["host_filter"],
        word(OPERATIONS, request["operation"], "operation"),
        word(PERMISSIONS, request["permission_type"], "permission"),
    )


def _deleted(acl: AclEntry) -> responses.DeleteAclsFilterResultMatchingAcl:
    return {
        "error_code": Kafka.NONE,
        "error_message": None,
        "resource_type": _number(RESOURCE_TYPES, acl.resource_type),
        "resource_name": acl.name,
        "pattern_type": _number(PATTERN_TYPES, acl.pattern_type),
        "principal": acl.principal,
        "host": acl.host,
        "operation": _number(OPERATIONS, acl.operation),
        "permission_type": _number(PERMISSIONS, acl.permission),
    }


def _word(words: Mapping[int, str], number: int, kind: str) -> str:
    """Return the broker's word for a number of an enumeration. Raises InvalidRequestError if there is none."""
    if number not in words:
        raise InvalidRequestError(f"{kind} {number} does not exist here; the others are {sorted(words)}")
    return str(words[number])


def _number(words: Mapping[int, str], word: str) -> int:
    """Return the number of a word of the broker; that of "unknown" for a word of a newer broker."""
    return next((number for number, one in words.items() if one == word), 0)


def _pattern(acl: AclEntry) -> tuple[str, str, str]:
    return acl.resource_type, acl.pattern_type, acl.name
