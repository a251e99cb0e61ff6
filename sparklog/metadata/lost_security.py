"""The security records of a metadata store that is rebuilt after its users, ACLs and quotas were lost.

The partitions' directories, from which the store is rebuilt, contain no security records. Without ACLs, denials would
be lost, and `allow.everyone.if.no.acl.found` would open every resource. So the rebuilt store gets ACLs that deny every
operation to every user. Only `super.users` are exempt; they see the denials in `sparklog acl list`.
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
