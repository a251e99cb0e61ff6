"""The overview page of the cluster."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sparklog.client.admin.admin import ClusterDescription
from sparklog.console.views.cluster import DiskRow, disks, most_lagging, open_long, spread
from sparklog.console.web import Console, ask, console_of, is_fragment, render
from sparklog.errors import ClusterAuthorizationFailedError

TOPICS_MEASURED_MAX = 2_000
"""Largest number of topics whose sizes are requested."""


def _overview(console: Console) -> dict[str, Any]:
    admin = console.admin
    names = console.names.get()
    transactions = admin.list_transactions(["Ongoing", "PrepareCommit", "PrepareAbort"])
    groups = console.groups
    return {
        "cluster": admin.describe_cluster(),
        "topics": len(names),
        "partitions": sum(names.values()),
        "groups": len(groups.groups()) + groups.omitted if groups.rounds else None,
        "lagging": most_lagging(groups.groups()),
        "transactions": len(transactions),
        "old_transactions": open_long(transactions, console.clock.now_ms())[:5],
        "watch_problem": groups.problem,
    }


def _spread(console: Console) -> dict[str, Any]:
    names = list(console.names.get())
    topics = console.admin.describe_topics(names[:TOPICS_MEASURED_MAX])
    omitted = max(0, len(names) - TOPICS_MEASURED_MAX)
    cluster = console.admin.describe_cluster()
    return {
        "spread": spread(cluster, topics.values()),
        "omitted": omitted,
        "disks": _disks(console, cluster),
    }


def _disks(console: Console, cluster: ClusterDescription) -> list[DiskRow] | None:
    """Return the disks; None if the user lacks the right to describe them."""
    try:
        return disks(cluster, console.admin.describe_log_dirs())
    except ClusterAuthorizationFailedError:
        return None


async def overview(request: Request) -> Response:
    return render(request, "overview.html", **await ask(request, _overview))


async def sizes(request: Request) -> Response:
    """Return the sizes for the overview. They are a separate request, because they take longer than the rest."""
    template = "overview_sizes.html" if is_fragment(request) else "sizes.html"
    return render(request, template, **await ask(request, _spread))


async def health(request: Request) -> Response:
    """Respond that the console is alive, without a request to the cluster."""
    console_of(request)
    return Response("alive\n", media_type="text/plain")


routes = [Route("/", overview), Route("/cluster/sizes", sizes), Route("/health/live", health)]
