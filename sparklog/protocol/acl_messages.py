"""The APIs of ACLs: CREATE_ACLS, DELETE_ACLS, DESCRIBE_ACLS. The fields have the same texts as in Kafka."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from sparklog.protocol.base import NO_VERSION, AnswerVersion, AtLeast, Message, Text, ThrottleMs
from sparklog.security.acl_records import acl_record, stored_acl
from sparklog.security.acls import Acl
from sparklog.security.principals import NAME_CHARS_MAX

ACLS_PER_REQUEST_MAX = 1_000
FILTERS_MAX = 100
RESOURCES_PER_REQUEST_MAX = 10_000
Word = Annotated[str, Meta(max_length=64)]
PrincipalText = Annotated[str, Meta(max_length=NAME_CHARS_MAX + 16)]
Host = Annotated[str, Meta(max_length=128)]


class AclEntry(Message):
    """One ACL (`security/acls.py`). `permission`, Allow or Deny, says if `principal` may do `operation` on all
    resources that the pattern matches. The ACL applies to connections from `host`; "*": from any host."""

    resource_type: Word
    pattern_type: Word
    name: Text
    principal: PrincipalText
    host: Host
    operation: Word
    permission: Word


def acl_of_entry(entry: AclEntry) -> Acl:
    """Return the ACL of an answer. Raises InvalidConfigError for one that cannot be."""
    return stored_acl(*(getattr(entry, name) for name in entry.__struct_fields__))


def page_key(entry: AclEntry) -> str:
    """Return the key of an ACL's record, after which the next page begins."""
    return acl_record(acl_of_entry(entry))[0].key


class AclFilterEntry(Message):
    """Filter of ACLs. A field that is None matches every value. `pattern_type` is literal, prefixed, any or match.
    "match" finds the ACLs whose patterns match a resource with this name."""

    resource_type: Word | None = None
    pattern_type: Word = "any"
    name: Text | None = None
    principal: PrincipalText | None = None
    host: Host | None = None
    operation: Word | None = None
    permission: Word | None = None


class CreateAclsRequest(Message):
    """Add ACLs, all or none of them. ACLs that exist already remain unchanged."""

    acls: Annotated[list[AclEntry], Meta(min_length=1, max_length=ACLS_PER_REQUEST_MAX)]


class CreateAclsResponse(Message):
    """Confirmation that the ACLs are stored, and in effect on the answering broker. `created`: number of ACLs that did
    not exist."""

    created: int
    throttle_ms: ThrottleMs = 0
    metadata_version: AnswerVersion = NO_VERSION


class DeleteAclsRequest(Message):
    """Remove the ACLs that match any of the filters, at most ACLS_PER_REQUEST_MAX per request."""

    filters: Annotated[list[AclFilterEntry], Meta(min_length=1, max_length=FILTERS_MAX)]
    at_least: AtLeast = NO_VERSION


class DeleteAclsResponse(Message):
    """The removed ACLs. `more`: True if more ACLs match the filters; the client then repeats the request."""

    deleted: list[AclEntry]
    more: bool = False
    throttle_ms: ThrottleMs = 0
    metadata_version: AnswerVersion = NO_VERSION


class DescribeAclsRequest(Message):
    """Ask for the ACLs that match the filter. `after`: key (`security/acl_records.py`) of the last ACL of the page
    before; "": the first page."""

    filter: AclFilterEntry
    after: Annotated[str, Meta(max_length=64)] = ""
    at_least: AtLeast = NO_VERSION


class DescribeAclsResponse(Message):
    """ACLs in the order of their keys. `more`: True if a further page follows."""

    acls: list[AclEntry]
    more: bool = False
    throttle_ms: ThrottleMs = 0


class ResourceEntry(Message):
    """A resource by its type and name."""

    resource_type: Word
    name: Text


class AllowedOperationsRequest(Message):
    """Ask for the operations that the peer is allowed to do on each of some resources. They need not exist."""

    resources: Annotated[list[ResourceEntry], Meta(max_length=RESOURCES_PER_REQUEST_MAX)]


class AllowedOperationsResponse(Message):
    """One number per resource, in the order of the request. The bit `number_of(operation)` is 1 if the operation is
    allowed."""

    operations: list[int]
    throttle_ms: ThrottleMs = 0
