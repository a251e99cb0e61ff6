"""The APIs of ACLs: CREATE_ACLS, DELETE_ACLS, DESCRIBE_ACLS. All fields are texts as Kafka writes them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from sparklog.protocol.base import NO_VERSION, AnswerVersion, AtLeast, Message, Text, ThrottleMs
from sparklog.security.principals import NAME_CHARS_MAX

ACLS_PER_REQUEST_MAX = 1_000
FILTERS_MAX = 100
Word = Annotated[str, Meta(max_length=64)]
PrincipalText = Annotated[str, Meta(max_length=NAME_CHARS_MAX + 16)]
Host = Annotated[str, Meta(max_length=128)]


class AclEntry(Message):
    """One ACL (`security/acls.py`): `principal` may (`permission` Allow) or may not (Deny) do `operation`, from `host`
    ("*": any), to all resources that the pattern matches."""

    resource_type: Word
    pattern_type: Word
    name: Text
    principal: PrincipalText
    host: Host
    operation: Word
    permission: Word


class AclFilterEntry(Message):
    """Filter of ACLs; None matches every value. `pattern_type`: literal, prefixed, any, or match: all patterns that
    match a resource of this name."""

    resource_type: Word | None = None
    pattern_type: Word = "any"
    name: Text | None = None
    principal: PrincipalText | None = None
    host: Host | None = None
    operation: Word | None = None
    permission: Word | None = None


class CreateAclsRequest(Message):
    """Add ACLs: all or none. Existing ones stay."""

    acls: Annotated[list[AclEntry], Meta(min_length=1, max_length=ACLS_PER_REQUEST_MAX)]


class CreateAclsResponse(Message):
    """The ACLs are stored and in effect on the answering broker; `created`: number of new ones."""

    created: int
    throttle_ms: ThrottleMs = 0
    metadata_version: AnswerVersion = NO_VERSION


class DeleteAclsRequest(Message):
    """Remove the ACLs that match any of the filters, at most ACLS_PER_REQUEST_MAX at once."""

    filters: Annotated[list[AclFilterEntry], Meta(min_length=1, max_length=FILTERS_MAX)]
    at_least: AtLeast = NO_VERSION


class DeleteAclsResponse(Message):
    """The removed ACLs. `more`: further ACLs match the filters: ask again."""

    deleted: list[AclEntry]
    more: bool = False
    throttle_ms: ThrottleMs = 0
    metadata_version: AnswerVersion = NO_VERSION


class DescribeAclsRequest(Message):
    """Ask for the ACLs that match the filter. `after`: only those with keys (`security/acl_records.py`) after this
    one."""

    filter: AclFilterEntry
    after: Annotated[str, Meta(max_length=64)] = ""
    at_least: AtLeast = NO_VERSION


class DescribeAclsResponse(Message):
    """ACLs in the order of their keys. `more`: True if a further page follows."""

    acls: list[AclEntry]
    more: bool = False
    throttle_ms: ThrottleMs = 0
