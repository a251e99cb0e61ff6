"""ACLs as security records and as texts, and filters of ACLs.

A record's key is the SHA-256 of its value. The value is a JSON array of the fields of `Acl`, in their order. So an ACL
that is added several times has one record, and names can be long.
"""

from __future__ import annotations

import hashlib
import json
from enum import StrEnum
from typing import NamedTuple, TypeVar

from sparklog.errors import InvalidConfigError
from sparklog.security.acls import (
    Acl,
    Operation,
    PatternType,
    Permission,
    Resource,
    ResourceType,
    canonical_host,
    check_acl,
)
from sparklog.security.principals import Principal, parse_principal, stored_principal
from sparklog.security.records import VALUE_BYTES_MAX, RecordId, RecordKind

E = TypeVar("E", bound=StrEnum)

ANY = "any"
MATCH = "match"
"""Pattern type of a filter. It finds every pattern that matches the resource `name`; without a name, every pattern."""


class AclFilter(NamedTuple):
    """A filter of ACLs. A field that is None matches every value."""

    resource_type: ResourceType | None = None
    """Type of the resource."""
    pattern_type: str = ANY
    """"literal", "prefixed", "any" for every pattern, or "match" for every pattern that matches the resource `name`."""
    name: str | None = None
    """The pattern's name, or with "match" the resource's name."""
    principal: Principal | None = None
    """The principal."""
    host: str | None = None
    """The host."""
    operation: Operation | None = None
    """The operation."""
    permission: Permission | None = None
    """The permission."""

    def takes(self, acl: Acl) -> bool:
        """Return True if the ACL matches the filter.

        Args:
            acl: The ACL.

        Returns:
            True for a match.
        """
        criteria = (self.resource_type, self.principal, self.host, self.operation, self.permission)
        fields = (acl.resource_type, acl.principal, acl.host, acl.operation, acl.permission)
        if any(w is not None and w != t for w, t in zip(criteria, fields, strict=True)):
            return False
        if self.pattern_type == MATCH:
            return self.name is None or acl.matches(Resource(acl.resource_type, self.name)) or acl.name == self.name
        if self.pattern_type not in (ANY, acl.pattern_type):
            return False
        return self.name is None or self.name == acl.name


ALL_ACLS = AclFilter()


def acl_record(acl: Acl) -> tuple[RecordId, bytes]:
    """Return the id and the value of the ACL's record. Raises InvalidConfigError if the ACL could never match, or is
    too long."""
    value = json.dumps(as_texts(check_acl(acl)), ensure_ascii=False, separators=(",", ":")).encode()
    if len(value) > VALUE_BYTES_MAX:
        raise InvalidConfigError(f"an ACL of {len(value)} bytes; at most {VALUE_BYTES_MAX} are kept")
    return RecordId(RecordKind.ACLS, hashlib.sha256(value).hexdigest()), value


def acl_of(value: bytes) -> Acl:
    """Return the ACL of a record. Raises InvalidConfigError if the record is no ACL."""
    try:
        fields = json.loads(value)
    except ValueError as e:
        raise InvalidConfigError("the stored record is not an ACL") from e
    if not isinstance(fields, list) or len(fields) != len(Acl._fields) or not all(isinstance(f, str) for f in fields):
        raise InvalidConfigError("the stored record is not an ACL")
    return stored_acl(*fields)


def as_texts(acl: Acl) -> tuple[str, ...]:
    """Return the fields as texts, in the order of `Acl`."""
    return tuple(str(field) for field in acl)


def acl_from_texts(
    resource_type: str, pattern_type: str, name: str, principal: str, host: str, operation: str, permission: str
) -> Acl:
    """Return the ACL that the texts describe. Enumerations are accepted in any case, with or without separators. Raises
    InvalidConfigError, also for a principal that no user can have."""
    parse_principal(principal, wildcard=True)
    return stored_acl(resource_type, pattern_type, name, principal, host, operation, permission)


def stored_acl(
    resource_type: str, pattern_type: str, name: str, principal: str, host: str, operation: str, permission: str
) -> Acl:
    """Return the ACL that the texts of a record describe. In contrast to `acl_from_texts`, the principal can have a
    name that no user can have. Raises InvalidConfigError."""
    return check_acl(
        Acl(
            parse_choice(ResourceType, resource_type, "resource type"),
            parse_choice(PatternType, pattern_type, "pattern type"),
            name,
            stored_principal(principal),
            host,
            parse_choice(Operation, operation, "operation"),
            parse_choice(Permission, permission, "permission"),
        )
    )


def filter_from_texts(
    resource_type: str | None,
    pattern_type: str,
    name: str | None,
    principal: str | None,
    host: str | None,
    operation: str | None,
    permission: str | None,
) -> AclFilter:
    """Return the filter that the texts describe. As in Kafka, a principal or host that no ACL can have matches none.
    Raises InvalidConfigError for an unknown resource type, pattern type, operation or permission."""
    lower = pattern_type.lower()
    return AclFilter(
        None if resource_type is None else parse_choice(ResourceType, resource_type, "resource type"),
        lower if lower in (ANY, MATCH) else parse_choice(PatternType, pattern_type, "pattern type"),
        name,
        None if principal is None else _searched_principal(principal),
        None if host is None else _searched_host(host),
        None if operation is None else parse_choice(Operation, operation, "operation"),
        None if permission is None else parse_choice(Permission, permission, "permission"),
    )


def parse_choice(choices: type[E], text: str, kind: str) -> E:
    """Return the member of the enumeration `choices` for a text, regardless of case, hyphens and underscores. Raises
    InvalidConfigError, which calls the text a `kind`."""
    plain = _plain(text)
    for member in choices:
        if _plain(member.value) == plain:
            return member
    raise InvalidConfigError(
        f"{text[:64]!r} is not a valid {kind}: use one of {', '.join(member.value for member in choices)}"
    )


def _plain(text: str) -> str:
    return text.lower().replace("-", "").replace("_", "")


def _searched_principal(text: str) -> Principal:
    kind, _, name = text.partition(":")
    return Principal(kind, name)


def _searched_host(host: str) -> str:
    try:
        return canonical_host(host)
    except InvalidConfigError:
        return host
