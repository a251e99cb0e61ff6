"""Access control lists: their values, and the checks of a text that states one.

An ACL is Kafka's: principal P is allowed or denied operation O from host H on all resources that match a pattern
(KIP-11, KIP-290). `authorizer` decides with them.
"""

from __future__ import annotations

import ipaddress
from enum import StrEnum
from typing import NamedTuple

from sparklog.errors import InvalidConfigError
from sparklog.security.principals import Principal

CLUSTER_NAME = "kafka-cluster"
"""Name of the only resource of the type cluster: Kafka's, so that lists of ACLs move over as they are."""
ANY_NAME = "*"
"""A literal pattern's name for every resource of the type, and a host for every host."""
NAME_CHARS_MAX = 65_536
"""Longest name: the limit of a group's id on the wire."""


class ResourceType(StrEnum):
    """Type of the resource that an ACL protects."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional-id"
    CLUSTER = "cluster"
    USER = "user"


class PatternType(StrEnum):
    """Match of the pattern's name: the resource's whole name, or its beginning."""

    LITERAL = "literal"
    PREFIXED = "prefixed"


class Operation(StrEnum):
    """Operation on a resource. `ALL` is for ACLs only."""

    ALL = "All"
    READ = "Read"
    WRITE = "Write"
    CREATE = "Create"
    DELETE = "Delete"
    ALTER = "Alter"
    DESCRIBE = "Describe"
    CLUSTER_ACTION = "ClusterAction"
    DESCRIBE_CONFIGS = "DescribeConfigs"
    ALTER_CONFIGS = "AlterConfigs"
    IDEMPOTENT_WRITE = "IdempotentWrite"


class Permission(StrEnum):
    """A denial wins over any number of allowances."""

    ALLOW = "Allow"
    DENY = "Deny"


_O = Operation
ALLOWED_BY: dict[Operation, frozenset[Operation]] = {o: frozenset({o, _O.ALL}) for o in Operation}
ALLOWED_BY[_O.DESCRIBE] |= {_O.READ, _O.WRITE, _O.DELETE, _O.ALTER}
ALLOWED_BY[_O.DESCRIBE_CONFIGS] |= {_O.ALTER_CONFIGS}
"""Which operations, allowed, allow this one. A denial implies nothing but itself: only `ALL` denies more."""

OPERATIONS: dict[ResourceType, frozenset[Operation]] = {
    ResourceType.TOPIC: frozenset(
        {_O.READ, _O.WRITE, _O.CREATE, _O.DELETE, _O.ALTER, _O.DESCRIBE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS}
    ),
    ResourceType.GROUP: frozenset({_O.READ, _O.DELETE, _O.DESCRIBE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS}),
    ResourceType.TRANSACTIONAL_ID: frozenset({_O.WRITE, _O.DESCRIBE}),
    ResourceType.CLUSTER: frozenset(
        {
            _O.CREATE,
            _O.ALTER,
            _O.DESCRIBE,
            _O.CLUSTER_ACTION,
            _O.DESCRIBE_CONFIGS,
            _O.ALTER_CONFIGS,
            _O.IDEMPOTENT_WRITE,
        }
    ),
    ResourceType.USER: frozenset({_O.CREATE, _O.ALTER, _O.DELETE, _O.DESCRIBE}),
}
"""The operations on each type, except `ALL`."""


class Resource(NamedTuple):
    """One resource, by its own name."""

    resource_type: ResourceType
    name: str

    def __str__(self) -> str:
        return f"{self.resource_type}:{self.name}"


CLUSTER = Resource(ResourceType.CLUSTER, CLUSTER_NAME)


class Acl(NamedTuple):
    """One entry of an access control list."""

    resource_type: ResourceType
    """Type of the resource."""
    pattern_type: PatternType
    """Kind of the pattern: the resource's whole name, or its beginning."""
    name: str
    """The pattern; "*" as a literal pattern: every resource of the type."""
    principal: Principal
    """The principal that the entry is for."""
    host: str
    """IP address of the client as its text; "*": every host."""
    operation: Operation
    """The operation that is allowed or denied."""
    permission: Permission
    """Allow or Deny. A denial wins."""

    def matches(self, resource: Resource) -> bool:
        """Return True if the pattern matches the resource.

        Args:
            resource: The resource.

        Returns:
            True for a match.
        """
        if self.resource_type is not resource.resource_type:
            return False
        if self.pattern_type is PatternType.PREFIXED:
            return resource.name.startswith(self.name)
        return self.name in (ANY_NAME, resource.name)


def check_acl(acl: Acl) -> Acl:
    """Return the ACL, its host in canonical form, if it can ever match something. Raises InvalidConfigError."""
    if not acl.name or len(acl.name) > NAME_CHARS_MAX:
        raise InvalidConfigError(f"an ACL's resource has a name of 1 to {NAME_CHARS_MAX} characters")
    if acl.pattern_type is PatternType.PREFIXED and acl.name == ANY_NAME:
        raise InvalidConfigError(
            "the prefix '*' matches only names that begin with a star: for all names use a literal '*'"
        )
    if acl.resource_type is ResourceType.CLUSTER and (
        acl.pattern_type is not PatternType.LITERAL or acl.name not in (CLUSTER_NAME, ANY_NAME)
    ):
        raise InvalidConfigError(f"the cluster's only name is {CLUSTER_NAME!r}, as a literal")
    if acl.operation is not Operation.ALL and acl.operation not in OPERATIONS[acl.resource_type]:
        possible = ", ".join(sorted(OPERATIONS[acl.resource_type]))
        raise InvalidConfigError(
            f"operation {acl.operation} does not exist for resource type {acl.resource_type}: use All, {possible}"
        )
    return acl._replace(host=canonical_host(acl.host))


def canonical_host(host: str) -> str:
    """Return "*", or the IP address in its one notation; an IPv4 address mapped into IPv6 is the IPv4 address.

    Raises InvalidConfigError for a name: a peer shows its address only, and the owner of a name can change.
    """
    if host == ANY_NAME:
        return host
    try:
        address = ipaddress.ip_address(host)
    except ValueError as e:
        raise InvalidConfigError(f"an ACL's host is an IP address or '*', not {host!r}") from e
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
