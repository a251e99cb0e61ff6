"""Users, ACLs and quotas of a metadata store that is created again, for which no older store has them.

A partition's directory contains no security records. Without them denials would be lost as well, and
`allow.everyone.if.no.acl.found` would open every resource. So such a store gets ACLs that deny every operation to every
user. Only `super.users` are exempt; they see the denials in `sparklog acl list`.
"""

from __future__ import annotations

from sparklog.security.acl_records import acl_record
from sparklog.security.acls import ANY_NAME, Acl, Operation, PatternType, Permission, ResourceType
from sparklog.security.principals import ANY_USER
from sparklog.security.records import RecordId


def denies_everything() -> dict[RecordId, bytes]:
    """Return ACLs that deny every operation to all users but `super.users`."""
    return dict(
        acl_record(Acl(resource, PatternType.LITERAL, ANY_NAME, ANY_USER, "*", Operation.ALL, Permission.DENY))
        for resource in ResourceType
    )
