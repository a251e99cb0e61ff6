"""A schema registry outside of the cluster: schemas with references, faults, and its death."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any, cast
from uuid import UUID

import pyarrow as pa
import pytest
from sparklog_broker.config import make_config

from sparklog.client.net.registry_reader import RegistryAnswer, RegistryReader, RegistrySchemas
from sparklog.errors import BrokerNotAvailableError, InvalidConfigError, SchemaMismatchError
from sparklog.gateway.backend.connection import BrokerConnection
from sparklog.gateway.schemas.outside_registry import OutsideRegistry
from sparklog.kafka.records.errors import InvalidRecordError
from sparklog.mirror.readers import value_reader
from tests.support.cases import for_each
from tests.support.clients import info

INNER = json.dumps({"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "int"}]})
OUTER = json.dumps({"type": "record", "name": "R", "fields": [{"name": "i", "type": "Inner"}]})
PAGE = b"<html>default backend - 404</html>"
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
    "/schemas/ids/6": {"schema": INNER, "schemaType": "THRIFT"},
    "/schemas/ids/7": PAGE,
    "/schemas/guids/00000000-0000-0000-0000-000000000003": {"schema": "{", "id": 3},
}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        answer = ANSWERS.get(self.path, {"error_code": 40403, "message": "Schema not found"})
        self.send_response(200 if self.path in ANSWERS and answer is not PAGE else 404)
        self.end_headers()
        self.wfile.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode())

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


def read(
    url: str, ids: set[int], subjects: list[str], kept: set[int] | None = None, guids: Sequence[UUID] = ()
) -> RegistryAnswer:
    async def go() -> RegistryAnswer:
        registry = OutsideRegistry(url)
        try:
            return await registry.read(cast(BrokerConnection, None), ids, subjects, kept or set(), guids)
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


def test_a_schema_that_cannot_be_read_is_no_missing_one(server: HTTPServer) -> None:
    guid = UUID(int=3)
    answer = read(f"http://127.0.0.1:{server.server_port}/", {2, 3, 4, 6}, [], guids=[guid])
    assert answer.schemas == {} and answer.guids == {guid: 3}
    reasons = {3: "Invalid schema: it is no JSON", 4: "in a circle", 6: "'THRIFT' is not a valid SchemaType"}
    assert answer.unreadable.keys() == reasons.keys()
    for schema_id, reason in reasons.items():
        assert f"a schema {schema_id} that sparklog cannot read: " in answer.unreadable[schema_id]
        assert reason in answer.unreadable[schema_id]


def test_the_page_of_a_proxy_is_no_answer_of_a_registry(server: HTTPServer) -> None:
    with pytest.raises(BrokerNotAvailableError, match="is no schema registry") as e:
        read(f"http://127.0.0.1:{server.server_port}/", {7}, [])
    assert e.value.retriable


def test_a_client_gets_the_reason_why_a_newest_schema_is_of_no_use(server: HTTPServer) -> None:
    url = f"http://127.0.0.1:{server.server_port}/"
    ANSWERS["/subjects/n-value/versions/latest"] = {"id": 3}
    ANSWERS["/subjects/m-value/versions/latest"] = {"id": 2}
    schemas = RegistrySchemas(RegistryReader(url))
    for _ in range(2):
        with pytest.raises(SchemaMismatchError, match="a schema 3 that sparklog cannot read"):
            schemas.newest("n-value")
        with pytest.raises(SchemaMismatchError, match="no schema 2, which is the newest one of the subject 'm-value'"):
            schemas.newest("m-value")
    assert schemas.schema_of(2) is None


def test_a_registry_that_does_not_answer_is_an_error_that_passes() -> None:
    with pytest.raises(BrokerNotAvailableError, match="does not answer") as e:
        read("http://127.0.0.1:1", {1}, [])
    assert e.value.retriable


@for_each("url", ["file:///etc/passwd", "http://", "host:8081", "http://user:secret@host", "http://host?x=1"])
def test_the_setting_is_the_address_of_a_web_server(url: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"schema\.registry\.url"):
        make_config({"schema.registry.url": url})


def test_a_mirror_drops_no_field_of_a_version_that_was_registered_since_the_last_look_up(server: HTTPServer) -> None:
    fields = [{"name": "x", "type": "int"}, {"name": "y", "type": "int", "default": 0}]
    for count in (1, 2):
        schema = {"type": "record", "name": "V", "fields": fields[:count]}
        ANSWERS[f"/schemas/ids/{10 + count}"] = {"schema": json.dumps(schema)}
    latest = {"id": 11}
    ANSWERS["/subjects/v-value/versions/latest"] = latest
    topic = replace(info(pa.schema([("x", pa.int32())]), 1), name="v")
    schemas = RegistrySchemas(RegistryReader(f"http://127.0.0.1:{server.server_port}/"))
    read = value_reader("avro", schemas, 1 << 20)
    values = pa.array([b"\0\0\0\0\x0c\2\4"], pa.binary())
    for _ in range(2):
        assert read(pa.nulls(1, pa.binary()), values, topic).to_pylist() == [{"x": 1}]
    assert schemas.dropped == {("v", "y"): 2}, "the newest schema has no such field any more"
    latest["id"] = 12
    with pytest.raises(InvalidRecordError, match="field 'y' is no column"):
        read(pa.nulls(1, pa.binary()), values, topic)
