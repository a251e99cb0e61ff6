"""Kafka's messages, held against kafka-python, which compiles Kafka's own definitions."""

from __future__ import annotations

import contextlib
import random
from typing import Any
from uuid import UUID

import kafka.protocol.admin
import kafka.protocol.consumer
import kafka.protocol.metadata
import kafka.protocol.producer
import kafka.protocol.sasl
import pytest

from sparklog.errors import InvalidRequestError
from sparklog.gateway.registry import served_apis
from sparklog.kafka.wire import codec
from sparklog.kafka.wire.apis import read_head
from sparklog.kafka.wire.codec import decoder, encoder
from sparklog.kafka.wire.schema import DATA, REQUEST, RESPONSE, Field, Message, messages
from tests.support.cases import for_each
from tests.support.kafka_types import FILES, source

MODULES = (
    kafka.protocol.admin,
    kafka.protocol.consumer,
    kafka.protocol.metadata,
    kafka.protocol.producer,
    kafka.protocol.sasl,
)
CASES = [
    (kind, name, version)
    for (kind, name), message in messages().items()
    if kind != DATA
    for version in range(message.versions.first, message.versions.last + 1)
]
NOT_IN_KAFKA_PYTHON = frozenset({"ConsumerGroupHeartbeat", "ConsumerGroupDescribe"})
_RANGES = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}


def peer_of(kind: str, name: str) -> Any:
    """The class of the message in kafka-python."""
    wanted = name + kind.capitalize()
    return next(getattr(module, wanted) for module in MODULES if hasattr(module, wanted))


def sample(fields: tuple[Field, ...], version: int, source: random.Random) -> dict[str, Any]:
    """A structure with some value in each field that the version has."""
    return {f.name: value_of(f, version, source) for f in fields if version in f.versions}


def value_of(field: Field, version: int, source: random.Random) -> Any:
    if field.null is not None and version in field.null and source.random() < 0.3:
        return None
    if field.tag is not None and source.random() < 0.3:
        return field.default
    if field.is_list:
        return [one_of(field, version, source) for _ in range(source.randrange(4))]
    return one_of(field, version, source)


def one_of(field: Field, version: int, source: random.Random) -> Any:
    match field.type:
        case "{}":
            return sample(field.fields, version, source)
        case "bool":
            return source.random() < 0.5
        case "float64":
            return source.uniform(-1e9, 1e9)
        case "uint16":
            return source.randrange(2**16)
        case "string":
            return "".join(source.choices("aé\U0001f600z", k=source.randrange(200)))
        case "bytes" | "records":
            return source.randbytes(source.randrange(300))
        case "uuid":
            return UUID(bytes=source.randbytes(16))
    bits = _RANGES[field.type]
    return source.randrange(-(2**bits), 2**bits)


def encoded(message: Message, version: int, body: dict[str, Any]) -> bytes:
    return b"".join(encoder(message.kind, message.name, version)(wrapped(message.fields, body)))


def wrapped(fields: tuple[Field, ...], body: dict[str, Any]) -> dict[str, Any]:
    """Records are encoded from parts."""
    found = dict(body)
    for field in fields:
        value = found.get(field.name)
        if field.type == "records" and value is not None:
            found[field.name] = [value]
        elif field.type == "{}" and value is not None:
            found[field.name] = (
                [wrapped(field.fields, v) for v in value] if field.is_list else wrapped(field.fields, value)
            )
    return found


@for_each("case", [c for c in CASES if c[1] not in NOT_IN_KAFKA_PYTHON], ids=lambda c: f"{c[0]}-{c[1]}-{c[2]}")
def test_messages_are_those_of_kafka(case: tuple[str, str, int]) -> None:
    kind, name, version = case
    message = messages()[kind, name]
    source = random.Random(repr(case))
    for _ in range(5):
        body = sample(message.fields, version, source)
        if name == "ApiVersions" and kind == RESPONSE:
            body["error_code"] = 0  # else kafka-python expects version 0
        data = encoded(message, version, body)
        theirs = peer_of(kind, name).decode(data, version=version)
        theirs._header = None
        assert bytes(theirs.encode(version=version)) == data
        assert decoder(kind, name, version)(memoryview(data)) == body


@for_each("case", CASES, ids=lambda c: f"{c[0]}-{c[1]}-{c[2]}")
def test_any_bytes_are_a_message_or_an_error(case: tuple[str, str, int]) -> None:
    kind, name, version = case
    message = messages()[kind, name]
    source = random.Random(repr(case))
    data = encoded(message, version, sample(message.fields, version, source))
    decode = decoder(kind, name, version)
    for _ in range(30):
        broken = bytearray(data)
        for _ in range(source.randrange(1, 4)):
            if broken:
                broken[source.randrange(len(broken))] = source.randrange(256)
        broken = broken[: source.randrange(len(broken) + 1)]
        with contextlib.suppress(InvalidRequestError):
            decode(memoryview(bytes(broken)))


def test_a_list_is_no_longer_than_its_bytes() -> None:
    body = b"\x00\x00\x00\x01" + b"\xff\xff\xff\x7f"  # a version with compact lengths reads these as a number
    with pytest.raises(InvalidRequestError, match=r"elements|left"):
        decoder(REQUEST, "Metadata", 1)(memoryview(b"\x7f\xff\xff\xff" + body))


def test_lists_of_one_message_have_a_bound_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "ELEMENTS_MAX", 10)
    body = {"topics": [{"name": ""}] * 11, "allow_auto_topic_creation": False}
    data = b"".join(encoder(REQUEST, "Metadata", 4)(body))
    with pytest.raises(InvalidRequestError, match="at most 10 in one message"):
        decoder(REQUEST, "Metadata", 4)(memoryview(data))


def test_bytes_behind_a_message_are_passed_over() -> None:
    """librdkafka sends some with Metadata version 12; Kafka does not look at them."""
    data = b"".join(encoder(REQUEST, "Metadata", 1)({"topics": [{"name": "t"}]}))
    assert decoder(REQUEST, "Metadata", 1)(memoryview(data + b"more")) == {"topics": [{"name": "t"}]}


def test_a_length_has_five_bytes_at_most() -> None:
    with pytest.raises(InvalidRequestError, match="5 bytes"):
        decoder(REQUEST, "Metadata", 9)(memoryview(b"\xff" * 1000))


def test_heads_of_both_forms_are_read() -> None:
    for version, behind in ((3, b"\0"), (2, b"")):
        head = bytes.fromhex("0012") + version.to_bytes(2, "big") + b"\0\0\0\x07" + b"\0\x02me" + behind
        found = read_head(memoryview(head + b"rest"))
        assert (found.api_key, found.version, found.correlation_id, found.client_id) == (18, version, 7, "me")
        assert found.body_from == len(head)
    with pytest.raises(InvalidRequestError):
        read_head(memoryview(b"\0\x12\0\x03\0\0\0\x07\x7f\xff"))


def test_produce_is_advertised_from_its_first_version() -> None:
    api = served_apis()[0].api
    assert (api.name, api.advertised_from, api.first) == ("Produce", 0, 3)
    assert all(s.api.advertised_from == s.api.first for key, s in served_apis().items() if key)
    assert {(RESPONSE, s.api.name) for s in served_apis().values()} <= set(messages())


def test_a_heartbeat_of_the_consumer_protocol_has_kafkas_bytes() -> None:
    """Written down by hand from Kafka's definition; its own clients are held against it in the system tests."""
    topic_id = UUID(int=7)
    data = (
        b"\x02g\x02m" + b"\0\0\0\x05" + b"\0\0" + b"\xff\xff\xff\xff" + b"\0" + b"\x03a." + b"\0"
        + b"\x02" + topic_id.bytes + b"\x02" + b"\0\0\0\x03" + b"\0" + b"\0"
    )  # fmt: skip
    assert decoder(REQUEST, "ConsumerGroupHeartbeat", 1)(memoryview(data)) == {
        "group_id": "g", "member_id": "m", "member_epoch": 5, "instance_id": None, "rack_id": None,
        "rebalance_timeout_ms": -1, "subscribed_topic_names": None, "subscribed_topic_regex": "a.",
        "server_assignor": None, "topic_partitions": [{"topic_id": topic_id, "partitions": [3]}],
    }  # fmt: skip
    answer = {"error_code": 0, "member_id": "m", "member_epoch": 5, "heartbeat_interval_ms": 9}
    head = b"\0\0\0\0" + b"\0\0" + b"\0" + b"\x02m" + b"\0\0\0\x05" + b"\0\0\0\x09"
    encode = encoder(RESPONSE, "ConsumerGroupHeartbeat", 1)
    assert b"".join(encode(answer)) == head + b"\xff" + b"\0"
    assigned = {"topic_partitions": [{"topic_id": topic_id, "partitions": [3]}]}
    assert b"".join(encode(answer | {"assignment": assigned})) == (
        head + b"\1" + b"\x02" + topic_id.bytes + b"\x02" + b"\0\0\0\x03" + b"\0" + b"\0" + b"\0"
    )


@for_each("kind", [REQUEST, RESPONSE])
def test_the_types_of_messages_are_those_of_the_table(kind: str) -> None:
    """`make conf` writes the types of requests and responses from `messages.txt`."""
    assert FILES[kind].read_text(encoding="utf-8") == source(kind)


def test_a_missing_error_text_is_null() -> None:
    def texts(fields: tuple[Field, ...]) -> list[Field]:
        return [f for f in fields if f.name.endswith("error_message")] + [t for f in fields for t in texts(f.fields)]

    for (kind, name), message in messages().items():
        if kind == RESPONSE:
            for field in texts(message.fields):
                assert field.null is not None and (not field.has_default or field.default is None), name
