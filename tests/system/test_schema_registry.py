"""The schema registry through HTTP, and with the unchanged serializers of confluent-kafka."""

from __future__ import annotations

import base64
import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.timestamp_pb2 import Timestamp

import sparklog
from sparklog.client.local import LocalBroker
from sparklog.client.net.registry_address import registry_url
from sparklog.gateway.rest.http_session import BODY_BYTES_MAX
from sparklog.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from sparklog.security.principals import user
from tests.support.cli import run_here
from tests.support.waiting import PATIENCE_S
from tests.system.secure_broker import PASSWORD, SecureBroker

RECORD = {"type": "record", "name": "Trip", "fields": [{"name": "minutes", "type": "double"}]}
OBJECT = {"title": "Trip", "type": "object", "properties": {"minutes": {"type": "number"}}}
TEXT = json.dumps(RECORD, separators=(",", ":"))
CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    with sparklog.start_local(tmp_path_factory.mktemp("registry") / "data", kafka=True) as local:
        yield local


def ask(url: str, method: str, path: str, body: Any = None, login: str = "") -> tuple[int, Any]:
    """The status and the body of an answer."""
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    headers = {"Content-Type": CONTENT_TYPE}
    if login:
        headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
    request = urllib.request.Request(url + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            assert answer.headers["Content-Type"] == CONTENT_TYPE
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as e:
        with e:
            return e.code, json.loads(e.read())["error_code"]


def test_answers_are_those_of_confluents_interface(broker: LocalBroker) -> None:
    url = broker.schema_registry_url
    assert ask(url, "GET", "/") == (200, {})
    assert ask(url, "GET", "/schemas/types") == (200, ["JSON", "PROTOBUF", "AVRO"])
    status, answer = ask(url, "POST", "/subjects/a%2Fb/versions", {"schema": json.dumps(RECORD)})
    assert (status, answer["version"]) == (200, 1)
    assert ask(url, "GET", "/subjects?subjectPrefix=a/") == (200, ["a/b"])
    assert answer.keys() == {"id", "version", "guid"}, (
        "clients would take another text for the schema in their own form"
    )
    assert ask(url, "GET", f"/schemas/ids/{answer['id']}")[1] == {"schema": TEXT, "guid": answer["guid"]}
    assert ask(url, "GET", f"/schemas/guids/{answer['guid']}")[1]["id"] == answer["id"]
    assert ask(url, "GET", f"/schemas/guids/{UUID(int=5)}") == (404, 40403)
    assert ask(url, "POST", "/subjects/a%2Fb/versions", {"schema": '"int"'}) == (409, 409)
    assert ask(url, "PUT", "/config/a%2Fb", {"compatibility": "NONE"}) == (200, {"compatibility": "NONE"})
    assert ask(url, "GET", "/subjects/none/versions") == (404, 40401)
    assert ask(url, "POST", "/subjects/x/versions", {"schema": "{"}) == (422, 42201)
    assert ask(url, "DELETE", "/subjects/a%2Fb") == (200, [1])
    assert ask(url, "GET", "/nowhere") == (404, 404)
    assert ask(url, "PATCH", "/subjects") == (405, 405)


def trip_class() -> Any:
    """The class of a message with a number and a well-known type."""
    file = FileDescriptorProto(name="trip.proto", package="rides", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    fields = file.message_type.add(name="Trip").field
    optional = FieldDescriptorProto.LABEL_OPTIONAL
    fields.add(name="minutes", number=1, type=FieldDescriptorProto.TYPE_DOUBLE, label=optional)
    at = {"type": FieldDescriptorProto.TYPE_MESSAGE, "type_name": ".google.protobuf.Timestamp"}
    fields.add(name="at", number=2, label=optional, **at)
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("rides.Trip"))


def test_confluents_serializers_work_unchanged(broker: LocalBroker) -> None:
    trip = trip_class()
    message = trip(minutes=1.5, at=Timestamp(seconds=7))
    with SchemaRegistryClient({"url": broker.schema_registry_url}) as registry:
        cases: dict[str, tuple[Any, Any, Any]] = {
            "avro": (AvroSerializer(registry, json.dumps(RECORD)), AvroDeserializer(registry), {"minutes": 1.5}),
            "json": (
                JSONSerializer(json.dumps(OBJECT), registry),
                JSONDeserializer(json.dumps(OBJECT)),
                {"minutes": 1.5},
            ),
            "protobuf": (ProtobufSerializer(trip, registry), ProtobufDeserializer(trip, {}, registry), message),
        }
        producer = Producer({"bootstrap.servers": broker.kafka_bootstrap_servers})
        for topic, (serialize, _, value) in cases.items():
            producer.produce(topic, serialize(value, SerializationContext(topic, MessageField.VALUE)))
        assert producer.flush(PATIENCE_S) == 0
        answers: dict[str, Any] = {}
        settings = {
            "bootstrap.servers": broker.kafka_bootstrap_servers,
            "group.id": "g",
            "auto.offset.reset": "earliest",
        }
        consumer = Consumer(settings)
        try:
            consumer.subscribe(list(cases))
            deadline = time.monotonic() + PATIENCE_S
            while len(answers) < len(cases) and time.monotonic() < deadline:
                record = consumer.poll(1)
                if record is not None and record.error() is None:
                    topic = str(record.topic())
                    context = SerializationContext(topic, MessageField.VALUE)
                    answers[topic] = cases[topic][1](record.value(), context)
        finally:
            consumer.close()
    assert answers == {topic: value for topic, (_, _, value) in cases.items()}


def test_ids_outlive_deletions_and_the_death_of_the_broker(tmp_path: Path) -> None:
    with sparklog.start_local(tmp_path / "data", kafka=True) as local:
        url = local.schema_registry_url
        assert ask(url, "POST", "/subjects/a/versions", {"schema": '"int"'})[1]["id"] == 1
        assert ask(url, "POST", "/subjects/b/versions", {"schema": '"long"'})[1]["id"] == 2
        for query in ("", "?permanent=true"):
            assert ask(url, "DELETE", f"/subjects/b{query}")[0] == 200
        local.kill()
    with sparklog.start_local(tmp_path / "data", kafka=True) as local:
        url = local.schema_registry_url
        assert ask(url, "GET", "/schemas/ids/1")[1]["schema"] == '"int"'
        assert ask(url, "GET", "/schemas/ids/2") == (404, 40403)
        assert ask(url, "POST", "/subjects/b/versions", {"schema": '"long"'})[1]["id"] == 3


def raw(broker: LocalBroker, request: bytes) -> bytes:
    """The answer to bytes, up to the end of the connection."""
    where = urlsplit(broker.schema_registry_url)
    with socket.create_connection((str(where.hostname), int(where.port or 0)), PATIENCE_S) as sock:
        sock.settimeout(PATIENCE_S)
        try:
            sock.sendall(request)
            sock.shutdown(socket.SHUT_WR)
            answer = b""
            while piece := sock.recv(65_536):
                answer += piece
        except (ConnectionResetError, BrokenPipeError):
            return answer
    return answer


POST = b"POST /subjects/x/versions HTTP/1.1\r\nHost: x\r\n"
HOSTILE = [
    (b"nonsense\r\n\r\n", b"HTTP/1.1 400 "),
    (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 100_000 + b"\r\n\r\n", b"HTTP/1.1 431 "),
    (POST + b"Content-Length: 3\r\n\r\n[1]", b"HTTP/1.1 400 "),
    (POST + b"Content-Length: 1\r\n\r\n{", b"HTTP/1.1 400 "),
    (POST + b"Content-Length: x\r\n\r\n{", b"HTTP/1.1 400 "),
    (POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", b"HTTP/1.1 400 "),
    (POST + b"Content-Length: 200000\r\n\r\n" + b"[" * 200_000, b"HTTP/1.1 400 "),
    (b"GET /subjects?a=%ff HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 400 "),
    (b"GET /subjects/%ff/versions HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 400 "),
    (POST + b"Content-Length: 10\r\n\r\n{", b""),
]


def test_hostile_requests_are_refused_and_the_registry_goes_on(broker: LocalBroker) -> None:
    for request, expected in HOSTILE:
        assert raw(broker, request).startswith(expected), request[:100]
    size = BODY_BYTES_MAX + 100_000
    large = raw(broker, POST + b"Content-Length: %d\r\n\r\n" % size + b" " * size)
    assert large == b"" or large.startswith(b"HTTP/1.1 413 ")
    two = raw(broker, b"GET /schemas/types HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
    assert two.count(b"HTTP/1.1 200 ") == 2, "a connection has several requests"
    assert ask(broker.schema_registry_url, "GET", "/") == (200, {})


SECURE = """
authorizer = "acl"
super.users = "User:ANONYMOUS"
connection.failed.authentication.delay.ms = 10
schema.registry.listeners = "https://127.0.0.1:0"
"""
RIGHTS = {
    "reader": (Operation.READ,),
    "writer": (Operation.WRITE,),
    "cleaner": (Operation.DELETE,),
    "keeper": (Operation.ALTER_CONFIGS,),
    "outsider": (),
}
MATRIX: list[tuple[str, str, Any, set[str]]] = [
    ("POST", "/subjects/t-value/versions", {"schema": '"int"'}, {"writer"}),
    ("GET", "/subjects/t-value/versions", None, {"reader", "writer", "cleaner"}),
    ("GET", "/subjects/t-value/versions/latest", None, {"reader", "writer", "cleaner"}),
    ("POST", "/subjects/t-value", {"schema": '"int"'}, {"reader", "writer", "cleaner"}),
    ("POST", "/compatibility/subjects/t-value/versions", {"schema": '"int"'}, {"reader", "writer", "cleaner"}),
    ("PUT", "/config/t-value", {"compatibility": "FULL"}, {"keeper"}),
    ("GET", "/config/t-value", None, {"keeper"}),
    ("PUT", "/mode/t-value", {"mode": "READWRITE"}, {"keeper"}),
    ("GET", "/config", None, set()),
    ("PUT", "/config", {"compatibility": "FULL"}, set()),
    ("PUT", "/mode", {"mode": "READONLY"}, set()),
    ("POST", "/subjects/other-value/versions", {"schema": '"int"'}, set()),
    ("GET", "/subjects/other-value/versions", None, set()),
    ("DELETE", "/subjects/t-value", None, {"cleaner"}),
]


def test_users_have_the_rights_of_the_subjects_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secure = SecureBroker(tmp_path, more=SECURE)
    stdout = secure.process.process.stdout
    assert stdout is not None
    url = stdout.readline().strip().removeprefix("listening on kafka.")
    with sparklog.Admin(secure.addresses["LOCAL"]) as admin:
        for name, operations in RIGHTS.items():
            admin.set_user_password(name, PASSWORD)
            admin.create_acls(
                Acl(ResourceType.TOPIC, PatternType.LITERAL, "t", user(name), "127.0.0.1", operation, Permission.ALLOW)
                for operation in operations
            )
    monkeypatch.setenv("SSL_CERT_FILE", str(secure.ca))
    assert ask(url, "GET", "/subjects") == (401, 40101)
    assert ask(url, "GET", "/subjects", login="reader:wrong") == (401, 40101)
    for method, path, body, allowed in MATRIX:
        for name in RIGHTS:
            status, answer = ask(url, method, path, body, f"{name}:{PASSWORD}")
            is_denied = (status, answer) == (403, 40301)
            assert is_denied == (name not in allowed), (method, path, name, status, answer)
    reader, outsider = f"reader:{PASSWORD}", f"outsider:{PASSWORD}"
    assert ask(url, "GET", "/subjects?deleted=true", login=reader) == (200, ["t-value"])
    assert ask(url, "GET", "/subjects?deleted=true", login=outsider) == (200, [])
    status, answer = ask(url, "GET", "/schemas/ids/1", login=reader)
    assert (status, answer["schema"]) == (200, '"int"')
    assert ask(url, "GET", f"/schemas/guids/{answer['guid']}", login=reader)[0] == 200
    assert ask(url, "GET", f"/schemas/guids/{answer['guid']}", login=outsider) == (404, 40403)
    assert ask(url, "GET", "/schemas/ids/1", login=outsider) == (404, 40403)
    assert secure.stop() == 0, secure.process.stderr
    assert "Traceback" not in secure.process.stderr, secure.process.stderr


def test_the_command_line_uses_the_registry(broker: LocalBroker, tmp_path: Path) -> None:
    first, second = tmp_path / "first.avsc", tmp_path / "second.avsc"
    first.write_text(json.dumps(RECORD))
    second.write_text('"int"')
    url = {"SPARKLOG_SCHEMA_REGISTRY_URL": broker.schema_registry_url}
    registered = run_here("schema", "register", "rides-value", first, environment=url)
    assert registered.stdout.startswith("rides-value: version 1, id "), registered.stderr
    assert "rides-value" in run_here("schema", "list", "rides", environment=url).stdout
    assert json.loads(run_here("schema", "show", "rides-value", environment=url).stdout) == RECORD
    assert run_here("schema", "check", "rides-value", first, environment=url).stdout == "rides-value: compatible\n"
    refused = run_here("schema", "check", "rides-value", second, environment=url)
    assert refused.returncode == 1 and "TYPE_MISMATCH" in refused.stderr
    assert "deleted" in run_here("schema", "delete", "rides-value", environment=url).stdout
    missing = run_here("schema", "show", "rides-value", environment=url)
    assert missing.returncode == 1 and "Subject 'rides-value' not found" in missing.stderr


@pytest.mark.nightly
def test_the_example_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "kafka-clients.md").read_text()
    code = page.split("<!-- test: registry -->\n```python\n")[1].split("```")[0]
    exec(compile(code, "docs/kafka-clients.md", "exec"), {})
    assert capsys.readouterr().out == "['trips-value']\n"


@pytest.mark.nightly
def test_all_gateways_of_a_cluster_serve_one_registry(tmp_path: Path) -> None:
    with sparklog.start_local(tmp_path, brokers=2, kafka=True, timeout_s=120) as cluster:
        urls = cluster.schema_registry_url.split(",")
        assert len(urls) == 2
        assert set(registry_url(cluster.bootstrap_servers).split(",")) == set(urls)
        ids = []
        for i in range(6):
            body = {"schema": json.dumps({"type": "fixed", "name": f"F{i}", "size": i})}
            status, answer = ask(urls[i % 2], "POST", f"/subjects/s{i}/versions", body)
            assert status == 200, answer
            ids.append(answer["id"])
        assert ids == [1, 2, 3, 4, 5, 6]
        assert [ask(url, "GET", "/schemas/ids/6")[0] for url in urls] == [200, 200]
