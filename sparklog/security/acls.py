"""Access control lists: their values, and the checks of a new entry.

An ACL is the same as in Kafka: principal P is allowed or denied operation O from host H, on all resources that match a
pattern (KIP-11, KIP-290). `authorizer` makes the decisions.
"""

from __future__ import annotations

import ipaddress
from enum import StrEnum
from typing import NamedTuple

from sparklog.errors import InvalidConfigError
from sparklog.security.principals import Principal

CLUSTER_NAME = "kafka-cluster"
"""Name of the only resource of the type cluster. It is Kafka's name, so that lists of ACLs need no change."""
ANY_NAME = "*"
"""The name in a literal pattern that matches every resource of the type, and the host that matches every host."""
NAME_CHARS_MAX = 65_536
"""Largest number of characters of a name: the limit of a group id in the protocol."""


class ResourceType(StrEnum):
    """Type of the resource that an ACL protects."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional-id"
    CLUSTER = "cluster"
    USER = "user"


class PatternType(StrEnum):
    """Kind of a pattern. Its name is the resource's whole name (literal), or the beginning of the name (prefixed)."""

    LITERAL = "literal"
    PREFIXED = "prefixed"


class Operation(StrEnum):
    """An operation on a resource. `ALL` occurs in ACLs only."""

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


def number_of(operation: Operation) -> int:
    """Return the number of an operation, which is Kafka's."""
    return _NUMBERS[operation]


_NUMBERS = {operation: number for number, operation in enumerate(Operation, 2)}


class Permission(StrEnum):
    """Effect of an ACL. A denial overrides all allowances."""

    ALLOW = "Allow"
    DENY = "Deny"


_O = Operation
ALLOWED_BY: dict[Operation, frozenset[Operation]] = {o: frozenset({o, _O.ALL}) for o in Operation}
ALLOWED_BY[_O.DESCRIBE] |= {_O.READ, _O.WRITE, _O.DELETE, _O.ALTER}
ALLOWED_BY[_O.DESCRIBE_CONFIGS] |= {_O.ALTER_CONFIGS}
"""For each operation, the allowed operations of which one is sufficient. Among denials, only one of the operation
itself or of `ALL` counts."""

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
"""The operations that exist for each type of resource, except `ALL`."""


class Resource(NamedTuple):
    """One resource. `name` is its own name, not a pattern."""

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
    """Allow or Deny. A denial overrides all allowances."""

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
    """Return the ACL with its host in canonical form. Raises InvalidConfigError if the ACL can never match."""
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
    """Return "*", or the canonical text of an IP address. An IPv4 address that is mapped into IPv6 becomes the IPv4
    address.

    Raises InvalidConfigError for a host name: a connection shows only the peer's address, and the owner of a name can
    change.
    """
    if host == ANY_NAME:
        return host
    try:
        address = ipaddress.ip_address(host)
    except ValueError as e:
        raise InvalidConfigError(f"an ACL's host is an IP address or '*', not {host!r}") from e
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
