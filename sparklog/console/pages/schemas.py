"""The pages of the schema registry: the list of subjects, a subject with its versions, and the check of a schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sparklog.client.net.registry_subjects import (
    LATEST,
    RegistrySubjects,
    SubjectVersion,
    parse_reference,
    schema_body,
)
from sparklog.console.registry import PAGE_S, NoRegistryError
from sparklog.console.views.paging import Page, page_of
from sparklog.console.views.schemas import (
    KINDS,
    SubjectRow,
    changes_of,
    field_changes,
    line_differences,
    schema_text,
    subject_row,
    subjects_matching,
)
from sparklog.console.views.topics import column_rows
from sparklog.console.views.values import visible
from sparklog.console.web import (
    Console,
    console_of,
    exact_text,
    is_fragment,
    one_of,
    read_form,
    render,
    status_of,
    text,
    whole_number,
)
from sparklog.errors import (
    BrokerNotAvailableError,
    InvalidRequestError,
    SparklogError,
    TopicAuthorizationFailedError,
)

SUBJECTS_ON_PAGE = 25
"""Number of subjects on a page of the list. Each takes four requests to the registry."""
VERSION_MAX = 2**31 - 1


class MissingError(Exception):
    """The registry does not have the subject or the version."""


async def _ask(
    request: Request, fn: Callable[[Console, RegistrySubjects], dict[str, Any]], template: str, part: str = ""
) -> Response:
    """Run a function with requests to the registry in one of the registry's threads, and return the page. `part`: the
    template for a part of the page. An error of the registry is not one of the cluster: no login ends."""
    console = console_of(request)

    def run() -> dict[str, Any]:
        with console.registry.open() as registry:
            return fn(console, registry)

    try:
        context = await console.registry_work.run(run)
    except NoRegistryError:
        return render(request, "schemas_none.html")
    except MissingError as e:
        return _failure(request, HTTPStatus.NOT_FOUND, str(e))
    except SparklogError as e:
        return _failure(request, status_of(e), str(e), e.name)
    return render(
        request, part if part and is_fragment(request) else template, registry_url=console.registry.url, **context
    )


def _failure(request: Request, status: int, message: str, title: str = "NOT FOUND") -> Response:
    template = "error_part.html" if is_fragment(request) else "schemas_failed.html"
    return render(request, template, status, title=title, message=message, hint="")


def _topics(console: Console) -> Mapping[str, int]:
    try:
        return console.names.get()
    except SparklogError:  # the registry's pages do without links to topics
        return {}


def _or_empty(ask: Callable[[str], str], subject: str) -> str:
    """Return a level or a mode; "" if the user may not see it, or the registry does not have it."""
    try:
        return visible(ask(subject))
    except (TopicAuthorizationFailedError, InvalidRequestError):
        return ""


# -- the list


def _list(console: Console, registry: RegistrySubjects, search: str, number: int) -> dict[str, Any]:
    end_s = console.clock.monotonic_s() + PAGE_S
    page = page_of(subjects_matching(console.registry.names(registry), search), number, SUBJECTS_ON_PAGE)
    topics = _topics(console)
    rows = [subject_row(name, topics) for name in page.rows]
    level, mode = _or_empty(registry.level, ""), _or_empty(registry.mode, "")
    problem = ""
    for place, row in enumerate(rows):
        if console.clock.monotonic_s() >= end_s:
            problem = f"The registry is slow: {len(rows) - place} subjects are shown without their versions."
            break
        try:
            rows[place] = _with_details(registry, row)
        except BrokerNotAvailableError as e:
            problem = str(e)
            break
    return {"page": Page(rows, *page[1:]), "search": search, "level": level, "mode": mode, "problem": problem}


def _with_details(registry: RegistrySubjects, row: SubjectRow) -> SubjectRow:
    try:
        return row._replace(
            versions=len(registry.versions(row.name)),
            latest=registry.find(row.name, LATEST),
            level=_or_empty(registry.level, row.name),
            mode=_or_empty(registry.mode, row.name),
        )
    except (TopicAuthorizationFailedError, InvalidRequestError):
        return row


async def schemas(request: Request) -> Response:
    query = request.query_params
    search, number = text(query, "q"), whole_number(query, "page", 1, 1, 2**31)
    return await _ask(
        request,
        lambda console, registry: _list(console, registry, search, number),
        "schemas.html",
        "schemas_table.html",
    )


# -- a subject


def _subject(
    console: Console, registry: RegistrySubjects, name: str, version: int, compared: int, number: int
) -> dict[str, Any]:
    """Return the content of a subject's page. `version` 0: the newest. `compared` 0: the version before."""
    end_s = console.clock.monotonic_s() + PAGE_S
    numbers = registry.versions(name)
    if not numbers:
        raise MissingError(f"subject {visible(name)!r} does not exist; perhaps it is deleted")
    version = version or numbers[-1]
    chosen = _existing(registry, name, version)
    compared = compared or max((one for one in numbers if one < version), default=0)
    other = _existing(registry, name, compared) if compared else None
    page = page_of(numbers[::-1], number)
    loaded = {one.version: one for one in (chosen, other) if one is not None}
    rows: list[tuple[int, SubjectVersion | None]] = []
    for one in page.rows:
        is_due = one not in loaded and console.clock.monotonic_s() < end_s
        rows.append((one, registry.find(name, str(one)) if is_due else loaded.get(one)))
    subject = subject_row(name, _topics(console))
    return {
        "subject": subject,
        "level": _or_empty(registry.level, name),
        "mode": _or_empty(registry.mode, name),
        "page": Page(rows, *page[1:]),
        "newest": numbers[-1],
        "first": numbers[0],
        "changes": changes_of(rows),
        "version": chosen,
        "schema": schema_text(chosen),
        "users": registry.referrers(name, chosen.version),
        "other": other,
        "fields": field_changes(other, chosen) if other is not None else [],
        "lines": line_differences(other, chosen) if other is not None else [],
        "columns": _columns(console, subject.topic),
        "kinds": KINDS,
    }


def _existing(registry: RegistrySubjects, name: str, version: int) -> SubjectVersion:
    answer = registry.find(name, str(version))
    if answer is None:
        raise MissingError(f"subject {visible(name)!r} has no version {version}")
    return answer


def _columns(console: Console, topic: str) -> list[Any]:
    """Return the columns of the subject's topic; an empty list without the topic, or without the right to see it."""
    if not topic:
        return []
    try:
        return column_rows(console.admin.describe_topic(topic))
    except SparklogError:
        return []


async def subject(request: Request) -> Response:
    query = request.query_params
    name = exact_text(query, "name")
    version = whole_number(query, "version", 0, 0, VERSION_MAX)
    compared = whole_number(query, "compare", 0, 0, VERSION_MAX)
    number = whole_number(query, "page", 1, 1, 2**31)
    return await _ask(
        request,
        lambda console, registry: _subject(console, registry, name, version, compared, number),
        "schema_subject.html",
    )


# -- the check of a schema


async def check(request: Request) -> Response:
    """Check a schema by the level of a subject and the columns of its topic. Nothing is registered, so a read-only
    console allows it."""
    fields = await read_form(request)
    name, kind = exact_text(fields, "name"), one_of(fields, "type", KINDS)
    schema, references = fields.get("schema", ""), text(fields, "references")

    def run(console: Console, registry: RegistrySubjects) -> dict[str, Any]:
        context = {
            "subject": subject_row(name, {}),
            "kind": kind,
            "text": schema,
            "references": references,
            "kinds": KINDS,
            "reasons": [],
            "effects": [],
            "problem": "",
            "level": _or_empty(registry.level, name),
        }
        try:
            body = schema_body(schema, kind, [parse_reference(one) for one in references.split()])
            answer = registry.check(name, body)
        except InvalidRequestError as e:
            return context | {"is_compatible": False, "problem": visible(str(e))}
        reasons, effects = ([visible(one) for one in texts[:100]] for texts in (answer.messages, answer.effects))
        return context | {"is_compatible": answer.is_compatible, "reasons": reasons, "effects": effects}

    return await _ask(request, run, "schema_check.html")


routes = [
    Route("/schemas", schemas),
    Route("/schemas/subject", subject),
    Route("/schemas/check", check, methods=["POST"]),
]
