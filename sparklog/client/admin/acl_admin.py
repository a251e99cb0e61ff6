"""Functions that create, delete and list ACLs. Any broker accepts a change; other brokers apply it a moment later."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sparklog.client.admin.call import Call
from sparklog.client.net.outcomes import raise_failed
from sparklog.client.net.paging import after_last
from sparklog.errors import SparklogError, error_from_code
from sparklog.protocol.acl_messages import (
    ACLS_PER_REQUEST_MAX,
    AclEntry,
    AclFilterEntry,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    acl_of_entry,
    page_key,
)
from sparklog.security.acl_records import AclFilter, as_texts
from sparklog.security.acls import Acl, check_acl


def create_acls(call: Call, acls: Iterable[Acl]) -> int:
    """Create ACLs; see `Admin.create_acls`."""
    created = 0
    checked = [check_acl(acl) for acl in acls]
    for start in range(0, len(checked), ACLS_PER_REQUEST_MAX):
        request = CreateAclsRequest([AclEntry(*as_texts(a)) for a in checked[start : start + ACLS_PER_REQUEST_MAX]])
        try:
            created += call.change(request, CreateAclsResponse).created
        except SparklogError as e:
            outcomes = {acl: e if i >= start else None for i, acl in enumerate(checked)}
            raise_failed(outcomes, "added", noun="ACL", name=_name)
            raise
    return created


def delete_acls(call: Call, filters: Sequence[AclFilter]) -> list[Acl]:
    """Delete ACLs; see `Admin.delete_acls`."""
    deleted, more = list[Acl](), bool(filters)
    request = DeleteAclsRequest([_entry(f) for f in filters])
    while more:
        try:
            answer = call.change(request, DeleteAclsResponse)
        except SparklogError as e:
            if deleted:
                error = error_from_code(e.code, f"{e}. {len(deleted)} ACLs are removed already, the others are not")
                error.outcomes = dict.fromkeys(deleted)
                raise error from e
            raise
        deleted += map(acl_of_entry, answer.deleted)
        more = answer.more and bool(answer.deleted)
    return sorted(deleted)


def describe_acls(call: Call, acl_filter: AclFilter) -> list[Acl]:
    """List ACLs; see `Admin.describe_acls`."""
    following = after_last("acls", page_key)
    pages = call.pages(DescribeAclsRequest(_entry(acl_filter)), DescribeAclsResponse, following)
    return sorted(acl_of_entry(entry) for page in pages for entry in page.acls)


def _name(acl: Acl) -> str:
    return " ".join(as_texts(acl))


def _entry(wanted: AclFilter) -> AclFilterEntry:
    resource_type, pattern_type, *rest = wanted
    texts = [None if value is None else str(value) for value in rest]
    return AclFilterEntry(None if resource_type is None else str(resource_type), str(pattern_type), *texts)
