"""The pages of groups: the list, a single group, and Spark queries, whose progress is the offsets of groups."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sparklog.console.changes import TARGETS
from sparklog.console.views.groups import ONLY_OFFSETS, SORTS, group_rows, group_view
from sparklog.console.views.paging import page_of
from sparklog.console.views.transactions import SHARED, transaction_rows
from sparklog.console.web import Console, ask, console_of, exact_text, is_fragment, one_of, render, text, whole_number


async def groups(request: Request) -> Response:
    query = request.query_params
    search, sort = text(query, "q"), one_of(query, "sort", SORTS)
    watch = console_of(request).groups
    page = page_of(group_rows(watch.groups(), search, sort), whole_number(query, "page", 1, 1, 2**31))
    context: dict[str, Any] = {
        "page": page,
        "search": search,
        "sort": sort,
        "omitted": watch.omitted,
        "problem": watch.problem,
        "is_measured": watch.rounds > 0,
    }
    return render(request, "groups_table.html" if is_fragment(request) else "groups.html", **context)


def _group(console: Console, group_id: str, by_lag: bool, number: int) -> dict[str, Any]:
    watched = console.groups.groups().get(group_id)
    group = group_view(console.admin.describe_group(group_id), watched, by_lag=by_lag)
    return {
        "group": group,
        "page": page_of(group.partitions, number, 200),
        "by_lag": by_lag,
        "targets": TARGETS,
        "is_measured": console.groups.rounds > 0,
    }


async def group(request: Request) -> Response:
    query = request.query_params
    group_id, by_lag = exact_text(query, "id"), one_of(query, "sort", ("partition", "lag")) == "lag"
    number = whole_number(query, "page", 1, 1, 100_000)
    context = await ask(request, lambda console: _group(console, group_id, by_lag, number))
    return render(request, "group_lag.html" if is_fragment(request) else "group.html", **context)


def _queries(console: Console) -> dict[str, Any]:
    watched = console.groups.groups()
    now_ms = console.clock.now_ms()
    applications = [t for t in console.admin.list_transactions() if t.kind == SHARED]
    rows = transaction_rows(applications, now_ms)
    details = {
        r.transactional_id: console.admin.describe_transaction(r.transactional_id).last_committed_version
        for r in rows[:50]
    }
    return {
        "sources": group_rows(watched, "", "lag", kind=ONLY_OFFSETS)[:200],
        "sinks": rows[:200],
        "committed": details,
        "is_measured": console.groups.rounds > 0,
    }


async def spark(request: Request) -> Response:
    context = await ask(request, _queries)
    return render(request, "spark_tables.html" if is_fragment(request) else "spark.html", **context)


routes = [Route("/groups", groups), Route("/group", group), Route("/spark", spark)]
