"""Access to the console."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from sparklog.console import app
from sparklog.console.guard import (
    COOKIE,
    SESSION_HEX_DIGITS,
    Tokens,
    allowed_hosts,
    check_exposure,
    host_name,
    refusal,
    session_of,
)
from sparklog.console.server import parse_listen
from sparklog.console.web import CONSOLE_KEY
from sparklog.errors import (
    BrokerNotAvailableError,
    InvalidConfigError,
    SaslAuthenticationFailedError,
    SparklogError,
    TopicAuthorizationFailedError,
)
from tests.support.cases import for_each

HOSTS = allowed_hosts("127.0.0.1", ["console.example"])
SESSION = "0123456789abcdef" * 2


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("localhost:8080", "localhost"),
        ("LocalHost", "localhost"),
        ("[::1]:8080", "::1"),
        ("evil.example:8080", "evil.example"),
        ("", ""),
        ("[", ""),
    ],
)
def test_the_name_in_a_host_header(header: str, name: str) -> None:
    assert host_name(header) == name


def test_a_wildcard_is_no_name() -> None:
    assert allowed_hosts("0.0.0.0") == allowed_hosts("") == {"localhost", "127.0.0.1", "::1"}
    assert "10.1.2.3" in allowed_hosts("10.1.2.3")


@for_each("listen", ["127.0.0.1:8080", "localhost:0", "[::1]:8080", "127.0.0.2:1"])
def test_a_loopback_address_needs_no_warning(listen: str) -> None:
    assert check_exposure(listen, parse_listen(listen)[0], allow_insecure=False) == ""


@for_each("listen", ["0.0.0.0:8080", ":8080", "[::]:8080", "10.1.2.3:0", "host.example:8080"])
def test_a_reachable_address_needs_an_option_and_a_warning(listen: str) -> None:
    host = parse_listen(listen)[0]
    with pytest.raises(InvalidConfigError, match=r"without a password.*--allow-insecure"):
        check_exposure(listen, host, allow_insecure=False)
    assert listen in check_exposure(listen, host, allow_insecure=True)
    with pytest.raises(InvalidConfigError, match=r"without encryption.*--allow-insecure"):
        check_exposure(listen, host, allow_insecure=False, has_login=True)


@for_each("host", ["localhost:8080", "127.0.0.1:8080", "[::1]:8080", "console.example"])
def test_requests_under_our_host_names_are_answered(host: str) -> None:
    assert refusal("GET", Headers({"host": host}), HOSTS) is None


@for_each("host", ["evil.example", "127.0.0.1.evil.example", "", "console.example.evil"])
def test_other_names_are_refused(host: str) -> None:
    found = refusal("GET", Headers({"host": host}), HOSTS)
    assert found
    assert found.status == 421


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "https://localhost:8080"}, None),
        ({"origin": "http://localhost:9999"}, 403),
        ({"origin": "http://localhost:8080", "sec-fetch-site": "cross-site"}, 403),
        ({"origin": "http://localhost:8080"}, None),
        ({"origin": "http://localhost:8080", "sec-fetch-site": "same-origin"}, None),
    ],
)
def test_forms_come_from_our_own_pages(headers: dict[str, str], status: int | None) -> None:
    found = refusal("POST", Headers({"host": "localhost:8080"} | headers), HOSTS)
    assert (found.status if found else None) == status


def test_other_methods_are_refused() -> None:
    found = refusal("DELETE", Headers({"host": "localhost"}), HOSTS)
    assert found
    assert found.status == 405


def test_a_token_belongs_to_a_session_and_a_secret() -> None:
    tokens = Tokens(b"secret")
    token = tokens.token(SESSION)
    assert tokens.is_right(SESSION, token)
    assert not tokens.is_right(SESSION, "")
    assert not tokens.is_right(SESSION, "ü" * 64)
    assert not tokens.is_right(SESSION[::-1], token)
    assert not Tokens(b"other").is_right(SESSION, token)
    assert not tokens.is_right("", tokens.token(""))


@pytest.mark.parametrize(
    ("cookie", "session"),
    [
        (f"{COOKIE}={SESSION}", SESSION),
        (f"a=b; {COOKIE}={SESSION}; c=d", SESSION),
        (f"{COOKIE}={SESSION}0", ""),
        (f"{COOKIE}=zz", ""),
        (f"{COOKIE}={'G' * 32}", ""),
        ("", ""),
        ("\x00;=;;", ""),
    ],
)
def test_sessions_are_ours(cookie: str, session: str) -> None:
    assert session_of(Headers({"cookie": cookie})) == session


# Error pages of the console: only an error of authentication ends the user's session


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
