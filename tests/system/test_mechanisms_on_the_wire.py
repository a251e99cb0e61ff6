"""Downgrades and replays against a real broker, frame by frame."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from sparklog import Admin
from sparklog.client.net.addresses import parse_bootstrap
from sparklog.errors import SaslAuthenticationFailedError, UnsupportedSaslMechanismError
from sparklog.protocol import frames
from sparklog.protocol.apis import APIS, Api
from sparklog.protocol.codec import decode_response, encode
from sparklog.protocol.security_messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
)
from sparklog.protocol.topic_messages import MetadataRequest
from sparklog.security.scram import ScramClient
from sparklog.security.secrets import Secret
from tests.system.secure_broker import PASSWORD, SecureBroker


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    broker = SecureBroker(
        tmp_path_factory.mktemp("mechanisms"),
        more='sasl.enabled.mechanisms = "SCRAM-SHA-512,SCRAM-SHA-256"\n'
        'listener.name.both.sasl.enabled.mechanisms = "SCRAM-SHA-512,SCRAM-SHA-256,PLAIN"\n'
        "connection.failed.authentication.delay.ms = 10",
    )
    with Admin(broker.addresses["LOCAL"]) as admin:
        admin.set_user_password("alice", PASSWORD)
    yield broker
    assert broker.stop() == 0, broker.process.stderr


class Wire:
    """Frames to a listener, in any order."""

    def __init__(self, address: str) -> None:
        self._sock = socket.create_connection(parse_bootstrap(address)[0], 20)
        self.challenge = b""

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def send(self, api: Api, message: Any) -> int | None:
        """The answer's error code; None: the connection has ended."""
        with contextlib.suppress(ConnectionError):
            self._sock.sendall(frames.encode_request(api, APIS[api].version_max, 1, encode(message)))
            answer = self._sock.recv(frames.PREFIX_BYTES, socket.MSG_WAITALL)
            if len(answer) == frames.PREFIX_BYTES:
                prefix = frames.decode_response_prefix(answer, 1 << 20)
                body = self._sock.recv(prefix.body_bytes, socket.MSG_WAITALL)
                if api is Api.SASL_AUTHENTICATE and not prefix.error_code:
                    self.challenge = decode_response(api, body, SaslAuthenticateResponse).auth_bytes
                return prefix.error_code
        return None


def test_plain_on_a_listener_without_tls_is_refused_on_the_wire(secure: SecureBroker) -> None:
    """Also with the right password, with another mechanism's name before it, and with none."""
    token = SaslAuthenticateRequest(b"\0alice\0" + PASSWORD.encode())
    metadata = MetadataRequest()
    with Wire(secure.addresses["SASL"]) as wire:
        assert wire.send(Api.SASL_HANDSHAKE, SaslHandshakeRequest("PLAIN")) == UnsupportedSaslMechanismError.code
        assert wire.send(Api.SASL_AUTHENTICATE, token) is None
    with Wire(secure.addresses["SASL"]) as wire:
        assert wire.send(Api.SASL_HANDSHAKE, SaslHandshakeRequest("SCRAM-SHA-512")) == 0
        assert wire.send(Api.SASL_AUTHENTICATE, token) == SaslAuthenticationFailedError.code
        assert wire.send(Api.METADATA, metadata) is None
    with Wire(secure.addresses["SASL"]) as wire:
        assert wire.send(Api.SASL_AUTHENTICATE, token) not in (0, None)
        assert wire.send(Api.METADATA, metadata) is None


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_recorded_login_opens_no_other_connection(secure: SecureBroker, mechanism: str) -> None:
    client = ScramClient(mechanism, "alice", Secret(PASSWORD))
    first = SaslAuthenticateRequest(client.first())
    with Wire(secure.addresses["SASL"]) as wire:
        assert wire.send(Api.SASL_HANDSHAKE, SaslHandshakeRequest(mechanism)) == 0
        assert wire.send(Api.SASL_AUTHENTICATE, first) == 0
        proof = SaslAuthenticateRequest(client.respond(wire.challenge))
        assert wire.send(Api.SASL_AUTHENTICATE, proof) == 0
        client.finish(wire.challenge)
        assert wire.send(Api.METADATA, MetadataRequest()) == 0
    with Wire(secure.addresses["SASL"]) as wire:
        assert wire.send(Api.SASL_HANDSHAKE, SaslHandshakeRequest(mechanism)) == 0
        assert wire.send(Api.SASL_AUTHENTICATE, first) == 0, "there is a new nonce"
        assert wire.send(Api.SASL_AUTHENTICATE, proof) == SaslAuthenticationFailedError.code
        assert wire.send(Api.METADATA, MetadataRequest()) is None
