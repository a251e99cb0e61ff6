"""Access to the console: hosts, origins, tokens of forms, and the headers that restrict a browser to the console's own
resources.

A foreign page in the same browser can send requests here, too. It cannot choose their `Host` (the console refuses a
foreign name that resolves to this machine) nor their `Origin` (forms are accepted from the console's pages only), and
it does not know the form's token.
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
    """Reason of a refused request."""

    status: int
    reason: str


def host_name(header: str) -> str:
    """Return the name in a `Host` header, in lower case, without port and brackets; "" if there is none."""
    try:
        return (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return ""


def allowed_hosts(listen_host: str, others: Iterable[str] = ()) -> frozenset[str]:
    """Return the host names of the console: this machine's own, the address it listens on, and `others`."""
    wildcard = listen_host in ("", "0.0.0.0", "::")
    own = () if wildcard else (listen_host,)
    return frozenset(name.lower().strip("[]") for name in (*LOOPBACK, *own, *others))


def check_exposure(listen: str, host: str, *, allow_insecure: bool, has_login: bool = False) -> str:
    """Return the warning for every start when the console listens at `listen`, with the host `host`; "": none. Raises
    InvalidConfigError for an address that other hosts can reach, unless `allow_insecure`. `has_login`: users log in."""
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
    """Return the reason why the request is refused; None: it is accepted."""
    host = headers.get("host", "")
    if host_name(host) not in hosts:
        return Refusal(421, f"host name {host!r} is not allowed: add --allow-host, or use the console's address")
    if method in ("GET", "HEAD"):
        return None
    if method != "POST":
        return Refusal(405, "only GET, HEAD and POST are allowed")
    if headers.get("origin") not in (f"http://{host}", f"https://{host}"):  # a proxy may have taken TLS away
        return Refusal(403, "the form comes from another site (its Origin is not this console): nothing has changed")
    if headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return Refusal(403, "the form comes from another site: nothing has changed")
    return None


class Tokens:
    """Tokens of forms: each belongs to a browser's session, and cannot be forged."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def token(self, session: str) -> str:
        return hmac.new(self._secret, session.encode(), hashlib.sha256).hexdigest()

    def is_right(self, session: str, token: str) -> bool:
        return bool(session) and hmac.compare_digest(self.token(session).encode(), token.encode())


def session_of(headers: Headers) -> str:
    """Return the session in the browser's cookie; "" without a cookie, or with one that the console has not issued."""
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    value = found.value if found is not None else ""
    is_ours = len(value) == SESSION_HEX_DIGITS and all(c in "0123456789abcdef" for c in value)
    return value if is_ours else ""


class Guard:
    """ASGI middleware: refuses foreign requests, and adds the security headers to every answer."""

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
