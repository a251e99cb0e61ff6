"""Decisions about a principal's permissions, from a table of ACLs.

Rules, in this order (Kafka's StandardAuthorizer):

1. A principal of `super.users` may do everything.
2. A matching denial denies. It is for the principal or for `User:*`, for the peer's host or for "*", and for the
   operation or for `All`.
3. A matching allowance allows, also the operations that it implies (`acls.ALLOWED_BY`).
4. If no ACL at all has a pattern that matches the resource, `allow.everyone.if.no.acl.found` decides (default: denied).
5. Otherwise the operation is denied.

Index: each type of resource has a dictionary of literal names, a dictionary of prefixes, and the set of the prefixes'
lengths. A decision looks up the name, "*", and each beginning of the name that has such a length. These are at most
len(name) + 2 look-ups, for any number of ACLs. The ACLs of a pattern are found by permission, principal and operation,
so a pattern with many principals is as fast.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from sparklog.security.acls import (
    ALLOWED_BY,
    ANY_NAME,
    Acl,
    Operation,
    PatternType,
    Permission,
    Resource,
    ResourceType,
    check_acl,
)
from sparklog.security.principals import ANY_USER, Principal

DECISIONS_MAX = 100_000
"""Largest number of cached decisions. When it is reached, the cache is emptied."""
RESOURCE_CHARS_MAX = 65_536

_Rights = dict[tuple[Permission, Principal, Operation], set[str]]
"""The rights of one pattern: the hosts by permission, principal and operation."""


class Peer(NamedTuple):
    """The peer that sends a request. `host` is its address in the form of `acls.canonical_host`."""

    principal: Principal
    host: str


class _TypeIndex:
    """The ACLs of one type of resource."""

    def __init__(self) -> None:
        self.literals: dict[str, _Rights] = {}
        self.prefixes: dict[str, _Rights] = {}
        self.prefix_lengths: Counter[int] = Counter()

    def matching(self, name: str) -> Iterator[_Rights]:
        """Yield the rights of every pattern that matches `name`."""
        for literal in {name, ANY_NAME}:
            if (rights := self.literals.get(literal)) is not None:
                yield rights
        yield from self.covering(name)

    def covering(self, name: str) -> Iterator[_Rights]:
        """Yield the rights of every prefix with which `name` begins."""
        for length in self.prefix_lengths:
            if length <= len(name) and (rights := self.prefixes.get(name[:length])) is not None:
                yield rights

    def add(self, acl: Acl) -> None:
        patterns = self._patterns(acl)
        if acl.name not in patterns:
            patterns[acl.name] = {}
            if acl.pattern_type is PatternType.PREFIXED:
                self.prefix_lengths[len(acl.name)] += 1
        patterns[acl.name].setdefault((acl.permission, acl.principal, acl.operation), set()).add(acl.host)

    def remove(self, acl: Acl) -> None:
        patterns = self._patterns(acl)
        rights = patterns[acl.name]
        key = (acl.permission, acl.principal, acl.operation)
        rights[key].remove(acl.host)
        if not rights[key]:
            del rights[key]
        if rights:
            return
        del patterns[acl.name]
        if acl.pattern_type is PatternType.PREFIXED:
            self.prefix_lengths[len(acl.name)] -= 1
            if not self.prefix_lengths[len(acl.name)]:
                del self.prefix_lengths[len(acl.name)]

    def _patterns(self, acl: Acl) -> dict[str, _Rights]:
        return self.prefixes if acl.pattern_type is PatternType.PREFIXED else self.literals


class AclAuthorizer:
    """The ACLs, and the decisions made with them. `version` counts the changes; a change empties the cache of
    decisions.

    Not thread-safe: only the thread that answers requests uses it.
    """

    def __init__(
        self,
        acls: Iterable[Acl] = (),
        super_users: Iterable[Principal] = (),
        allow_everyone_if_no_acl_found: bool = False,
        *,
        decisions_max: int = DECISIONS_MAX,
    ) -> None:
        self._decisions_max = decisions_max
        self._acls: set[Acl] = set()
        self._by_type = {resource_type: _TypeIndex() for resource_type in ResourceType}
        self._super_users = frozenset(super_users)
        self._without_acl = allow_everyone_if_no_acl_found
        self._decisions: dict[tuple[Peer, Operation, Resource | ResourceType], bool] = {}
        self.version = 0
        self.add(acls)

    @property
    def acls(self) -> frozenset[Acl]:
        """All ACLs."""
        return frozenset(self._acls)

    def add(self, acls: Iterable[Acl]) -> int:
        """Add ACLs, all or none of them. Returns the number of new ones. Raises InvalidConfigError."""
        new = {check_acl(acl) for acl in acls} - self._acls
        for acl in new:
            self._by_type[acl.resource_type].add(acl)
        self._acls |= new
        self._change(new)
        return len(new)

    def remove(self, acls: Iterable[Acl]) -> int:
        """Remove ACLs that exist. Returns their number. Raises InvalidConfigError."""
        gone = {check_acl(acl) for acl in acls} & self._acls
        for acl in gone:
            self._by_type[acl.resource_type].remove(acl)
        self._acls -= gone
        self._change(gone)
        return len(gone)

    def _change(self, acls: set[Acl]) -> None:
        if acls:
            self.version += 1
            self._decisions.clear()

    def allowed(self, peer: Peer, operation: Operation, resource: Resource) -> bool:
        """Return True if `peer` may do `operation` to `resource`."""
        key = (peer, operation, resource)
        decision = self._decisions.get(key)
        return self._keep(key, self._decide(peer, operation, resource)) if decision is None else decision

    def _keep(self, key: tuple[Peer, Operation, Resource | ResourceType], decision: bool) -> bool:
        if len(self._decisions) >= self._decisions_max:
            self._decisions.clear()
        self._decisions[key] = decision
        return decision

    def _decide(self, peer: Peer, operation: Operation, resource: Resource) -> bool:
        if peer.principal in self._super_users:
            return True
        if not resource.name or len(resource.name) > RESOURCE_CHARS_MAX:
            return False
        matching = list(self._by_type[resource.resource_type].matching(resource.name))
        if not matching:
            return self._without_acl
        if any(_has_match(rights, Permission.DENY, peer, {operation, Operation.ALL}) for rights in matching):
            return False
        return any(_has_match(rights, Permission.ALLOW, peer, ALLOWED_BY[operation]) for rights in matching)

    def allowed_by_type(self, peer: Peer, operation: Operation, resource_type: ResourceType) -> bool:
        """Return True if some name of the type can exist for which `peer` may do `operation` (KIP-679). The decision is
        cached."""
        key = (peer, operation, resource_type)
        decision = self._decisions.get(key)
        return self._keep(key, self._decide_by_type(peer, operation, resource_type)) if decision is None else decision

    def _decide_by_type(self, peer: Peer, operation: Operation, resource_type: ResourceType) -> bool:
        """Return True for a super user, or if an allowance exists whose whole pattern no denial covers. A denial for
        "*" comes first; then `allow.everyone.if.no.acl.found` is sufficient."""
        if peer.principal in self._super_users:
            return True
        index = self._by_type[resource_type]
        denied, allowed = (operation, Operation.ALL), ALLOWED_BY[operation]

        def denied_by(patterns: Iterable[_Rights]) -> bool:
            return any(_has_match(rights, Permission.DENY, peer, denied) for rights in patterns)

        if denied_by([index.literals.get(ANY_NAME, {})]):
            return False
        if self._without_acl:
            return True
        literals = (
            name for name, rights in index.literals.items() if _has_match(rights, Permission.ALLOW, peer, allowed)
        )
        if any(name == ANY_NAME or not denied_by(index.matching(name)) for name in literals):
            return True
        prefixes = (
            name for name, rights in index.prefixes.items() if _has_match(rights, Permission.ALLOW, peer, allowed)
        )
        return any(not denied_by(index.covering(prefix)) for prefix in prefixes)


def _has_match(rights: _Rights, permission: Permission, peer: Peer, operations: Iterable[Operation]) -> bool:
    for operation in operations:
        for principal in (peer.principal, ANY_USER):
            hosts = rights.get((permission, principal, operation))
            if hosts is not None and (peer.host in hosts or ANY_NAME in hosts):
                return True
    return False
