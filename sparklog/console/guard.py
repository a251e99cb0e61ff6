"""Protection against other sites in the user's browser: checks of hosts, origins and form tokens, and headers that
restrict a page to the console's own resources.

A page of another site can make the browser send requests to the console. The console refuses them by their `Host` (a
foreign name that resolves to this machine), by their `Origin`, or because the form lacks the token.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from http.cookies import CookieError, SimpleCookie
from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sparklog.errors import InvalidConfigError
from sparklog.security.listeners import is_local

COOKIE = "sparklog_console"
SESSION_HEX_DIGITS = 32
LOOPBACK = ("localhost", "127.0.0.1", "::1")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'"
)
SECURITY_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class Refusal(NamedTuple):
    """Status code and reason of a refused request."""

    status: int
    reason: str


def host_name(header: str) -> str:
    """Return the host name of a `Host` header in lower case, without port and brackets; "" without a name."""
    try:
        return (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return ""


def allowed_hosts(listen_host: str, others: Iterable[str] = ()) -> frozenset[str]:
    """Return the allowed host names: the loopback names, `listen_host` unless it is all addresses, and `others`."""
    wildcard = listen_host in ("", "0.0.0.0", "::")
    own = () if wildcard else (listen_host,)
    return frozenset(name.lower().strip("[]") for name in (*LOOPBACK, *own, *others))


def check_exposure(listen: str, host: str, *, allow_insecure: bool, has_login: bool = False) -> str:
    """Check that other hosts do not reach the console by accident. `allow_insecure`: True returns a warning instead of
    an error. Returns a warning for each start; "" if only this machine reaches the console. Raises InvalidConfigError.
    """
    if is_local(host):
        return ""
    why = (
        f"passwords and records pass between browsers and {listen} without encryption"
        if has_login
        else f"every client that reaches {listen} sees all records of the console, without a password"
    )
    if not allow_insecure:
        raise InvalidConfigError(
            f"{why}: listen on 127.0.0.1 (reachable by SSH, or by a proxy with authentication on this machine), or "
            "add --allow-insecure"
        )
    return f"--allow-insecure: {why}"


def refusal(method: str, headers: Headers, hosts: frozenset[str]) -> Refusal | None:
    """Return the reason for refusing the request; None if it is accepted."""
    host = headers.get("host", "")
    if host_name(host) not in hosts:
        return Refusal(421, f"host name {host!r} is not allowed: add --allow-host, or use the console's address")
    if method in ("GET", "HEAD"):
        return None
    if method != "POST":
        return Refusal(405, "only GET, HEAD and POST are allowed")
    if headers.get("origin") not in (f"http://{host}", f"https://{host}"):  # https if a proxy ends TLS
        return Refusal(403, "the form comes from another site (its Origin is not this console): nothing has changed")
    if headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return Refusal(403, "the form comes from another site: nothing has changed")
    return None


class Tokens:
    """Form tokens: an HMAC of the browser's session with a secret of the process."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def token(self, session: str) -> str:
        return hmac.new(self._secret, session.encode(), hashlib.sha256).hexdigest()

    def is_right(self, session: str, token: str) -> bool:
        return bool(session) and hmac.compare_digest(self.token(session).encode(), token.encode())


def session_of(headers: Headers) -> str:
    """Return the session key of the browser's cookie; "" without a cookie, or if it has another form."""
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    value = cookie.value if cookie is not None else ""
    is_ours = len(value) == SESSION_HEX_DIGITS and all(c in "0123456789abcdef" for c in value)
    return value if is_ours else ""


class Guard:
    """ASGI middleware that refuses requests of other sites, and adds the security headers to every response."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        refused = refusal(scope["method"], Headers(scope=scope), self._hosts)
        if refused is not None:
            await PlainTextResponse(refused.reason + "\n", refused.status)(scope, receive, guarded)
            return
        await self._app(scope, receive, guarded)
