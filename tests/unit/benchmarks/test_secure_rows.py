"""The rows with security: logins against scripted peers, and the settings of both brokers. No test measures a time."""

from __future__ import annotations

import contextlib
import ssl
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparklog.errors import SaslAuthenticationFailedError, SparklogError
from sparklog.protocol.frames import PREFIX_BYTES, decode_request_prefix, encode_response
from sparklog.protocol.messages import Api, ErrorBody, HandshakeResponse, decode_request, encode
from sparklog.protocol.security_messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from sparklog.security.sasl import SCRAM_SHA_256
from sparklog.security.scram import ScramServer, make_credential
from sparklog.security.secrets import Secret
from sparklog.security.tls import server_context
from tests.benchmarks import kafka, secure_servers
from tests.benchmarks.context import Context
from tests.benchmarks.logins import KafkaFraming, SparklogFraming, log_in
from tests.benchmarks.processes import MeasurementError

NAME, PASSWORD = "bench", "a password"


class Wire:
    """A socket whose peer answers each request at once."""

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self.sent: list[bytes] = []
        self._answer = answer
        self._unread = b""

    def sendall(self, data: bytes) -> None:
        self.sent.append(data)
        self._unread += self._answer(data)

    def recv(self, count: int) -> bytes:
        count = min(count, 7)  # in pieces, as from a network
        data, self._unread = self._unread[:count], self._unread[count:]
        return data


def scram_server(password: str = PASSWORD) -> ScramServer:
    credential = make_credential(SCRAM_SHA_256, Secret(password))
    return ScramServer(SCRAM_SHA_256, {NAME: credential}.get, b"s" * 32)


def like_sparklog(server: ScramServer) -> Callable[[bytes], bytes]:
    def answer(request: bytes) -> bytes:
        prefix = decode_request_prefix(request, 1_000_000)
        api = Api(prefix.api)
        message = decode_request(prefix.api, prefix.version, request[PREFIX_BYTES:])
        if isinstance(message, SaslAuthenticateRequest):
            body = encode(SaslAuthenticateResponse(0, server.respond(message.auth_bytes, 0).challenge))
        elif isinstance(message, SaslHandshakeRequest):
            assert message.mechanism == SCRAM_SHA_256
            body = encode(SaslHandshakeResponse(0, [SCRAM_SHA_256]))
        else:
            body = encode(HandshakeResponse(1, "c", "1", [], 1_000_000))
        return encode_response(api, 0, prefix.correlation_id, body)

    return answer


def like_kafka(server: ScramServer) -> Callable[[bytes], bytes]:
    def answer(request: bytes) -> bytes:
        size, api, version, correlation_id, name_bytes = struct.unpack_from(">ihhih", request)
        assert size == len(request) - 4
        body = request[14 + name_bytes :]
        if (api, version) == (36, 1):
            assert struct.unpack_from(">i", body)[0] == len(body) - 4
            token = server.respond(body[4:], 0).challenge
            found = struct.pack(">hhi", 0, -1, len(token)) + token + struct.pack(">q", 0)
        elif (api, version) == (17, 1):
            assert body == b"\x00\x0dSCRAM-SHA-256"
            found = struct.pack(">hi", 0, 1) + body
        else:
            assert (api, version, body) == (18, 0, b"")
            found = struct.pack(">hi", 0, 0)
        return struct.pack(">ii", len(found) + 4, correlation_id) + found

    return answer


class TestLogins:
    def test_both_systems_get_the_same_four_requests(self) -> None:
        framings: tuple[Any, ...] = ((SparklogFraming, like_sparklog), (KafkaFraming, like_kafka))
        for framing, peer in framings:
            wire = Wire(peer(scram_server()))
            log_in(framing(wire), NAME, PASSWORD)
            assert len(wire.sent) == 4
            with pytest.raises(SaslAuthenticationFailedError):
                log_in(framing(Wire(peer(scram_server("another")))), NAME, PASSWORD)

    def test_an_error_is_no_login(self) -> None:
        refusals = (
            (struct.pack(">iihh", 8, 1, 58, -1), "request 1 of API 17 with error 58"),
            (struct.pack(">iih", 6, 7, 0), "request 1"),  # the answer to another request
        )
        for answer, message in refusals:
            wire = Wire(lambda _, answer=answer: answer)  # type: ignore[misc]
            with pytest.raises(RuntimeError, match=message):
                KafkaFraming(wire).choose_mechanism()  # type: ignore[arg-type]
        wire = Wire(lambda _: encode_response(Api.SASL_HANDSHAKE, 58, 1, encode(ErrorBody("no"))))
        with pytest.raises(SparklogError):
            SparklogFraming(wire).choose_mechanism()  # type: ignore[arg-type]
        with pytest.raises(EOFError, match="after 2 of 4 bytes"):
            KafkaFraming(Wire(lambda _: b"\0\0")).greet()  # type: ignore[arg-type]


def test_the_certificate_is_good_for_the_measured_address(tmp_path: Path) -> None:
    made = secure_servers.make_certificates(tmp_path / "new")
    server = server_context(secure_servers.sparklog_settings(made, {}))
    client = ssl.create_default_context(cafile=str(made.authority))
    pipes = [ssl.MemoryBIO() for _ in range(2)]
    ours = server.wrap_bio(pipes[0], pipes[1], server_side=True)
    theirs = client.wrap_bio(pipes[1], pipes[0], server_hostname="127.0.0.1")
    waiting = [theirs, ours]
    for _ in range(10):
        for side in list(waiting):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
                waiting.remove(side)
    assert not waiting
    assert theirs.version() == "TLSv1.3"


def test_kafka_gets_the_same_certificate_and_mechanism(tmp_path: Path) -> None:
    made = secure_servers.make_certificates(tmp_path)
    theirs = secure_servers.kafka_settings(made)
    ours = secure_servers.sparklog_settings(made, {"PLAINTEXT": 1, "SSL": 2})
    assert ours["listeners"] == "PLAINTEXT://127.0.0.1:1,SSL://127.0.0.1:2"
    for name in ("ssl.keystore.location", "sasl.enabled.mechanisms", "super.users"):
        assert theirs[name] == ours[name]
    assert f"ssl.keystore.location={made.broker}" in kafka.properties(theirs).splitlines()


def test_a_kafka_that_does_not_start_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    class NeverStarts:
        def __init__(self, *_: object, **__: object) -> None: ...

        def start(self) -> float:
            raise MeasurementError("no")

        def kill(self) -> None:
            ended.append("killed")

    monkeypatch.setattr(secure_servers, "KafkaServer", NeverStarts)
    monkeypatch.setattr(Context, "installation", None)
    with Context(0.01, tmp_path) as context:
        for _ in range(2):
            with pytest.raises(MeasurementError):
                context.kafka(secure_servers.TLS)
        assert ended == ["killed", "killed"]
