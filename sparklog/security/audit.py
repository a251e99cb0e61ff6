"""The audit log: one JSON object in one line for each administrative act, each denial and each failed authentication.

    {"time":"2026-01-02T03:04:05.678Z","kind":"denial","principal":"User:alice","host":"10.0.0.1","listener":"CLIENTS",
     "api":"DELETE_TOPIC","operation":"Delete","resource":"topic:orders","outcome":"TOPIC_AUTHORIZATION_FAILED",
     "detail":"","client_id":"nightly-load"}

Every text that a peer has chosen is cut to a length, and JSON keeps it in its line, so no peer can write a second line.
A comma in the name of one of several resources has a backslash before it. Denials of one principal from one host are
limited, so no principal can fill the disk, or hide in the noise, by many forbidden requests. The next written denial
has the number of omitted ones.
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
"""Sources of denials whose number is limited one by one; the one that was seen longest ago goes."""
DENIALS = Rate(per_second=1.0, burst=20.0)


class AuditKind(StrEnum):
    """Reason of the line."""

    ACT = "act"
    DENIAL = "denial"
    AUTHENTICATION = "authentication"


class AuditEvent(NamedTuple):
    """One act: its principal, operation, address and result. `outcome`: "NONE", or the error's name on the wire. "" :
    does not apply."""

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


def audit_line(event: AuditEvent, secrets: Iterable[Secret] = (), left_out: int = 0) -> str:
    """Return the event's line, with its line end. `secrets` are removed from the texts of peers and errors."""
    time = datetime.datetime.fromtimestamp(event.time_ms // 1000, datetime.UTC)
    known = list(secrets)

    def shown(value: str) -> str:
        return redact(value, known)[:VALUE_CHARS_MAX]

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
    if left_out:
        fields["left_out"] = left_out
    return json.dumps(fields, separators=(",", ":")) + "\n"


class AuditLimiter:
    """Filter of events: writes all acts; denials and failed authentications within the limit of `DENIALS`, for each
    source."""

    def __init__(self, rate: Rate = DENIALS) -> None:
        self._rate = rate
        self._sources: OrderedDict[tuple[Principal | None, str], tuple[Bucket, int]] = OrderedDict()

    def admit(self, event: AuditEvent) -> int | None:
        """Return the number of the source's omitted events before this one; None: this one is omitted, too."""
        if event.kind is AuditKind.ACT:
            return 0
        source = (event.principal, event.host)
        bucket, left_out = self._sources.pop(source, (full(self._rate, event.time_ms), 0))
        if len(self._sources) >= SOURCES_MAX:
            self._sources.popitem(last=False)
        if at(bucket, self._rate, event.time_ms).tokens < 1:
            self._sources[source] = (bucket, left_out + 1)
            return None
        charged, _ = charge(bucket, self._rate, 1, event.time_ms)
        self._sources[source] = (charged, 0)
        return left_out
