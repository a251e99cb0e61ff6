"""Requests that are refused by name: too many entries, versions that are not served, damaged and too large ones."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from sparklog.gateway.gateway import Gateway
from sparklog.gateway.handlers.names import UNNAMED, missing_code
from sparklog.gateway.limits import Limits
from sparklog.gateway.registry import served_apis
from sparklog.gateway.server import GatewayServer
from sparklog.gateway.session import ServedApi, Session
from sparklog.kafka.wire import codec, error_answers
from sparklog.kafka.wire.apis import API_VERSIONS, Api
from sparklog.kafka.wire.codec import Body, decoder, encoder, partial_decoder
from sparklog.kafka.wire.error_answers import encoded_refusal, refusal_bytes
from sparklog.kafka.wire.errors import Kafka
from sparklog.kafka.wire.schema import REQUEST, RESPONSE, messages
from sparklog.security.listeners import SecurityProtocol
from tests.support.cases import for_each
from tests.support.kafka_bodies import TOPIC, long_bodies, plain_body
from tests.unit.gateway.served import answer, framed, with_apis

APIS = [served.api for served in served_apis().values()]
VERSIONS = [
    (api.name, version)
    for api in APIS
    for first, last in [messages()[REQUEST, api.name].versions]
    for version in range(first, last + 1)
]
ENTRIES = 20
"""Entries in the long requests of these tests, whose limit is smaller."""


def test_a_partition_that_was_not_looked_up_has_the_error_of_its_name_or_id() -> None:
    """A client ends its attempts for a name that no topic can have, and asks again in the other cases."""
    assert missing_code("a/b") == Kafka.INVALID_TOPIC_EXCEPTION
    assert missing_code("t") == missing_code("t", UUID(int=1)) == Kafka.UNKNOWN_TOPIC_OR_PARTITION
    assert missing_code(UNNAMED, UUID(int=1)) == Kafka.UNKNOWN_TOPIC_ID
    assert missing_code(UNNAMED) == Kafka.INVALID_TOPIC_EXCEPTION


def codes_in(body: Any) -> Iterator[int]:
    """Yield all error codes of an answer."""
    if isinstance(body, dict):
        for name, value in body.items():
            if name.endswith("error_code") and name != "topic_config_error_code":
                yield value
            else:
                yield from codes_in(value)
    elif isinstance(body, list):
        for value in body:
            yield from codes_in(value)


def encoded(name: str, version: int, body: Body) -> memoryview:
    return memoryview(b"".join(bytes(part) for part in encoder(REQUEST, name, version)(body)))


def refused(name: str, version: int, data: memoryview, code: Kafka = Kafka.UNSUPPORTED_VERSION) -> Body | None:
    """Return the decoded answer to a refused request; None: there is none."""
    parts = encoded_refusal(name, version, data, code, "a reason")
    if parts is None:
        return None
    whole = b"".join(bytes(part) for part in parts)
    assert len(whole) <= refusal_bytes(len(data)) + 64, "the memory that is held for it is enough"
    return decoder(RESPONSE, name, version)(memoryview(whole))


@for_each("case", VERSIONS, ids=lambda c: f"{c[0]}-{c[1]}")
def test_every_version_has_an_answer_with_the_error(case: tuple[str, int]) -> None:
    name, version = case
    body = refused(name, version, encoded(name, version, plain_body(name, version)))
    assert body is not None
    codes = list(codes_in(body))
    assert Kafka.UNSUPPORTED_VERSION in codes
    if name in ("Fetch", "Metadata") and "error_code" in body:
        assert body["error_code"] == Kafka.NONE, "Java clients repeat the request after an error of the answer"
    else:
        assert set(codes) == {Kafka.UNSUPPORTED_VERSION}


def test_entries_have_the_names_of_the_request() -> None:
    body = refused("Produce", 0, encoded("Produce", 0, plain_body("Produce", 0)))
    partition = {"index": 0, "error_code": Kafka.UNSUPPORTED_VERSION, "base_offset": -1}
    assert body == {"responses": [{"name": TOPIC, "partition_responses": [partition]}]}
    body = refused("FindCoordinator", 4, encoded("FindCoordinator", 4, plain_body("FindCoordinator", 4)))
    assert body is not None and body["coordinators"][0]["key"] == TOPIC
    assert body["coordinators"][0]["error_message"] == "a reason"
    body = refused("DeleteTopics", 1, encoded("DeleteTopics", 1, plain_body("DeleteTopics", 1)))
    assert body is not None and [one["name"] for one in body["responses"]] == [TOPIC]


@for_each("api", APIS, ids=lambda api: str(api.name))
def test_long_lists_of_any_depth_are_refused_by_name(api: Api) -> None:
    for version in sorted({api.first, api.last}):
        for path, long in long_bodies(api.name, version, ENTRIES):
            body = refused(api.name, version, encoded(api.name, version, long), Kafka.INVALID_REQUEST)
            assert body is not None, path
            codes = set(codes_in(body)) - {Kafka.NONE}
            assert codes == {Kafka.INVALID_TOPIC_EXCEPTION if api.name == "Metadata" else Kafka.INVALID_REQUEST}, path


def test_the_answer_names_all_entries_up_to_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def answered(entries: int) -> list[int]:
        partitions = [{**plain["topics"][0]["partitions"][0], "partition": i} for i in range(entries)]
        long = {**plain, "topics": [{"topic": TOPIC, "partitions": partitions}]}
        body = refused("Fetch", 11, encoded("Fetch", 11, long), Kafka.INVALID_REQUEST)
        assert body is not None
        return [p["partition_index"] for p in body["responses"][0]["partitions"]]

    plain = plain_body("Fetch", 11)
    monkeypatch.setattr(error_answers, "REFUSED_ENTRIES_MAX", ENTRIES)
    assert answered(ENTRIES - 1) == list(range(ENTRIES - 1))
    assert answered(ENTRIES + 5) == list(range(ENTRIES - 1)), "the topic is an entry, too"


def test_a_damaged_request_is_answered_as_far_as_it_can_be_read() -> None:
    long = dict(long_bodies("ListOffsets", 5, ENTRIES))["topics"]
    data = encoded("ListOffsets", 5, long)
    body = refused("ListOffsets", 5, data[:-1], Kafka.INVALID_REQUEST)
    assert body is not None and len(body["topics"]) == ENTRIES - 1, "the last partition is not complete"
    assert refused("ListOffsets", 5, data[:9], Kafka.INVALID_REQUEST) is None, "there is no place for an error"
    assert refused("Heartbeat", 0, data[:1], Kafka.INVALID_REQUEST) == {"error_code": Kafka.INVALID_REQUEST}


def test_no_answer_is_sent_that_the_client_does_not_expect() -> None:
    unanswered = plain_body("Produce", 8) | {"acks": 0}
    assert refused("Produce", 8, encoded("Produce", 8, unanswered)) is None
    assert refused("Produce", 8, memoryview(b"\xff\xff\0")) is None, "acks is cut off"


# -- with a connection


async def handler(session: Session, request: Body, version: int) -> Body:
    """Answer any request as if it were ApiVersions."""
    return {"error_code": 0, "api_keys": []}


def run(body: Any, **limits: Any) -> None:
    apis = {number: ServedApi(served.api, handler) for number, served in served_apis().items()}
    with_apis(body, apis, Limits(**limits), SecurityProtocol.PLAINTEXT)


def request_of(name: str, version: int, body: Body) -> bytes:
    message = messages()[REQUEST, name]
    head = struct.pack(">hhih", message.api_key, version, 7, -1) + (b"\0" if message.is_flexible(version) else b"")
    return framed(head + bytes(encoded(name, version, body)))


def codes_of(name: str, version: int, data: bytes) -> set[int]:
    """Return the error codes of an answer with its head."""
    is_tagged = name != API_VERSIONS and messages()[REQUEST, name].is_flexible(version)
    decode = partial_decoder(RESPONSE, name, version)
    return set(codes_in(decode(memoryview(data)[5 if is_tagged else 4 :], len(data))))


def test_the_connection_stays_open_after_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(server: GatewayServer, gateway: Gateway, connect: Any) -> None:
        reader, writer = await connect()
        for name, version, code, sent in (
            ("Produce", 0, Kafka.UNSUPPORTED_VERSION, plain_body("Produce", 0)),
            ("Produce", 2, Kafka.UNSUPPORTED_VERSION, plain_body("Produce", 2)),
            ("ListOffsets", 10, Kafka.UNSUPPORTED_VERSION, plain_body("ListOffsets", 10)),
            ("SaslHandshake", 0, Kafka.UNSUPPORTED_VERSION, plain_body("SaslHandshake", 0)),
            ("Produce", 9, Kafka.INVALID_REQUEST, dict(long_bodies("Produce", 9, ENTRIES))["topic_data"]),
            ("SyncGroup", 5, Kafka.INVALID_REQUEST, dict(long_bodies("SyncGroup", 5, ENTRIES))["assignments"]),
        ):
            writer.write(request_of(name, version, sent))
            assert codes_of(name, version, await answer(reader)) == {code}, (name, version)
        writer.write(framed(struct.pack(">hhih", 18, 0, 7, -1)))
        assert (await answer(reader))[:4] == b"\0\0\0\7"
        assert gateway.memory.used_bytes == 0
        writer.close()

    monkeypatch.setattr(codec, "ELEMENTS_MAX", ENTRIES - 1)
    run(body)


def test_a_request_that_is_too_large_is_refused_after_its_bytes_are_passed_over() -> None:
    async def body(server: GatewayServer, gateway: Gateway, connect: Any) -> None:
        reader, writer = await connect()
        large = plain_body("Produce", 9)
        large["topic_data"][0]["partition_data"][0]["records"] = [bytes(3_000_000)]
        assignment = {"member_id": "m", "assignment": bytes(2_000_000)}
        synced = plain_body("SyncGroup", 0) | {"assignments": [assignment]}
        for name, version, sent in (("Produce", 9, large), ("SyncGroup", 0, synced)):
            writer.write(request_of(name, version, sent))
            assert codes_of(name, version, await answer(reader)) == {Kafka.MESSAGE_TOO_LARGE}
        writer.write(framed(struct.pack(">hhih", 18, 0, 7, -1)))
        assert await answer(reader)
        writer.close()

    run(body, request_bytes=2_500_000, other_request_bytes=1_000_000)


@for_each(
    "data",
    [
        struct.pack(">hhih", 0, 99, 7, -1) + bytes(50),
        struct.pack(">hhih", 77, 0, 7, -1),
        struct.pack(">hhih", 3, 0, 7, 300),
        struct.pack(">hhih", 3, 1, 7, -1),
        struct.pack(">hhih", 0, 2, 7, -1) + bytes(6),
        b"\0\3",
    ],
    ids=["an unknown version", "an unknown API", "half a head", "no place for an error", "no acks", "no head"],
)
def test_the_connection_ends_if_no_answer_is_possible(data: bytes) -> None:
    async def body(server: GatewayServer, gateway: Gateway, connect: Any) -> None:
        reader, writer = await connect()
        writer.write(framed(data))
        assert await answer(reader) == b""
        writer.close()

    run(body)


def test_one_request_is_refused_at_a_time() -> None:
    async def body(server: GatewayServer, gateway: Gateway, connect: Any) -> None:
        streams = [await connect() for _ in range(8)]
        for _, writer in streams:
            writer.write(request_of("Produce", 0, dict(long_bodies("Produce", 0, 2_000))["topic_data"]))
        for reader, writer in streams:
            assert codes_of("Produce", 0, await answer(reader)) == {Kafka.UNSUPPORTED_VERSION}
            writer.close()
        await asyncio.sleep(0)

    run(body, list_bytes=1_000, unread_bytes=1_000)
