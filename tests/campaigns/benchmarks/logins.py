"""Logins with SCRAM-SHA-256 over TLS: connections that are made, authenticated and closed, some of them at once.

The client is the same for both systems: the same sockets, TLS context, SCRAM exchange and four requests; the bytes
around them differ. Neither client keeps state between connections, so that each login has 4,096 rounds of hashing and a
full TLS handshake.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from sparklog.errors import error_from_code
from sparklog.protocol.apis import APIS, Api
from sparklog.protocol.base import Message
from sparklog.protocol.codec import decode_error, decode_response, encode
from sparklog.protocol.frames import PREFIX_BYTES, decode_response_prefix, encode_request
from sparklog.protocol.messages import HandshakeRequest
from sparklog.protocol.security_messages import SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest
from sparklog.security.sasl import SCRAM_SHA_256
from sparklog.security.scram import ScramClient
from sparklog.security.secrets import Secret

TIMEOUT_S = 60.0
WARM_UP = 20
_ANSWER_BYTES_MAX = 1024 * 1024


class _Framing:
    """One system's requests, in the order of a login: greet, choose_mechanism, authenticate."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._count = 0

    def _exactly(self, count: int) -> bytes:
        """Receive `count` bytes. Raises EOFError if the broker ends the connection."""
        data = b""
        while len(data) < count:
            more = self._sock.recv(count - len(data))
            if not more:
                raise EOFError(f"the broker has ended the connection after {len(data)} of {count} bytes")
            data += more
        return data


class SparklogFraming(_Framing):
    """HANDSHAKE, SASL_HANDSHAKE, SASL_AUTHENTICATE. Raises the broker's error."""

    def greet(self) -> None:
        self._request(Api.HANDSHAKE, HandshakeRequest("logins", "1"))

    def choose_mechanism(self) -> None:
        self._request(Api.SASL_HANDSHAKE, SaslHandshakeRequest(SCRAM_SHA_256))

    def authenticate(self, token: bytes) -> bytes:
        header = self._request(Api.SASL_AUTHENTICATE, SaslAuthenticateRequest(token))
        return decode_response(Api.SASL_AUTHENTICATE, header, SaslAuthenticateResponse).auth_bytes

    def _request(self, api: Api, message: Message) -> bytes:
        self._count += 1
        self._sock.sendall(encode_request(api, APIS[api].version_max, self._count, encode(message)))
        prefix = decode_response_prefix(self._exactly(PREFIX_BYTES), _ANSWER_BYTES_MAX)
        header = self._exactly(prefix.body_bytes)
        if prefix.error_code:
            raise error_from_code(prefix.error_code, decode_error(header))
        return header


class KafkaFraming(_Framing):
    """ApiVersions 0, SaslHandshake 1, SaslAuthenticate 1: versions without tagged fields. Raises RuntimeError."""

    def greet(self) -> None:
        self._request(18, 0, b"")

    def choose_mechanism(self) -> None:
        name = SCRAM_SHA_256.encode()
        self._request(17, 1, struct.pack(">h", len(name)) + name)

    def authenticate(self, token: bytes) -> bytes:
        body = self._request(36, 1, struct.pack(">i", len(token)) + token)
        (text_bytes,) = struct.unpack_from(">h", body)
        start = 2 + max(text_bytes, 0)
        (size,) = struct.unpack_from(">i", body, start)
        return body[start + 4 : start + 4 + size]

    def _request(self, api: int, version: int, body: bytes) -> bytes:
        """Send a request; returns the answer behind its error code, which is 0."""
        self._count += 1
        client_id = b"logins"
        request = struct.pack(">hhih", api, version, self._count, len(client_id)) + client_id + body
        self._sock.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", self._exactly(4))
        answer = self._exactly(size)
        correlation_id, error_code = struct.unpack_from(">ih", answer)
        if correlation_id != self._count or error_code:
            raise RuntimeError(f"Kafka answers request {self._count} of API {api} with error {error_code}")
        return answer[6:]


Framing = SparklogFraming | KafkaFraming
FRAMINGS: dict[str, Callable[[socket.socket], Framing]] = {"sparklog": SparklogFraming, "kafka": KafkaFraming}


def log_in(framing: Framing, username: str, password: str) -> None:
    """Log in on a secure connection. Raises the framing's errors and SaslAuthenticationFailedError."""
    scram = ScramClient(SCRAM_SHA_256, username, Secret(password))
    framing.greet()
    framing.choose_mechanism()
    proof = scram.respond(framing.authenticate(scram.first()))
    scram.finish(framing.authenticate(proof))


def logins(
    system: str, bootstrap: str, authority: str, username: str, password: str, count: int, at_once: int
) -> dict[str, float]:
    """Log in `count` times with `at_once` threads, after some logins that do not count. `authority`: a PEM
    file."""
    host, _, port = bootstrap.rpartition(":")
    context = ssl.create_default_context(cafile=authority)

    def one(_: int) -> float:
        begun = time.perf_counter()
        with (
            socket.create_connection((host, int(port)), TIMEOUT_S) as plain,
            context.wrap_socket(plain, server_hostname=host) as sock,
        ):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            log_in(FRAMINGS[system](sock), username, password)
        return time.perf_counter() - begun

    with ThreadPoolExecutor(at_once) as pool:
        try:
            list(pool.map(one, range(WARM_UP)))
        except Exception as e:
            raise RuntimeError(f"not one login: {e!r}") from e
        begun = time.perf_counter()
        times = sorted(pool.map(one, range(count)))
        seconds = time.perf_counter() - begun
    found = {"logins": count, "seconds": seconds, "logins_per_s": count / seconds}
    return found | {"median_ms": times[count // 2] * 1e3, "p99_ms": times[int(count * 0.99)] * 1e3}
