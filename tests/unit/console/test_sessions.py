"""Logins: limits of sessions, and the security of a user."""

from __future__ import annotations

import pytest

from sparklog.console.sessions import (
    IDLE_S,
    LIFETIME_S,
    SESSIONS_MAX,
    SESSIONS_OF_A_USER_MAX,
    Sessions,
    login_security,
    security_as,
    takes_token,
)
from sparklog.environment.clock import SystemClock
from sparklog.errors import InvalidConfigError
from sparklog.security.client_security import SecuritySettings
from sparklog.security.token_source import TokenSource
from tests.support.cases import for_each


class ManualClock(SystemClock):
    """A clock that stands still until it is set."""

    now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


def test_a_session_ends_without_use_and_at_its_age() -> None:
    clock = ManualClock()
    sessions: Sessions[str] = Sessions(clock)
    assert sessions.begin("k", "ann", "page")
    clock.advance(IDLE_S - 1)
    assert sessions.find("k", is_use=False) == "page"
    clock.advance(1)
    assert sessions.find("k") is None
    assert sessions.begin("k", "ann", "page")
    for _ in range(int(LIFETIME_S / 60) - 1):
        clock.advance(60)
        assert sessions.find("k") == "page"
    clock.advance(60)
    assert sessions.find("k") is None
    assert list(sessions) == []


def test_sessions_are_limited_for_a_user_and_for_all() -> None:
    sessions: Sessions[int] = Sessions(ManualClock())
    for n in range(SESSIONS_OF_A_USER_MAX + 1):
        assert sessions.begin(f"k{n}", "ann", n)
    assert list(sessions) == list(range(1, SESSIONS_OF_A_USER_MAX + 1))  # the oldest has ended
    others = SESSIONS_MAX - SESSIONS_OF_A_USER_MAX
    assert all(sessions.begin(f"o{n}", n, n) for n in range(others))
    assert not sessions.begin("one more", "bob", 0)
    assert sessions.begin("ann's", "ann", 0)
    sessions.end("o0")
    sessions.end("o0")
    assert sessions.begin("one more", "bob", 0)


def test_the_user_takes_the_place_of_the_placeholder_and_is_no_reference() -> None:
    template = login_security(SecuritySettings({"security.protocol": "SASL_PLAINTEXT"}))
    assert (template.mechanism, takes_token(template)) == ("SCRAM-SHA-512", False)
    user = security_as(template, "ann", "${file:/etc/passwd}")
    assert (user.username, user.password.reveal()) == ("ann", "${file:/etc/passwd}")
    settings = SecuritySettings({"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"})
    template = login_security(settings)
    assert takes_token(template)
    endpoint = security_as(template, "", "a.b.c").token_endpoint
    assert endpoint is not None
    assert TokenSource(endpoint).token(1).reveal() == "a.b.c"


@for_each(
    "settings, words",
    [
        ({}, "set SASL_SSL"),
        ({"security.protocol": "SSL"}, "set SASL_SSL"),
        ({"security.protocol": "SASL_SSL", "sasl.username": "ann"}, "sasl.username is set, but with --login"),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}, "shows the password"),
    ],
)
def test_a_login_needs_a_secured_cluster_and_no_user(settings: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidConfigError, match=words):
        login_security(SecuritySettings(settings))
