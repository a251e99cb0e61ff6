"""Connections end with the certificate of their peer."""

from __future__ import annotations

import asyncio
import datetime
import ssl
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sparklog_broker.config import make_config
from sparklog_broker.network.connection import Connection, State
from sparklog_broker.security.authenticator import Authenticator
from sparklog_broker.security.certificate_expiry import POLL_INTERVAL_S
from sparklog_broker.security.users import Users

from sparklog.errors import SaslAuthenticationFailedError
from sparklog.security.authority import Authority
from sparklog.security.principal_mapping import certificate_expiry_ms
from sparklog.security.principals import user

NOW = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)
NOW_MS = int(NOW.timestamp() * 1000)
HOUR_MS = 3_600_000


def certificate(hours: float) -> bytes:
    identity = Authority("CA", NOW).issue("alice", [], NOW, hours / 24, broker=False)
    return ssl.PEM_cert_to_DER_cert(identity.certificate)


class Time:
    """A loop's timers and the wall clock, moved by hand."""

    def __init__(self) -> None:
        self.s = 1_000.0
        self.set_ahead_ms = 0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.s

    def now_ms(self) -> int:
        return NOW_MS + int((self.s - 1_000.0) * 1000) + self.set_ahead_ms

    def call_later(self, in_s: float, call: Callable[..., None], *arguments: object) -> Timer:
        timer = Timer(self, self.s + in_s, lambda: call(*arguments))
        self.timers.append(timer)
        return timer

    def advance(self, seconds: float) -> None:
        end = self.s + seconds
        while self.timers and min(t.at_s for t in self.timers) <= end:
            timer = min(self.timers, key=lambda t: t.at_s)
            self.timers.remove(timer)
            self.s = timer.at_s
            timer.call()
        self.s = end


class Timer:
    def __init__(self, time: Time, at_s: float, call: Callable[[], None]) -> None:
        self._time, self.at_s, self.call = time, at_s, call

    def when(self) -> float:
        return self.at_s

    def cancel(self) -> None:
        self._time.timers.remove(self)


class Peer:
    """The authenticator's view of a connection."""

    peer_name, peer_host, listener = "10.0.0.1:5", "10.0.0.1", "PLAINTEXT"

    def __init__(self) -> None:
        self.state = State.OPEN
        self.principal: Any = None
        self.authentication: Any = None
        self.refused: Exception | None = None

    def close(self) -> None:
        self.state = State.CLOSED

    def refuse(self, error: Exception) -> None:
        self.refused = error


class Door:
    """An authenticator, and the peers that come through a listener with TLS."""

    def __init__(self, directory: Path) -> None:
        self.time = Time()
        security = make_config({"data.dir": str(directory)}).security
        self.authenticator = Authenticator(
            security, cast(asyncio.AbstractEventLoop, self.time), cast(Any, self.time), Users(b"s" * 32), {}, None
        )
        self.told: list[str] = []
        self.authenticator.on_failed = lambda connection, reason, text: self.told.append(reason)

    def comes(self, der: bytes | None) -> Peer:
        peer = Peer()
        listener: Any = SimpleNamespace(name="PLAINTEXT", rules=SimpleNamespace(mechanisms=()))
        self.authenticator.greet(cast(Connection, peer), listener, der)
        return peer


def test_a_certificate_says_until_when() -> None:
    assert certificate_expiry_ms(certificate(1)) == NOW_MS + HOUR_MS


def test_a_connection_ends_with_its_certificate_and_others_go_on(tmp_path: Path) -> None:
    door = Door(tmp_path)
    short, long, without = door.comes(certificate(1)), door.comes(certificate(2)), door.comes(None)
    assert short.principal == user("CN=alice")
    door.time.advance(3_599.9)
    assert short.state is State.OPEN
    door.time.advance(0.2)
    assert (short.state, long.state, without.state) == (State.CLOSED, State.OPEN, State.OPEN)
    assert door.told == ["certificate-expired"]
    assert door.authenticator.counters.failed["certificate-expired"] == 1
    door.time.advance(3_600)
    assert (long.state, without.state) == (State.CLOSED, State.OPEN)
    assert not door.time.timers, "there is nothing left to look at"


def test_one_that_comes_later_and_ends_earlier_is_not_forgotten(tmp_path: Path) -> None:
    door = Door(tmp_path)
    kept = door.comes(certificate(1))
    door.time.advance(10)
    first = door.comes(certificate(20 / 3600))
    door.time.advance(10.1)
    assert first.state is State.CLOSED
    assert len(door.time.timers) == 1, "one timer for all"
    assert kept.state is State.OPEN


def test_a_clock_that_is_set_ahead_ends_them_soon(tmp_path: Path) -> None:
    door = Door(tmp_path)
    peer = door.comes(certificate(100))
    door.time.set_ahead_ms = 200 * HOUR_MS
    door.time.advance(POLL_INTERVAL_S)
    assert peer.state is State.CLOSED


def test_closed_connections_are_not_reported(tmp_path: Path) -> None:
    door = Door(tmp_path)
    peer = door.comes(certificate(1))
    peer.close()
    door.time.advance(7_200)
    assert door.told == []
    assert not door.time.timers


@pytest.mark.parametrize("who_asks", ["CN=\x00"])
def test_a_name_that_makes_no_principal_is_still_refused(
    who_asks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_name(rules: object, name: str) -> None:
        raise SaslAuthenticationFailedError(f"{who_asks!r} gives no valid principal")

    monkeypatch.setattr("sparklog_broker.security.authenticator.map_name", no_name)
    assert isinstance(Door(tmp_path).comes(certificate(1)).refused, SaslAuthenticationFailedError)
