"""Access control with `authorizer = acl`. A change of the ACL records takes effect when this broker receives it.

A record that this release cannot read can be a denial. While there is such a record, only `super.users` have
permissions.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache

from sparklog.errors import InvalidConfigError
from sparklog.protocol.apis import Api
from sparklog.protocol.base import Message
from sparklog.protocol.permissions import Verdict, judge, may
from sparklog.security.acl_records import acl_of
from sparklog.security.acls import Acl, Operation, Resource, ResourceType, canonical_host
from sparklog.security.authorizer import AclAuthorizer, Peer
from sparklog.security.principals import Principal, parse_super_users
from sparklog.security.records import RecordKind
from sparklog_broker.config import BrokerConfig
from sparklog_broker.security.records import SecurityRecords

log = logging.getLogger(__name__)

AUTHORIZER_ACL = "acl"


class Access:
    """This broker's `Authorizer`. Event-loop thread only."""

    def __init__(self, config: BrokerConfig, records: SecurityRecords) -> None:
        self._super_users = parse_super_users(config.super_users)
        self._authorizer = AclAuthorizer((), self._super_users, config.allow_everyone_if_no_acl_found)
        self._by_key: dict[str, Acl] = {}
        self._unreadable: set[str] = set()
        records.watch(RecordKind.ACLS, self._follow)

    @classmethod
    def from_config(cls, config: BrokerConfig, records: SecurityRecords) -> Access | None:
        """Return the authorizer; None without `authorizer = acl`, so that every principal has all permissions."""
        return cls(config, records) if config.authorizer == AUTHORIZER_ACL else None

    @property
    def version(self) -> int:
        """Number of changes so far."""
        return self._authorizer.version

    @property
    def acls(self) -> Mapping[str, Acl]:
        """All ACLs, by the keys of their records."""
        return self._by_key

    def judge(self, api: Api, request: Message, peer: Peer) -> Verdict:
        """Return the verdict on the parts of a request for a peer."""
        return judge(api, request, peer, self)

    def may(self, peer: Peer, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """True if the peer is allowed to do the operation on the resource. Internal topics are reserved to the
        cluster."""
        return may(self, peer, operation, Resource(resource_type, name))

    def allowed(self, peer: Peer, operation: Operation, resource: Resource) -> bool:
        if self._unreadable and peer.principal not in self._super_users:
            return False
        return self._authorizer.allowed(peer, operation, resource)

    def allowed_by_type(self, peer: Peer, operation: Operation, resource_type: ResourceType) -> bool:
        if self._unreadable and peer.principal not in self._super_users:
            return False
        return self._authorizer.allowed_by_type(peer, operation, resource_type)

    def _follow(self, changes: Mapping[str, bytes | None]) -> None:
        gone, added = [], []
        for key, value in changes.items():
            self._unreadable.discard(key)
            if (before := self._by_key.pop(key, None)) is not None:
                gone.append(before)
            if value is None:
                continue
            try:
                self._by_key[key] = acl_of(value)
            except InvalidConfigError as e:
                self._unreadable.add(key)
                log.error("ACL %s cannot be read, so only super.users have rights: %s", key, e)  # noqa: TRY400
            else:
                added.append(self._by_key[key])
        self._authorizer.remove(gone)
        self._authorizer.add(added)


@lru_cache(maxsize=4_096)
def peer_of(principal: Principal, host: str) -> Peer:
    """Return a request's principal and host in the form in which ACLs name them."""
    try:
        return Peer(principal, canonical_host(host))
    except InvalidConfigError:
        return Peer(principal, host)  # not an address, so no ACL's host matches
