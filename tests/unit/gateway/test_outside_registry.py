"""A schema registry outside of the cluster: schemas with references, faults, and its death."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any, cast

import pytest
from sparklog_broker.config import make_config

from sparklog.client.net.registry_reader import RegistryAnswer
from sparklog.errors import BrokerNotAvailableError, InvalidConfigError
from sparklog.gateway.backend.connection import BrokerConnection
from sparklog.gateway.schemas.outside_registry import OutsideRegistry
from tests.support.cases import for_each

INNER = json.dumps({"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "int"}]})
OUTER = json.dumps({"type": "record", "name": "R", "fields": [{"name": "i", "type": "Inner"}]})
ANSWERS: dict[str, Any] = {
    "/schemas/ids/1": {"schema": OUTER, "references": [{"name": "Inner", "subject": "in/ner", "version": 1}]},
    "/subjects/in%2Fner/versions/1": {"schema": INNER},
    "/subjects/t-value/versions/latest": {"id": 1},
    "/schemas/ids/3": {"schema": "{"},
    "/schemas/ids/4": {"schema": OUTER, "references": [{"name": "Inner", "subject": "circle", "version": 1}]},
    "/subjects/circle/versions/1": {
        "schema": OUTER,
        "references": [{"name": "Inner", "subject": "circle", "version": 1}],
    },
    "/schemas/ids/5": ["no object"],
}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        answer = ANSWERS.get(self.path)
        self.send_response(404 if answer is None else 200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    own = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=own.serve_forever)
    thread.start()
    yield own
    own.shutdown()
    thread.join()
    own.server_close()


def read(url: str, ids: set[int], subjects: list[str], kept: set[int] | None = None) -> RegistryAnswer:
    async def go() -> RegistryAnswer:
        registry = OutsideRegistry(url)
        try:
            return await registry.read(cast(BrokerConnection, None), ids, subjects, kept or set())
        finally:
            registry.close()

    return asyncio.run(go())


def test_schemas_are_read_with_their_references(server: HTTPServer) -> None:
    url = f"http://127.0.0.1:{server.server_port}/"
    answer = read(url, {2, 3, 4}, ["t-value", "u-value"])
    assert {schema_id: schema.text for schema_id, schema in answer.schemas.items()} == {1: OUTER.replace(" ", "")}
    assert answer.newest == {"t-value": 1, "u-value": None}
    assert read(url, {1}, ["t-value"], {1}).schemas == {}
    with pytest.raises(BrokerNotAvailableError, match="no JSON object"):
        read(url, {5}, [])


def test_a_registry_that_does_not_answer_is_an_error_that_passes() -> None:
    with pytest.raises(BrokerNotAvailableError, match="does not answer") as e:
        read("http://127.0.0.1:1", {1}, [])
    assert e.value.retriable


@for_each("url", ["file:///etc/passwd", "http://", "host:8081", "http://user:secret@host", "http://host?x=1"])
def test_the_setting_is_the_address_of_a_web_server(url: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"schema\.registry\.url"):
        make_config({"schema.registry.url": url})
