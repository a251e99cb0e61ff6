"""The rows with security: what a login sends and refuses, and what both brokers are told. Nothing is timed here."""

from __future__ import annotations

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
from sparklog.security.scram import ScramServer, UnknownUsers, make_credential
from sparklog.security.secrets import Secret
from sparklog.security.tls import server_context
from tests.benchmarks import kafka, secure_servers
from tests.benchmarks.context import Context
from tests.benchmarks.logins import Framing, KafkaFraming, SparklogFraming, log_in
from tests.benchmarks.processes import MeasurementError
from tests.benchmarks.rows import select

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
    return ScramServer(SCRAM_SHA_256, {NAME: credential}.get, UnknownUsers(SCRAM_SHA_256, b"s" * 32))


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
    @pytest.mark.parametrize(("framing", "peer"), [(SparklogFraming, like_sparklog), (KafkaFraming, like_kafka)])
    def test_both_systems_are_asked_the_same_four_things(
        self,
        framing: Callable[[Any], Framing],
        peer: Callable[[ScramServer], Callable[[bytes], bytes]],
    ) -> None:
        wire = Wire(peer(scram_server()))
        log_in(framing(wire), NAME, PASSWORD)
        assert len(wire.sent) == 4
        with pytest.raises(SaslAuthenticationFailedError):
            log_in(framing(Wire(peer(scram_server("another")))), NAME, PASSWORD)

    def test_an_error_of_kafka_is_no_login(self) -> None:
        wire = Wire(lambda _: struct.pack(">iihh", 8, 1, 58, -1))
        with pytest.raises(RuntimeError, match="request 1 of API 17 with error 58"):
            KafkaFraming(wire).choose_mechanism()  # type: ignore[arg-type]

    def test_another_requests_answer_is_refused(self) -> None:
        wire = Wire(lambda _: struct.pack(">iih", 6, 7, 0))
        with pytest.raises(RuntimeError, match="request 1"):
            KafkaFraming(wire).greet()  # type: ignore[arg-type]

    def test_an_error_of_ours_is_raised(self) -> None:
        wire = Wire(lambda _: encode_response(Api.SASL_HANDSHAKE, 58, 1, encode(ErrorBody("no"))))
        with pytest.raises(SparklogError):
            SparklogFraming(wire).choose_mechanism()  # type: ignore[arg-type]

    def test_a_broker_that_ends_the_connection(self) -> None:
        with pytest.raises(EOFError, match="after 2 of 4 bytes"):
            KafkaFraming(Wire(lambda _: b"\0\0")).greet()  # type: ignore[arg-type]


class TestServers:
    def test_the_certificate_is_good_for_the_address_that_is_measured(self, tmp_path: Path) -> None:
        made = secure_servers.make_certificates(tmp_path / "new")
        server = server_context(secure_servers.sparklog_settings(made, {}))
        client = ssl.create_default_context(cafile=str(made.authority))
        pipes = [ssl.MemoryBIO() for _ in range(2)]
        ours = server.wrap_bio(pipes[0], pipes[1], server_side=True)
        theirs = client.wrap_bio(pipes[1], pipes[0], server_hostname="127.0.0.1")
        waiting = [theirs, ours]
        for _ in range(10):
            for side in list(waiting):
                try:
                    side.do_handshake()
                    waiting.remove(side)
                except ssl.SSLWantReadError:
                    pass
        assert not waiting
        assert theirs.version() == "TLSv1.3"

    def test_kafka_is_told_of_the_same_certificate_and_mechanism(self, tmp_path: Path) -> None:
        made = secure_servers.make_certificates(tmp_path)
        theirs = secure_servers.kafka_settings(made)
        ours = secure_servers.sparklog_settings(made, {"PLAINTEXT": 1, "SSL": 2})
        assert ours["listeners"] == "PLAINTEXT://127.0.0.1:1,SSL://127.0.0.1:2"
        for name in ("ssl.keystore.location", "sasl.enabled.mechanisms", "super.users"):
            assert theirs[name] == ours[name]
        lines = kafka.properties(theirs).splitlines()
        assert f"ssl.keystore.location={made.broker}" in lines
        assert len(lines) == len(theirs)

    def test_the_rows(self) -> None:
        rows = {row.name: row for row in select(["security"])}
        assert {name for name, row in rows.items() if row.goal is None} == {
            "security-tls-cost-produce",
            "security-tls-cost-consume",
        }
        assert {row.goal.ratio for row in rows.values() if row.peer == "Kafka" and row.goal is not None} == {1, 2}


class TestAFailedStart:
    def test_kafka_is_not_left_running(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        ended: list[str] = []

        class NeverStarts:
            def __init__(self, *_: object) -> None: ...

            def start(self) -> float:
                raise MeasurementError("no")

            def kill(self) -> None:
                ended.append("killed")

        monkeypatch.setattr(secure_servers, "SecureKafka", NeverStarts)
        monkeypatch.setattr(Context, "installation", None)
        with Context(0.01, tmp_path) as context:
            for _ in range(2):
                with pytest.raises(MeasurementError):
                    secure_servers.secure_kafka(context)
            assert ended == ["killed", "killed"]
