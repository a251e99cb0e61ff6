"""Login to a secured cluster, and logout."""

from __future__ import annotations

import contextlib
from urllib.parse import urlencode

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from sparklog.client.net.cluster import Cluster
from sparklog.console.base_path import base_path_of
from sparklog.console.guard import session_of
from sparklog.console.sessions import NAME_CHARS_MAX, SECRET_CHARS_MAX, SESSIONS_MAX, security_as, takes_token
from sparklog.console.web import (
    CONSOLE_KEY,
    Login,
    exact_text,
    login_of,
    new_session,
    read_form,
    redirect,
    render,
    set_session,
    text,
)
from sparklog.console.work import BusyError
from sparklog.errors import InvalidConfigError, InvalidRequestError, SaslAuthenticationFailedError
from sparklog.security.client_security import ClientSecurity

OPEN_PATHS = ("/login", "/health/live")
_STATIC = "/static/"


def own_path(text: str) -> str:
    """Return `text` if it is a path of the console; else "/", so that no link leads from the login to another site."""
    is_own = text.startswith("/") and not text.startswith("//") and "\\" not in text and text.isprintable()
    return text if is_own else "/"


class LoginWall:
    """ASGI middleware that redirects requests without a session to the login, and gives the other requests the Console
    of the session's user."""

    def __init__(self, app: ASGIApp, login: Login) -> None:
        self._app = app
        self._login = login

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        is_update = scope["method"] == "GET" and headers.get("hx-request") == "true"
        console = self._login.sessions.find(session_of(headers), is_use=not is_update)
        if console is not None:
            scope[CONSOLE_KEY] = console
        elif scope["path"] not in OPEN_PATHS and not scope["path"].startswith(_STATIC):
            await to_login(Request(scope))(scope, receive, send)
            return
        await self._app(scope, receive, send)


def to_login(request: Request) -> Response:
    """Return the response to a request without a session: a redirect to the login, or status 401."""
    if request.method not in ("GET", "HEAD"):
        return PlainTextResponse("your session has ended: log in again; nothing has changed\n", 401)
    is_part = request.headers.get("hx-request") == "true"
    page = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    target = "/login" if is_part or page == "/" else f"/login?{urlencode({'next': page})}"
    if is_part:
        headers = {"HX-Redirect": base_path_of(request) + target}
        return PlainTextResponse("log in again\n", 401, headers)
    return redirect(request, target)


async def form(request: Request) -> Response:
    return _page(request, own_path(text(request.query_params, "next")))


def _page(request: Request, page: str, status: int = 200, name: str = "", problem: str = "") -> Response:
    template = login_of(request).template
    context = {"next": page, "name": name, "problem": problem, "takes_token": takes_token(template)}
    return render(request, "login.html", status, **context)


async def log_in(request: Request) -> Response:
    """Authenticate the user at a broker, over a new connection, and begin a session with a new key."""
    login = login_of(request)
    fields = await read_form(request)
    name, secret, page = exact_text(fields, "user"), fields.get("secret", ""), own_path(text(fields, "next"))
    by_token = takes_token(login.template)
    if by_token:
        secret = secret.strip()  # a pasted token can have a newline
    if not secret or not (name or by_token):
        return _page(
            request, page, 400, name, "A token is needed." if by_token else "A user and a password are needed."
        )
    if len(name) > NAME_CHARS_MAX or len(secret) > SECRET_CHARS_MAX:
        raise InvalidRequestError(f"a user has at most {NAME_CHARS_MAX} characters, a password {SECRET_CHARS_MAX}")
    security = security_as(login.template, name, secret)
    try:
        principal = await login.work.run(lambda: _authenticate(login, security))
    except SaslAuthenticationFailedError as e:
        reason = str(e).removeprefix("authentication failed: ")
        wrong = f"this token: {reason}" if by_token else "this user with this password"
        return _page(request, page, 401, name, f"The cluster does not accept {wrong}.")
    except InvalidConfigError:
        return _page(
            request, page, 400, name, "This is not a token." if by_token else "This is not a user with a password."
        )
    console = login.new_console(security, name or principal.removeprefix("User:") or "the token's user")
    key = new_session(console.randomness)
    if not login.sessions.begin(key, principal or security, console):
        raise BusyError(f"{SESSIONS_MAX} sessions are open already")
    return set_session(request, redirect(request, page), key)


def _authenticate(login: Login, security: ClientSecurity) -> str:
    """Authenticate the user at a broker. Returns the principal; "" from a broker of an older release. Raises
    SaslAuthenticationFailedError, and the errors of a connection."""
    options = login.options
    cluster = Cluster(options.bootstrap_servers, security)  # not the shared one, whose connections are authenticated
    with contextlib.closing(cluster):
        return cluster.reach(timeout_ms=options.request_timeout_ms)


async def log_out(request: Request) -> Response:
    login = login_of(request)
    await read_form(request)
    login.sessions.end(session_of(request.headers))
    response = redirect(request, "/login")
    return set_session(request, response, new_session(login.randomness))


def routes_of(has_login: bool) -> list[Route]:
    """Return the routes of the login pages; an empty list for a console without logins."""
    if not has_login:
        return []
    return [
        Route("/login", form),
        Route("/login", log_in, methods=["POST"]),
        Route("/logout", log_out, methods=["POST"]),
    ]
