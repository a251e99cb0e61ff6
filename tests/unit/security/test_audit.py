"""The audit log: one line for one event, for any name of a peer, and without secrets."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from sparklog.security.audit import SOURCES_MAX, AuditEvent, AuditKind, AuditLimiter, audit_line
from sparklog.security.principals import Principal, user
from sparklog.security.secrets import Secret

DENIAL = AuditEvent(
    AuditKind.DENIAL,
    1_767_323_045_678,
    user("alice"),
    "10.0.0.1",
    "CLIENTS",
    "DELETE_TOPIC",
    "TOPIC_AUTHORIZATION_FAILED",
    "Delete",
    "topic:orders",
)


def test_the_line() -> None:
    assert audit_line(DENIAL) == (
        '{"time":"2026-01-02T03:04:05.678Z","kind":"denial","principal":"User:alice","host":"10.0.0.1",'
        '"listener":"CLIENTS","api":"DELETE_TOPIC","operation":"Delete","resource":"topic:orders",'
        '"outcome":"TOPIC_AUTHORIZATION_FAILED","detail":"","client_id":""}\n'
    )
    assert json.loads(audit_line(DENIAL._replace(principal=None), suppressed=3))["left_out"] == 3


@given(st.text(max_size=50), st.text(max_size=50))
def test_no_text_starts_a_second_line(name: str, detail: str) -> None:
    line = audit_line(DENIAL._replace(principal=Principal("User", f"a\n{name}\u2028"), detail=detail + "\r\n{}\x85"))
    assert line.splitlines() == [line[:-1]]
    assert line.isascii()
    assert json.loads(line)["kind"] == "denial"


def test_values_are_cut_and_secrets_taken_out() -> None:
    event = DENIAL._replace(resource="topic:" + "x" * 100_000, detail='said password="hunter2" and tok3n')
    line = audit_line(event, [Secret("tok3n")])
    assert len(line) < 2_000
    assert "hunter2" not in line
    assert "tok3n" not in line


def test_denials_of_one_source_are_limited_and_counted_and_acts_are_not() -> None:
    limiter = AuditLimiter()
    admitted = [limiter.admit(DENIAL) for _ in range(50)]
    assert admitted == [0] * 20 + [None] * 30
    assert limiter.admit(DENIAL._replace(host="10.0.0.2")) == 0
    assert limiter.admit(DENIAL._replace(kind=AuditKind.ACT)) == 0
    assert limiter.admit(DENIAL._replace(time_ms=DENIAL.time_ms + 1_000)) == 30
    assert limiter.admit(DENIAL._replace(time_ms=DENIAL.time_ms + 1_000)) is None


def test_sources_are_bounded() -> None:
    limiter = AuditLimiter()
    for n in range(SOURCES_MAX + 15):
        assert limiter.admit(DENIAL._replace(host=f"h{n}")) == 0
    assert len(limiter._sources) == SOURCES_MAX
    assert (DENIAL.principal, "h15") == next(iter(limiter._sources)), "the oldest ones are forgotten"
