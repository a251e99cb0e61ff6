"""Functions that create, delete and list ACLs. Any broker accepts a change; other brokers apply it a moment later."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from sparklog.client.admin.changes import change
from sparklog.client.net.deadline import Deadline
from sparklog.client.net.outcomes import raise_failed
from sparklog.client.net.paging import pages
from sparklog.client.net.retry import RetryPolicy, request_until
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
)
from sparklog.protocol.apis import Api
from sparklog.security.acl_records import AclFilter, acl_record, as_texts, stored_acl
from sparklog.security.acls import Acl, check_acl

if TYPE_CHECKING:
    from sparklog.client.net.cluster import Cluster


def create_acls(cluster: Cluster, acls: Iterable[Acl], *, timeout_ms: int = 30_000) -> int:
    """Create ACLs; see `Admin.create_acls`."""
    created, deadline = 0, Deadline(timeout_ms)
    checked = [check_acl(acl) for acl in acls]
    for start in range(0, len(checked), ACLS_PER_REQUEST_MAX):
        request = CreateAclsRequest([AclEntry(*as_texts(a)) for a in checked[start : start + ACLS_PER_REQUEST_MAX]])
        try:
            answer = change(cluster, Api.CREATE_ACLS, request, CreateAclsResponse, deadline.left_ms())
        except SparklogError as e:
            outcomes = {acl: e if i >= start else None for i, acl in enumerate(checked)}
            raise_failed(outcomes, "added", noun="ACL", name=_name)
            raise
        assert answer is not None
        created += answer.created
    return created


def delete_acls(cluster: Cluster, filters: Sequence[AclFilter], *, timeout_ms: int = 30_000) -> list[Acl]:
    """Delete ACLs; see `Admin.delete_acls`."""
    deadline, deleted, more = Deadline(timeout_ms), list[Acl](), bool(filters)
    request = DeleteAclsRequest([_entry(f) for f in filters])
    while more:
        try:
            answer = change(cluster, Api.DELETE_ACLS, request, DeleteAclsResponse, deadline.left_ms())
        except SparklogError as e:
            if deleted:
                error = error_from_code(e.code, f"{e}. {len(deleted)} ACLs are removed already, the others are not")
                error.outcomes = dict.fromkeys(deleted)
                raise error from e
            raise
        assert answer is not None
        deleted += map(_acl, answer.deleted)
        more = answer.more and bool(answer.deleted)
    return sorted(deleted)


def describe_acls(cluster: Cluster, wanted: AclFilter, *, timeout_ms: int = 30_000) -> list[Acl]:
    """List ACLs; see `Admin.describe_acls`."""
    policy = RetryPolicy.within(timeout_ms)

    def ask(before: DescribeAclsResponse | None) -> DescribeAclsResponse:
        after = "" if before is None else str(position(before))
        request = DescribeAclsRequest(_entry(wanted), after)
        return request_until(cluster, Api.DESCRIBE_ACLS, request, DescribeAclsResponse, policy)

    def position(page: DescribeAclsResponse) -> object:
        return acl_record(_acl(page.acls[-1]))[0].key if page.acls else None

    return sorted(_acl(entry) for page in pages(ask, position) for entry in page.acls)


def _name(acl: Acl) -> str:
    return " ".join(as_texts(acl))


def _acl(entry: AclEntry) -> Acl:
    return stored_acl(*(getattr(entry, name) for name in entry.__struct_fields__))


def _entry(wanted: AclFilter) -> AclFilterEntry:
    resource_type, pattern_type, *rest = wanted
    texts = [None if value is None else str(value) for value in rest]
    return AclFilterEntry(None if resource_type is None else str(resource_type), str(pattern_type), *texts)
