"""The form for a single record, and the sending of the record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sparklog.client.admin.admin import TopicDescription
from sparklog.client.producer.producer import Producer
from sparklog.console.records import FORMS, envelope_record, partition_of, row_example, typed_row
from sparklog.console.web import (
    Console,
    ask,
    console_of,
    read_form,
    redirect,
    render,
    require_changes,
    status_of,
    url,
)
from sparklog.errors import InvalidRequestError, SparklogError
from sparklog.format.schema import KIND_ENVELOPE
from sparklog.types import INTERNAL_TOPICS, RecordMetadata

_EMPTY = {"row": "", "key": "", "value": "", "headers": "", "partition": "", "key_form": "text", "value_form": "text"}


def _topic(console: Console, name: str) -> TopicDescription:
    if name in INTERNAL_TOPICS:
        raise InvalidRequestError(f"topic {name} is internal: sparklog alone writes to it")
    return console.admin.describe_topic(name)


async def form(request: Request) -> Response:
    require_changes(console_of(request))
    name = request.path_params["topic"]
    topic = await ask(request, lambda console: _topic(console, name))
    return _page(request, topic, {"row": row_example(topic.schema)})


def _page(
    request: Request, topic: TopicDescription, fields: Mapping[str, str], error: SparklogError | None = None
) -> Response:
    """Return the form with the values of `fields`, and with the error if there is one."""
    problem: Any = None
    if error is not None:
        problem = {"title": error.name, "message": str(error), "hint": console_of(request).hint(error)}
    return render(
        request,
        "produce.html",
        status_of(error) if error is not None else 200,
        topic=topic,
        is_envelope=topic.kind == KIND_ENVELOPE,
        fields=_EMPTY | dict(fields),
        forms=FORMS,
        problem=problem,
    )


def _send(console: Console, topic: TopicDescription, fields: Mapping[str, str]) -> RecordMetadata:
    """Send the record and wait for its acknowledgement. Raises InvalidRequestError and the producer's errors."""
    options = console.options
    partition = partition_of(fields, topic.partitions)
    with Producer(
        options.bootstrap_servers,
        security=options.security,
        request_timeout_ms=options.request_timeout_ms,
        max_block_ms=options.request_timeout_ms,
        delivery_timeout_ms=2 * options.request_timeout_ms,
    ) as producer:
        if topic.kind == KIND_ENVELOPE:
            record = envelope_record(fields)
            future = producer.send(topic.name, record.value, record.key, record.headers or None, partition=partition)
            return future.result()
        row = typed_row(fields.get("row", ""), topic.schema)
        return producer.send_batch(topic.name, row, partition=partition).result()[0]


async def send(request: Request) -> Response:
    """Send the record of the form. After an error, the response is the form with the entered text and the error."""
    console = console_of(request)
    require_changes(console)
    fields = await read_form(request)
    name = request.path_params["topic"]
    topic = await ask(request, lambda console: _topic(console, name))
    try:
        stored = await ask(request, lambda console: _send(console, topic, fields))
    except SparklogError as e:
        return _page(request, topic, fields, e)
    note = console.note(f"Wrote offset {stored.offset} of partition {stored.partition}.")
    page = url(f"/topics/{topic.name}/message", partition=stored.partition, offset=stored.offset, note=note)
    return redirect(request, page)


routes = [Route("/topics/{topic}/produce", form), Route("/topics/{topic}/produce", send, methods=["POST"])]
