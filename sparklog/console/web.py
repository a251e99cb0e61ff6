"""Common parts of all pages: requests to the cluster, parsing of parameters and forms, and rendering."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode

from jinja2 import Environment as Templates
from jinja2 import PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from sparklog.client.admin.admin import Admin
from sparklog.console.guard import COOKIE, SESSION_HEX_DIGITS, Tokens, session_of
from sparklog.console.statements import Statements
from sparklog.console.views import numbers
from sparklog.console.watching import BrokerWatch, GroupWatch, TopicNames, TopicRates
from sparklog.console.work import Work
from sparklog.environment.clock import MachineClock
from sparklog.environment.randomness import Randomness
from sparklog.errors import InvalidRequestError, SparklogError
from sparklog.format.column_names import column_list
from sparklog.security.client_security import ClientSecurity

FORM_BYTES_MAX = 1024 * 1024
FORM_FIELDS_MAX = 100
NOTES_MAX = 100
PARAMETER_CHARS_MAX = 4_096

T = TypeVar("T")


class RefusedError(Exception):
    """The console itself says no: it is read-only, or a form is not of this browser's session."""


@dataclass(frozen=True)
class Options:
    """Options of the console's start."""

    bootstrap_servers: str
    allow_changes: bool = False
    request_timeout_ms: int = 10_000
    security: ClientSecurity | None = None


@dataclass
class Console:
    """Shared objects of the pages. `hint` returns the next step for an error."""

    options: Options
    admin: Admin
    work: Work
    names: TopicNames
    brokers: BrokerWatch
    groups: GroupWatch
    rates: TopicRates
    statements: Statements
    clock: MachineClock
    randomness: Randomness
    tokens: Tokens
    hint: Callable[[SparklogError], str]
    notes: OrderedDict[str, str] = field(default_factory=OrderedDict)

    def note(self, text: str) -> str:
        """Keep a text for the next page; returns the key with which the page gets it."""
        key = self.randomness.new_id()
        self.notes[key] = text
        while len(self.notes) > NOTES_MAX:
            self.notes.popitem(last=False)
        return key


def console_of(request: Request) -> Console:
    found: Console = request.app.state.console
    return found


async def ask(request: Request, fn: Callable[[Console], T]) -> T:
    """Run a function that asks the cluster, in a thread."""
    console = console_of(request)
    return await console.work.run(lambda: fn(console))


# -- parameters and forms


def text(values: Mapping[str, str], name: str, default: str = "") -> str:
    """Return a text field of a form, without spaces at its ends. Raises InvalidRequestError."""
    return exact_text(values, name, default).strip()


def exact_text(values: Mapping[str, str], name: str, default: str = "") -> str:
    """A parameter with the spaces around it, which may belong to a group's id. Raises InvalidRequestError."""
    value = values.get(name, default)
    if len(value) > PARAMETER_CHARS_MAX:
        raise InvalidRequestError(f"{name} has {len(value)} characters: at most {PARAMETER_CHARS_MAX}")
    return value


def whole_number(values: Mapping[str, str], name: str, default: int, first: int = 0, last: int = 2**63 - 1) -> int:
    """A parameter in [first, last]; `default` if it is not given. Raises InvalidRequestError."""
    given = text(values, name)
    if not given:
        return default
    try:
        value = int(given)
    except ValueError as e:
        raise InvalidRequestError(f"{name} = {given!r}: a whole number is needed") from e
    if not first <= value <= last:
        raise InvalidRequestError(f"{name} = {value}: {first} to {last}")
    return value


def one_of(values: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """A parameter that is one of `choices`; the first if it is not given. Raises InvalidRequestError."""
    given = text(values, name) or choices[0]
    if given not in choices:
        raise InvalidRequestError(f"{name} = {given!r}: use one of {', '.join(choices)}")
    return given


def is_on(values: Mapping[str, str], name: str) -> bool:
    """Return True if a box is ticked."""
    return text(values, name) in ("1", "on", "true")


def url(path: str, **parameters: object) -> str:
    """The path with the parameters that say something. None, False and "" are left out; 0 stays, as of partition 0."""
    given = {name: value for name, value in parameters.items() if not (value is None or value is False or value == "")}
    return f"{path}?{urlencode(given)}" if given else path


def require_changes(console: Console) -> None:
    """Raise RefusedError if the console does not allow changes."""
    if not console.options.allow_changes:
        raise RefusedError("this console only shows: start it with --allow-changes to change anything")


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form that one of our pages has sent. Raises RefusedError, InvalidRequestError."""
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
        raise RefusedError("the form is not of this browser's session: load the page again; nothing was done")
    return fields


# -- rendering


def make_templates() -> Templates:
    """Create the templates. Everything is escaped; a value that a page does not pass is an error."""
    made = Templates(
        loader=PackageLoader("sparklog.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "number": numbers.number,
        "size": numbers.size,
        "time": numbers.time,
        "age": numbers.age,
        "rate": numbers.rate,
        "column_list": column_list,
    }
    made.globals["url"] = url
    return made


_TEMPLATES = make_templates()


def is_fragment(request: Request) -> bool:
    """Return True if htmx asks for a part of the page."""
    return request.headers.get("hx-request") == "true"


def render(request: Request, template: str, status: int = 200, **context: Any) -> Response:
    """A page, or the part of one. Gives the browser a session if it has none."""
    console = console_of(request)
    session = session_of(request.headers) or console.randomness.token_bytes(SESSION_HEX_DIGITS // 2).hex()
    body = _TEMPLATES.get_template(template).render(
        options=console.options,
        path=request.url.path,
        token=console.tokens.token(session),
        note=console.notes.get(request.query_params.get("note", ""), ""),
        now_ms=console.clock.now_ms(),
        brokers_down=console.brokers.down(),
        **context,
    )
    response = HTMLResponse(body, status)
    if session != session_of(request.headers):
        response.set_cookie(COOKIE, session, httponly=True, samesite="strict", secure=request.url.scheme == "https")
    return response
