"""Functions for all pages: requests to the cluster, parsing of parameters and forms, and rendering."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode

from jinja2 import Environment as Templates
from jinja2 import PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from sparklog import errors
from sparklog.client.admin.admin import Admin
from sparklog.console.base_path import base_path_of, with_base_path
from sparklog.console.guard import COOKIE, SESSION_HEX_DIGITS, Tokens, session_of
from sparklog.console.registry import RegistryAccess
from sparklog.console.sessions import Sessions
from sparklog.console.statements import Statements
from sparklog.console.views import numbers
from sparklog.console.watching import BrokerWatch, GroupWatch, TopicNames, TopicRates
from sparklog.console.work import Work
from sparklog.environment.clock import MachineClock
from sparklog.environment.randomness import Randomness
from sparklog.errors import InvalidRequestError, SparklogError
from sparklog.format.column_names import column_list
from sparklog.security.client_security import ClientSecurity
from sparklog.types import INTERNAL_TOPICS

FORM_BYTES_MAX = 1024 * 1024
FORM_FIELDS_MAX = 100
NOTES_MAX = 100
PARAMETER_CHARS_MAX = 4_096
CONSOLE_KEY = "sparklog.console"
"""Key of the ASGI scope whose value is the `Console` of the session's user."""
STATUS: dict[type[SparklogError], int] = {
    errors.UnknownTopicOrPartitionError: 404,
    errors.GroupIdNotFoundError: 404,
    errors.InvalidProducerIdMappingError: 404,
    errors.OffsetOutOfRangeError: 404,
    errors.BrokerNotAvailableError: 503,
    errors.RequestTimedOutError: 504,
    errors.TopicAuthorizationFailedError: 403,
    errors.GroupAuthorizationFailedError: 403,
    errors.ClusterAuthorizationFailedError: 403,
    errors.TransactionalIdAuthorizationFailedError: 403,
    errors.UnknownServerError: 502,
}
"""HTTP status codes by error class; 400 for all other errors."""

T = TypeVar("T")


class RefusedError(Exception):
    """The console refuses the request: it is read-only, or the form is of another browser session."""


@dataclass(frozen=True)
class Options:
    """The options of `sparklog console`."""

    bootstrap_servers: str
    allow_changes: bool = False
    request_timeout_ms: int = 10_000
    security: ClientSecurity | None = None
    base_path: str = ""
    """The path of a reverse proxy before the console's paths. Empty: the request's `X-Forwarded-Prefix`."""
    login: ClientSecurity | None = None
    """The connection settings of logins, from `sessions.login_security`. None: no logins."""
    registry_url: str = ""
    """Address of the schema registry. Empty: the brokers name it."""


@dataclass
class Console:
    """Objects that all pages use. With logins, each session has its own Console, because users see different topics."""

    options: Options
    admin: Admin
    work: Work
    names: TopicNames
    brokers: BrokerWatch
    groups: GroupWatch
    rates: TopicRates
    statements: Statements
    registry: RegistryAccess
    registry_work: Work
    """Threads for requests to the registry: a slow registry must not delay the other pages."""
    clock: MachineClock
    randomness: Randomness
    tokens: Tokens
    hint: Callable[[SparklogError], str]
    """Returns the next step for an error."""
    user: str = ""
    """Name of the logged-in user; empty without logins."""
    notes: OrderedDict[str, str] = field(default_factory=OrderedDict)
    """Messages for the next page, by key."""

    def note(self, text: str) -> str:
        """Keep a message for the next page. Returns its key, the value of the page's parameter `note`."""
        key = self.randomness.new_id()
        self.notes[key] = text
        while len(self.notes) > NOTES_MAX:
            self.notes.popitem(last=False)
        return key


@dataclass(frozen=True)
class Login:
    """Objects of the login pages."""

    options: Options
    template: ClientSecurity
    """Connection settings with a placeholder in place of the user."""
    sessions: Sessions[Console]
    work: Work
    randomness: Randomness
    new_console: Callable[[ClientSecurity, str], Console]
    """Creates the console of a user with these connection settings and this displayed name."""


def console_of(request: Request) -> Console:
    console: Console = request.scope.get(CONSOLE_KEY) or request.app.state.console
    return console


def login_of(request: Request) -> Login:
    login: Login = request.app.state.login
    return login


def status_of(error: SparklogError) -> int:
    for cls in type(error).__mro__:
        if cls in STATUS:
            return STATUS[cls]
    return 400


async def ask(request: Request, fn: Callable[[Console], T]) -> T:
    """Run a function with blocking requests to the cluster in a thread, and return its result."""
    console = console_of(request)
    return await console.work.run(lambda: fn(console))


# -- parameters and forms


def text(values: Mapping[str, str], name: str, default: str = "") -> str:
    """Return a parameter without leading and trailing spaces. Raises InvalidRequestError if it is too long."""
    return exact_text(values, name, default).strip()


def exact_text(values: Mapping[str, str], name: str, default: str = "") -> str:
    """Return a parameter unchanged: the id of a group can begin or end with spaces. Raises InvalidRequestError if the
    parameter is too long."""
    value = values.get(name, default)
    if len(value) > PARAMETER_CHARS_MAX:
        raise InvalidRequestError(f"{name} has {len(value)} characters: at most {PARAMETER_CHARS_MAX}")
    return value


def whole_number(values: Mapping[str, str], name: str, default: int, first: int = 0, last: int = 2**63 - 1) -> int:
    """Return an integer parameter from `first` to `last`; `default` if it is missing. Raises InvalidRequestError."""
    entry = text(values, name)
    if not entry:
        return default
    try:
        value = int(entry)
    except ValueError as e:
        raise InvalidRequestError(f"{name} = {entry!r}: a whole number is needed") from e
    if not first <= value <= last:
        raise InvalidRequestError(f"{name} = {value}: use {first} to {last}")
    return value


def one_of(values: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """Return a parameter that is one of `choices`; the first choice if it is missing. Raises InvalidRequestError."""
    chosen = text(values, name) or choices[0]
    if chosen not in choices:
        raise InvalidRequestError(f"{name} = {chosen!r}: use one of {', '.join(choices)}")
    return chosen


def is_on(values: Mapping[str, str], name: str) -> bool:
    """Return True if a checkbox is checked."""
    return text(values, name) in ("1", "on", "true")


def url(path: str, **parameters: object) -> str:
    """Return the path with a query. None, False and "" are left out; 0 is kept, because it can be a partition."""
    present = {
        name: value for name, value in parameters.items() if not (value is None or value is False or value == "")
    }
    return f"{path}?{urlencode(present)}" if present else path


def require_changes(console: Console) -> None:
    """Raise RefusedError if the console does not allow changes."""
    if not console.options.allow_changes:
        raise RefusedError("this console is read-only: start it with --allow-changes to allow changes")


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form, without its token. Raises RefusedError for a wrong token, and InvalidRequestError
    for a form that is too large or cannot be read."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > FORM_BYTES_MAX:
            raise InvalidRequestError(f"the form has more than {FORM_BYTES_MAX} bytes")
    try:
        fields = dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FORM_FIELDS_MAX))
    except ValueError as e:
        raise InvalidRequestError(f"the form cannot be read: {e}") from e
    if not console_of(request).tokens.is_right(session_of(request.headers), fields.pop("token", "")):
        raise RefusedError("the form is not of this browser's session: load the page again; nothing has changed")
    return fields


# -- rendering


def make_templates() -> Templates:
    """Create the template environment. It escapes all values, and a missing value is an error."""
    templates = Templates(
        loader=PackageLoader("sparklog.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {
        "number": numbers.number,
        "size": numbers.size,
        "time": numbers.time,
        "age": numbers.age,
        "rate": numbers.rate,
        "column_list": column_list,
    }
    templates.globals |= {"url": url, "internal_topics": INTERNAL_TOPICS}
    return templates


_TEMPLATES = make_templates()


def is_fragment(request: Request) -> bool:
    """Return True if htmx requests a part of the page."""
    return request.headers.get("hx-request") == "true"


def render(request: Request, template: str, status: int = 200, **context: Any) -> Response:
    """Return a page, or a part of a page, and set the cookie of a new session if the browser has no session."""
    console = console_of(request)
    session = session_of(request.headers) or new_session(console.randomness)
    body = _TEMPLATES.get_template(template).render(
        options=console.options,
        user=console.user,
        path=request.url.path,
        token=console.tokens.token(session),
        note=console.notes.get(request.query_params.get("note", ""), ""),
        now_ms=console.clock.now_ms(),
        brokers_down=console.brokers.down(),
        **context,
    )
    response = HTMLResponse(with_base_path(body, base_path_of(request)), status)
    return response if session == session_of(request.headers) else set_session(request, response, session)


def redirect(request: Request, path: str) -> Response:
    """Return a redirect to a path of the console."""
    return RedirectResponse(base_path_of(request) + path, 303)


def new_session(randomness: Randomness) -> str:
    """Return a new random session key."""
    return randomness.token_bytes(SESSION_HEX_DIGITS // 2).hex()


def set_session(request: Request, response: Response, session: str) -> Response:
    """Set the session's cookie, which scripts cannot read and other sites cannot send. Returns the response."""
    seen = request.headers.get("origin", ""), request.headers.get("x-forwarded-proto", "")  # behind a proxy with TLS
    response.set_cookie(
        COOKIE,
        session,
        path=base_path_of(request) or "/",
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https" or seen[0].startswith("https://") or seen[1] == "https",
    )
    return response
