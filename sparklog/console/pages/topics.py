"""The pages of topics: the list, and a topic with its partitions, settings, columns and readers."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sparklog.client.admin.admin import MirrorDescription, TopicDescription
from sparklog.console.changes import COLUMNS_IN_FORM
from sparklog.console.views.cluster import problems_together, why_offline
from sparklog.console.views.paging import Page, page_of
from sparklog.console.views.topics import (
    column_rows,
    growth_sample,
    names_matching,
    partition_skew,
    readers_of,
    records_of,
    schema_changes,
    setting_rows,
    subjects_of,
    topic_row,
)
from sparklog.console.views.watched import Rate
from sparklog.console.web import Console, ask, is_fragment, is_on, render, text, whole_number
from sparklog.format.ddl import TYPE_NAMES
from sparklog.format.key_format import REFUSED_SETTING, REFUSED_TO_TOPIC
from sparklog.metadata.refused_topics import refused_topic
from sparklog.types import INTERNAL_TOPICS


def rate_of(console: Console, topic: TopicDescription) -> Rate | None:
    """Keep a sample of the topic, and return its growth rate; None with the first sample."""
    return console.rates.note(topic.topic_id, growth_sample(topic, console.clock.now_ms()))


def _list(console: Console, search: str, number: int, internal: bool) -> dict[str, Any]:
    names = names_matching(console.names.get(), search, internal=internal)
    page = page_of(names, number)
    topics = console.admin.describe_topics(page.rows)
    groups = console.groups.groups().values()
    rows = [topic_row(topics[n], rate_of(console, topics[n]), groups) for n in page.rows if n in topics]
    return {
        "page": Page(rows, *page[1:]),
        "search": search,
        "internal": internal,
        "columns_max": COLUMNS_IN_FORM,
        "types": TYPE_NAMES,
    }


async def topics(request: Request) -> Response:
    query = request.query_params
    search, number, internal = text(query, "q"), whole_number(query, "page", 1, 1, 2**31), is_on(query, "internal")
    context = await ask(request, lambda console: _list(console, search, number, internal))
    return render(request, "topics_table.html" if is_fragment(request) else "topics.html", **context)


def _topic(console: Console, name: str, number: int) -> dict[str, Any]:
    topic = console.admin.describe_topic(name)
    return {
        "topic": topic,
        "page": page_of(topic.partition_details, number, 100),
        "records": records_of(topic.partition_details),
        "size_bytes": sum(max(0, p.size_bytes) for p in topic.partition_details),
        "remote_size_bytes": sum(max(0, p.remote_size_bytes) for p in topic.partition_details),
        "rate": rate_of(console, topic),
        "skew": partition_skew(topic),
        "problems": problems_together([topic], console.brokers.down()),
        "is_measured": console.groups.rounds > 0,
        "why_offline": why_offline,
        "readers": readers_of(name, console.groups.groups()),
        "columns": column_rows(topic),
        "subjects": subjects_of(topic),
        "versions": schema_changes(topic.schemas),
        "settings": setting_rows(topic),
        "is_internal": name in INTERNAL_TOPICS,
        "lake": console.admin.describe_lake(name) if topic.setting("lake.location") else None,
        "mirror": _mirror(console, name) if topic.setting("mirror.name") else None,
        "refused_topic": refused_topic(name) if topic.setting("mirror.value.format") else "",
        "has_refused_topic": topic.setting(REFUSED_SETTING) == REFUSED_TO_TOPIC,
    }


def _mirror(console: Console, name: str) -> MirrorDescription | None:
    """Return the topic's mirror by the workers' reports: the console's host may not reach the source."""
    mirrors = console.admin.describe_mirrors([name], asks_source=False)
    return mirrors[0] if mirrors else None


async def topic(request: Request) -> Response:
    name = request.path_params["topic"]
    number = whole_number(request.query_params, "page", 1, 1, 10_000)
    context = await ask(request, lambda console: _topic(console, name, number))
    return render(request, "topic_partitions.html" if is_fragment(request) else "topic.html", **context)


routes = [Route("/topics", topics), Route("/topics/{topic}", topic)]
