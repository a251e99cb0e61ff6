"""Error pages of the console: only an error of authentication ends the user's session."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from sparklog.console import app
from sparklog.console.guard import COOKIE, SESSION_HEX_DIGITS
from sparklog.console.web import CONSOLE_KEY
from sparklog.errors import (
    BrokerNotAvailableError,
    SaslAuthenticationFailedError,
    SparklogError,
    TopicAuthorizationFailedError,
)

KEY = "a" * SESSION_HEX_DIGITS


def answer_to(
    error: SparklogError, monkeypatch: pytest.MonkeyPatch, *, user: str, has_login: bool
) -> tuple[int, list[str]]:
    """Return the status of a page that fails with the error, and the keys of the sessions that end."""
    ended: list[str] = []
    login = SimpleNamespace(sessions=SimpleNamespace(end=ended.append)) if has_login else None
    console = SimpleNamespace(user=user, hint=lambda error: "")
    scope: Any = {
        "type": "http",
        "method": "GET",
        "path": "/topics",
        "query_string": b"",
        "headers": [(b"cookie", f"{COOKIE}={KEY}".encode()), (b"host", b"localhost")],
        "app": SimpleNamespace(state=SimpleNamespace(login=login, console=console)),
        CONSOLE_KEY: console,
    }
    monkeypatch.setattr(app, "render", lambda request, template, status, **context: PlainTextResponse("", status))
    response = asyncio.run(app._sparklog_error(Request(scope), cast("Any", error)))
    return response.status_code, ended


def test_a_refused_authentication_ends_the_session_and_leads_to_the_login(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = SaslAuthenticationFailedError("the password has changed")
    assert answer_to(refusal, monkeypatch, user="alice", has_login=True) == (303, [KEY])


@pytest.mark.parametrize("error", [TopicAuthorizationFailedError("no"), BrokerNotAvailableError("gone")], ids=repr)
def test_another_error_keeps_the_session(monkeypatch: pytest.MonkeyPatch, error: SparklogError) -> None:
    status, ended = answer_to(error, monkeypatch, user="alice", has_login=True)
    assert status >= 400 and not ended


@pytest.mark.parametrize(("user", "has_login"), [("", True), ("alice", False)])
def test_a_console_without_a_users_session_shows_the_refusal(
    monkeypatch: pytest.MonkeyPatch, user: str, has_login: bool
) -> None:
    """The console's own security is refused: a login would not help."""
    refusal = SaslAuthenticationFailedError("the console's own password is wrong")
    status, ended = answer_to(refusal, monkeypatch, user=user, has_login=has_login)
    assert status >= 400 and not ended
