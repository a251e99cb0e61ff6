"""The audit log: one line of JSON for each administrative act, each denial and each failed authentication.

    {"time":"2026-01-02T03:04:05.678Z","kind":"denial","principal":"User:alice","host":"10.0.0.1","listener":"CLIENTS",
     "api":"DELETE_TOPIC","operation":"Delete","resource":"topic:orders","outcome":"TOPIC_AUTHORIZATION_FAILED",
     "detail":"","client_id":"nightly-load"}

Texts that a peer chooses are cut to VALUE_CHARS_MAX, and JSON escapes line ends in them, so no peer can write a second
line. If an act has several resources, a comma in a resource's name has a backslash before it. Denials and failed
authentications are limited for each principal and host, so that many of them cannot fill the disk or hide other events.
The next line that is written for the same principal and host has the number of omitted events.
"""

from __future__ import annotations

import datetime
import json
from collections import OrderedDict
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from sparklog.security.principals import Principal
from sparklog.security.secrets import Secret, redact
from sparklog.security.token_bucket import Bucket, Rate, at, charge, full

VALUE_CHARS_MAX = 1_024
SOURCES_MAX = 10_000
"""Largest number of sources (principal and host) with a limit of their own. Above it, the source without an event for
the longest time is forgotten."""
DENIALS = Rate(per_second=1.0, burst=20.0)


class AuditKind(StrEnum):
    """Kind of event: an administrative act, a denial, or a failed authentication."""

    ACT = "act"
    DENIAL = "denial"
    AUTHENTICATION = "authentication"


class AuditEvent(NamedTuple):
    """One event. `outcome`: "NONE", or the name of the error in the protocol. An empty field does not apply to the
    event."""

    kind: AuditKind
    time_ms: int
    principal: Principal | None
    host: str
    listener: str
    api: str
    outcome: str
    operation: str = ""
    resource: str = ""
    detail: str = ""
    client_id: str = ""


def audit_line(event: AuditEvent, secrets: Iterable[Secret] = (), suppressed: int = 0) -> str:
    """Return the event's line, with its line end. `secrets` are removed from texts of peers and errors. `suppressed`:
    number of omitted events to note; 0: none."""
    time = datetime.datetime.fromtimestamp(event.time_ms // 1000, datetime.UTC)
    secret_list = list(secrets)

    def shown(value: str) -> str:
        return redact(value, secret_list)[:VALUE_CHARS_MAX]

    fields: dict[str, str | int] = {
        "time": f"{time:%Y-%m-%dT%H:%M:%S}.{event.time_ms % 1000:03d}Z",
        "kind": event.kind.value,
        "principal": shown(str(event.principal or "")),
        "host": shown(event.host),
        "listener": shown(event.listener),
        "api": shown(event.api),
        "operation": event.operation,
        "resource": shown(event.resource),
        "outcome": event.outcome,
        "detail": shown(event.detail),
        "client_id": shown(event.client_id),
    }
    if suppressed:
        fields["left_out"] = suppressed
    return json.dumps(fields, separators=(",", ":")) + "\n"


class AuditLimiter:
    """Filter of events. It admits all acts. For each source (principal and host), it admits denials and failed
    authentications up to the rate `DENIALS`."""

    def __init__(self, rate: Rate = DENIALS) -> None:
        self._rate = rate
        self._sources: OrderedDict[tuple[Principal | None, str], tuple[Bucket, int]] = OrderedDict()

    def admit(self, event: AuditEvent) -> int | None:
        """Return the number of the source's events that were omitted since the last admitted one; None if this event is
        to be omitted, too."""
        if event.kind is AuditKind.ACT:
            return 0
        source = (event.principal, event.host)
        bucket, suppressed = self._sources.pop(source, (full(self._rate, event.time_ms), 0))
        if len(self._sources) >= SOURCES_MAX:
            self._sources.popitem(last=False)
        if at(bucket, self._rate, event.time_ms).tokens < 1:
            self._sources[source] = (bucket, suppressed + 1)
            return None
        charged, _ = charge(bucket, self._rate, 1, event.time_ms)
        self._sources[source] = (charged, 0)
        return suppressed
