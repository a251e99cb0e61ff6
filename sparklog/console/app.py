"""The console as an ASGI application: routes, error pages, and the background tasks that measure brokers and groups."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from sparklog.client.admin.admin import Admin
from sparklog.console.base_path import BasePath
from sparklog.console.guard import Guard, Tokens, allowed_hosts, session_of
from sparklog.console.pages import (
    change,
    cluster,
    groups,
    messages,
    produce,
    schemas,
    sql,
    storage,
    topics,
    transactions,
)
from sparklog.console.pages.login import LoginWall, routes_of, to_login
from sparklog.console.registry import RegistryAccess
from sparklog.console.sessions import Sessions
from sparklog.console.statements import Statements
from sparklog.console.watching import DUTY, ROUND_S, BrokerWatch, GroupWatch, TopicNames, TopicRates
from sparklog.console.web import (
    Console,
    Login,
    Options,
    RefusedError,
    console_of,
    is_fragment,
    render,
    status_of,
)
from sparklog.console.work import BusyError, Work
from sparklog.environment import Environment
from sparklog.errors import SaslAuthenticationFailedError, SparklogError
from sparklog.security.client_security import ClientSecurity

PAGES = (cluster, topics, messages, produce, storage, groups, transactions, schemas, sql, change)
REGISTRY_THREADS = 2
REGISTRY_WAITING_MAX = 16
"""Largest number of requests to the schema registry that wait for a thread."""
LOGIN_THREADS = 2
LOGINS_WAITING_MAX = 16
"""Largest number of logins that wait for a thread. Logins have separate threads, so that many logins do not delay the
pages."""

_log = logging.getLogger(__name__)


class _Static(StaticFiles):
    """Static files of the package. Browsers are allowed to cache them for an hour."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "public, max-age=3600"
        return response


def make_app(
    options: Options,
    environment: Environment,
    *,
    listen_host: str = "127.0.0.1",
    allow_hosts: Iterable[str] = (),
    hint: Callable[[SparklogError], str] = lambda e: "",
    round_s: float = ROUND_S,
) -> Guard:
    """Create the console's application. `listen_host`: the address that the console listens on. Requests with it as
    their host name are accepted. `round_s`: shortest pause between two measurements of the brokers or of the groups, in
    s. Raises InvalidConfigError."""
    work, statements = Work(environment.executors), Statements()
    registry_work = Work(environment.executors, threads=REGISTRY_THREADS, waiting_max=REGISTRY_WAITING_MAX)
    tokens = Tokens(environment.randomness.token_bytes(32))

    def new_console(security: ClientSecurity | None, user: str = "") -> Console:
        admin = Admin(
            options.bootstrap_servers,
            request_timeout_ms=options.request_timeout_ms,
            security=security,
            wait_for_broker=False,  # a page shows the error without delay
        )
        clock = environment.clock
        return Console(
            options=replace(options, security=security),
            admin=admin,
            work=work,
            names=TopicNames(admin, clock),
            brokers=BrokerWatch(admin, clock),
            groups=GroupWatch(admin, clock),
            rates=TopicRates(),
            statements=statements,
            registry=RegistryAccess(
                options.bootstrap_servers, security, options.registry_url, options.request_timeout_ms, clock
            ),
            registry_work=registry_work,
            clock=clock,
            randomness=environment.randomness,
            tokens=tokens,
            hint=hint,
            user=user,
        )

    console = new_console(options.security)
    login = _login(options, environment, new_console)
    static = Mount("/static", _Static(packages=[("sparklog.console", "static")]), name="static")
    app = Starlette(
        routes=[static, *(route for page in PAGES for route in page.routes), *routes_of(login is not None)],
        exception_handlers={
            SparklogError: _sparklog_error,
            RefusedError: _refusal_page,
            BusyError: _busy,
            HTTPException: _http_error,
            Exception: _defect,
        },
        lifespan=_lifespan(console, login, environment, round_s),
    )
    app.router.redirect_slashes = False
    app.state.console = console
    app.state.login = login
    inner = app if login is None else LoginWall(app, login)
    # the outermost layer, so that error responses have the security headers, too
    return Guard(BasePath(inner, options.base_path), allowed_hosts(listen_host, allow_hosts))


def _login(
    options: Options, environment: Environment, new_console: Callable[[ClientSecurity, str], Console]
) -> Login | None:
    """Return the shared objects of logins; None for a console without logins."""
    if options.login is None:
        return None
    sessions: Sessions[Console] = Sessions(environment.clock)
    work = Work(environment.executors, threads=LOGIN_THREADS, waiting_max=LOGINS_WAITING_MAX)
    return Login(options, options.login, sessions, work, environment.randomness, new_console)


def _lifespan(
    console: Console, login: Login | None, environment: Environment, round_s: float
) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    """Return the application's lifespan, in which brokers and groups are measured. Its end closes threads and
    clients."""
    watcher, clock = Work(environment.executors, threads=2), environment.clock

    async def watch(measure_of: Callable[[Console], Callable[[], None]]) -> None:
        while True:
            begun_s = clock.monotonic_s()
            for one in [console] if login is None else list(login.sessions):
                try:
                    await watcher.run(measure_of(one))
                except Exception:  # noqa: BLE001  # the rounds after a failed one must run
                    _log.exception("a measurement of the cluster failed: the next is in %g s", round_s)
            await asyncio.sleep(max(round_s, DUTY * (clock.monotonic_s() - begun_s)))

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        # a group's coordinator that is down takes long, and must not delay the news that its broker is down
        measures = (lambda one: one.brokers.measure, lambda one: one.groups.measure)
        watching = [asyncio.create_task(watch(measure_of)) for measure_of in measures]
        try:
            yield
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            await console.statements.close()
            watcher.close()
            if login is not None:
                login.work.close()
            console.work.close()
            console.registry_work.close()
            console.admin.close()

    return lifespan


def _error_page(request: Request, status: int, title: str, message: str, next_step: str = "") -> Response:
    template = "error_part.html" if is_fragment(request) else "error.html"
    return render(request, template, status, title=title, message=message, hint=next_step)


async def _sparklog_error(request: Request, error: Any) -> Response:
    login = request.app.state.login
    if login is not None and console_of(request).user and isinstance(error, SaslAuthenticationFailedError):
        login.sessions.end(session_of(request.headers))  # the password has changed, or the token has expired
        return to_login(request)
    return _error_page(request, status_of(error), error.name, str(error), console_of(request).hint(error))


async def _refusal_page(request: Request, error: Exception) -> Response:
    return _error_page(request, 403, "REFUSED", str(error))


async def _busy(request: Request, error: Exception) -> Response:
    return _error_page(request, 503, "BUSY", str(error), "try again in a moment")


async def _http_error(request: Request, error: Any) -> Response:
    return _error_page(request, error.status_code, str(error.status_code), "page not found")


async def _defect(request: Request, error: Exception) -> Response:
    _log.error("a page failed: %s %s", request.method, request.url.path, exc_info=error)
    return _error_page(request, 500, "DEFECT", "the console failed unexpectedly; its log has the details")
