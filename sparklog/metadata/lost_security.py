"""Users, ACLs and quotas when a metadata store is made anew: taken over from an older store, or missed safely.

No partition's directory has them. Without ACLs, denials are gone as well, and with `allow.everyone.if.no.acl.found` all
would be open. So a store that is made without them gets ACLs that deny everything to everybody: only `super.users` get
past them, and see them in `sparklog acl list`.
"""

from __future__ import annotations

from sparklog.security.acl_records import acl_record
from sparklog.security.acls import ANY_NAME, Acl, Operation, PatternType, Permission, ResourceType
from sparklog.security.principals import ANY_USER
from sparklog.security.records import RecordId


def denies_everything() -> dict[RecordId, bytes]:
    """Return ACLs after which nobody but `super.users` may do anything."""
    return dict(
        acl_record(Acl(resource, PatternType.LITERAL, ANY_NAME, ANY_USER, "*", Operation.ALL, Permission.DENY))
        for resource in ResourceType
    )
