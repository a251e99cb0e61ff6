"""The path under which a reverse proxy shows the console, such as /sparklog.

Inside the console every path begins at /. `BasePath` removes the proxy's path from each request. `with_base_path` adds
it to the links of a page, and `web.redirect` to the target of a redirect.
"""

from __future__ import annotations

import re

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from sparklog.errors import InvalidConfigError

FORWARDED_PREFIX = "x-forwarded-prefix"
BASE_PATH_CHARS_MAX = 200
_SCOPE_KEY = "sparklog.base_path"
_PATH = re.compile(r"(?:/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*")
_LINK = re.compile(r'(?<=\s)(href|src|action|hx-get|hx-post)="/(?!/)')
"""A link in a page to a path of the console. A record's value cannot match: templates escape quotation marks."""


def check_base_path(text: str, name: str) -> str:
    """Return the path without a trailing slash; "" for the root. Raises InvalidConfigError that names `name`."""
    path = text.strip().rstrip("/")
    if len(path) > BASE_PATH_CHARS_MAX or not _PATH.fullmatch(path):
        raise InvalidConfigError(
            f"{name} = {text[: BASE_PATH_CHARS_MAX + 1]!r}: write a path such as /sparklog, of letters, digits, '.', "
            f"'_', '~' and '-', at most {BASE_PATH_CHARS_MAX} characters"
        )
    return path


def base_path_of(request: Request) -> str:
    """Return the path under which the proxy of this request shows the console; "" without a proxy."""
    path: str = request.scope.get(_SCOPE_KEY, "")
    return path


def with_base_path(page: str, base_path: str) -> str:
    """Return the HTML page with `base_path` before its links to the console."""
    return _LINK.sub(rf'\1="{base_path}/', page) if base_path else page


class BasePath:
    """ASGI middleware that removes the proxy's path from a request's path, unless the proxy has removed it.

    Args:
        app: The application, whose paths begin at /.
        base_path: The proxy's path. Empty: the request's `X-Forwarded-Prefix`.
    """

    def __init__(self, app: ASGIApp, base_path: str = "") -> None:
        self._app = app
        self._base_path = base_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        base = self._base_path
        if not base:
            try:
                base = check_base_path(Headers(scope=scope).get(FORWARDED_PREFIX, ""), "X-Forwarded-Prefix")
            except InvalidConfigError as e:
                await PlainTextResponse(f"{e}\n", 400)(scope, receive, send)
                return
        path = scope["path"]
        if base and (path == base or path.startswith(base + "/")):
            path = path[len(base) :] or "/"
        path = path.rstrip("/") or "/"  # Starlette's redirect to the path without the slash would lack the base path
        await self._app(dict(scope) | {"path": path, _SCOPE_KEY: base}, receive, send)
