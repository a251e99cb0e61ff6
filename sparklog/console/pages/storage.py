"""The pages of a partition's storage: segments, batches and producers."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sparklog.console.views.paging import page_of
from sparklog.console.web import Console, ask, render, whole_number
from sparklog.errors import LocalReadUnavailableError, OffsetOutOfRangeError
from sparklog.types import TopicPartition

BATCHES_SHOWN = 50


def _segments(console: Console, tp: TopicPartition, number: int) -> dict[str, Any]:
    topic = console.admin.describe_topic(tp.topic)
    unavailable = ""
    try:
        segments = console.admin.describe_segments(tp)
    except LocalReadUnavailableError as e:
        segments, unavailable = [], str(e)
    return {"topic": topic, "tp": tp, "page": page_of(segments, number, 100), "unavailable": unavailable}


async def segments(request: Request) -> Response:
    tp = TopicPartition(request.path_params["topic"], whole_number(request.query_params, "partition", 0, 0, 2**31))
    number = whole_number(request.query_params, "page", 1, 1, 100_000)
    return render(request, "segments.html", **await ask(request, lambda console: _segments(console, tp, number)))


def _batches(console: Console, tp: TopicPartition, offset: int) -> dict[str, Any]:
    topic = console.admin.describe_topic(tp.topic)
    start = console.admin.list_offsets({tp: "earliest"})[tp].offset
    try:
        batches = console.admin.describe_batches(tp, max(offset, start), batches_max=BATCHES_SHOWN + 1)
    except OffsetOutOfRangeError:
        batches = []  # the offset is beyond the end
    after = batches[BATCHES_SHOWN].base_offset if len(batches) > BATCHES_SHOWN else None
    return {
        "topic": topic,
        "tp": tp,
        "batches": batches[:BATCHES_SHOWN],
        "start": start,
        "offset": offset,
        "after": after,
    }


async def batches(request: Request) -> Response:
    tp = TopicPartition(request.path_params["topic"], whole_number(request.query_params, "partition", 0, 0, 2**31))
    offset = whole_number(request.query_params, "offset", 0)
    return render(request, "batches.html", **await ask(request, lambda console: _batches(console, tp, offset)))


def _producers(console: Console, tp: TopicPartition, number: int) -> dict[str, Any]:
    topic = console.admin.describe_topic(tp.topic)
    state = console.admin.describe_producers(tp)
    rows = sorted(state.producers, key=lambda p: (p.transaction_first_offset < 0, -p.last_timestamp_ms))
    return {"topic": topic, "tp": tp, "page": page_of(rows, number, 100), "stable": state.last_stable_offset}


async def producers(request: Request) -> Response:
    tp = TopicPartition(request.path_params["topic"], whole_number(request.query_params, "partition", 0, 0, 2**31))
    number = whole_number(request.query_params, "page", 1, 1, 100_000)
    return render(request, "producers.html", **await ask(request, lambda console: _producers(console, tp, number)))


routes = [
    Route("/topics/{topic}/segments", segments),
    Route("/topics/{topic}/batches", batches),
    Route("/topics/{topic}/producers", producers),
]
