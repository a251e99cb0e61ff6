"""Details of an administrative request for the audit log: ACLs, quotas and settings, which its resource names do not
show.

The detail has the first ITEMS_MAX items only, with shortened names: a request can have a thousand items with long
names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import islice
from typing import Any

from sparklog.protocol.base import Message

ITEMS_MAX = 20
NAME_CHARS_MAX = 256
_ANY = "any"


AuditDetail = Callable[[Any], tuple[Collection[Any], Callable[[Any], str]]]
"""Function from a request to its items, and to the function that returns the text of one item."""


def audit_detail(describe: AuditDetail | None, request: Message) -> str:
    """Return the items of the request, separated by semicolons, and the number of items that were left out. Returns ""
    without `describe`: the resource names of the API describe the request completely."""
    if describe is None:
        return ""
    items, text_of = describe(request)
    texts = [text_of(item) for item in islice(items, ITEMS_MAX)]
    remaining = len(items) - len(texts)
    return "; ".join(texts) + (f"; and {remaining} more" if remaining else "")


def acl_text(acl: Any) -> str:
    """Return the ACL in the words of `sparklog acl`. A field of a filter that is None becomes "any"."""
    where = f"{acl.pattern_type} {_word(acl.resource_type)} {_name(acl.name)} from {_word(acl.host)}"
    return f"{_word(acl.permission)} {_name(acl.principal)} {_word(acl.operation)} on {where}"


def quota_text(one: Any) -> str:
    """Return the quotas of an alteration, with the user, client id or address that they are for."""
    named = {"user": one.user, "client id": one.client_id, "address": one.ip}
    entity_text = ", ".join(
        f"{kind} {_name(name) if name else '(default)'}" for kind, name in named.items() if name is not None
    )
    return f"{entity_text}: {_settings(one.changes)}"


def user_text(one: Any) -> str:
    """Return the change of a user's password."""
    return f"{'password of' if hasattr(one, 'salt') else 'removed'} {_name(one.name)} ({one.mechanism})"


def broker_settings_text(one: Any) -> str:
    """Return the changed settings of brokers or of a group."""
    target = "all brokers" if one.broker_id < 0 else f"broker {one.broker_id}"
    if one.group_id:
        target = f"group {one.group_id}"
    return f"{target}: {_settings(one.configs)}"


def setting_text(item: tuple[str, Any]) -> str:
    """Return one changed setting."""
    return _settings(dict([item]))


def _settings(changes: Mapping[str, Any]) -> str:
    some = islice(changes.items(), ITEMS_MAX)
    return ", ".join(f"{key}={'(none)' if value is None else str(value)[:NAME_CHARS_MAX]}" for key, value in some)


def _word(text: str | None) -> str:
    return _ANY if text is None else text


def _name(text: str | None) -> str:
    return _ANY if text is None else repr(text[:NAME_CHARS_MAX])
