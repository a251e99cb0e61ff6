"""One blocking connection to a Kafka broker: TLS, SASL, a request at a time.

The broker is not trusted: sizes of responses and times are bounded. After an error in the middle of a response the
connection is closed.
"""

from __future__ import annotations

import socket
import ssl
import time
from typing import Any

from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.deadline import Deadline
from sparklog.client.net.sockets import reason
from sparklog.errors import (
    BrokerNotAvailableError,
    InvalidRequestError,
    RequestTimedOutError,
    SaslAuthenticationFailedError,
    SparklogError,
    UnsupportedSaslMechanismError,
)
from sparklog.kafka.wire.apis import API_VERSIONS
from sparklog.kafka.wire.errors import Kafka
from sparklog.kafka.wire.exchange import SIZE_BYTES, KafkaExchange
from sparklog.security.client_security import ClientSecurity
from sparklog.security.sasl import OAUTHBEARER
from sparklog.security.sasl_client import STEPS_MAX, renewed_after_s, sasl_client
from sparklog.security.tls import client_context, handshake_error
from sparklog.security.token_source import token_source
from sparklog.settings import MIB

CLIENT_ID = "sparklog-mirror"
ELEMENTS_MAX = 300_000
"""Largest number of elements in the lists of a response, such as partitions and their replicas."""
RESPONSE_BYTES_MAX = 64 * MIB
"""Largest response without records."""
HEAD_BYTES_MAX = 4 * MIB
"""Largest size of a fetch response beside its records."""


class KafkaConnection:
    """A connection to one Kafka broker, for one thread."""

    def __init__(self, endpoint: Endpoint, security: ClientSecurity, timeout_ms: int = 30_000) -> None:
        """Connect, negotiate versions and authenticate, all within `timeout_ms`. Raises BrokerNotAvailableError,
        RequestTimedOutError, InvalidConfigError (TLS), SaslAuthenticationFailedError, UnsupportedSaslMechanismError,
        InvalidRequestError (the peer is no Kafka broker)."""
        self.endpoint = endpoint
        self.timeout_ms = timeout_ms
        self.is_closed = False
        self._place = f"the source's broker at {endpoint}"
        self._exchange = KafkaExchange(self._place, CLIENT_ID, ELEMENTS_MAX)
        self._renew_at: float | None = None
        deadline = Deadline(timeout_ms)
        self._socket = self._connected(security, deadline)
        try:
            answer = self.request(API_VERSIONS, {}, timeout_ms=deadline.left_ms())
            if answer["error_code"]:
                raise InvalidRequestError(f"{self._place} refuses to name its versions: error {answer['error_code']}")
            self._authenticate(security, deadline)
        except BaseException:
            self.close()
            raise

    @property
    def is_due(self) -> bool:
        """True if the connection is closed, or its SASL session ends soon."""
        return self.is_closed or (self._renew_at is not None and time.monotonic() >= self._renew_at)

    def has(self, name: str, version: int = 0) -> bool:
        """Return True if the broker and sparklog have the API in this version or a newer one."""
        return self._exchange.has(name, version)

    def request(
        self, name: str, body: dict[str, Any], *, timeout_ms: int | None = None, bytes_max: int = RESPONSE_BYTES_MAX
    ) -> dict[str, Any]:
        """Send a request and return the response. `bytes_max`: largest size of the response. Raises
        BrokerNotAvailableError, RequestTimedOutError, InvalidRequestError, UnsupportedVersionError."""
        frame = self._exchange.encode(name, body)
        deadline = Deadline(self.timeout_ms if timeout_ms is None else timeout_ms)
        try:
            self._socket.settimeout(max(deadline.left_s, 0.001))
            self._socket.sendall(frame)
            size = self._exchange.response_bytes(self._receive(SIZE_BYTES, deadline), bytes_max)
            return self._exchange.decode(memoryview(self._receive(size, deadline)))
        except TimeoutError as e:
            self.close()
            raise RequestTimedOutError(f"{self._place} does not answer {name} in time") from e
        except OSError as e:
            self.close()
            if isinstance(e, ssl.SSLError) and "ALERT" in (e.reason or ""):
                raise handshake_error(e, self._place) from e  # TLS 1.3 refuses a client after the client's handshake
            raise BrokerNotAvailableError(f"the connection to {self._place} broke: {reason(e)}") from e
        except SparklogError:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        self.is_closed = True
        self._socket.close()

    def _receive(self, size: int, deadline: Deadline) -> bytearray:
        data = bytearray(size)
        view, count = memoryview(data), 0
        while count < size:
            if deadline.is_over:
                raise TimeoutError
            self._socket.settimeout(max(deadline.left_s, 0.001))
            more = self._socket.recv_into(view[count:])
            if not more:
                raise ConnectionResetError(f"the connection ended after {count} of {size} bytes")
            count += more
        return data

    def _connected(self, security: ClientSecurity, deadline: Deadline) -> socket.socket:
        try:
            plain = socket.create_connection(self.endpoint, max(deadline.left_s, 0.001))
        except TimeoutError as e:
            raise RequestTimedOutError(f"{self._place} does not accept a connection in time") from e
        except (OSError, UnicodeError) as e:
            raise BrokerNotAvailableError(f"no connection to {self._place}: {reason(e)}") from e
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not security.protocol.tls:
            return plain
        try:
            return client_context(dict(security.tls)).wrap_socket(plain, server_hostname=self.endpoint.host)
        except ssl.SSLError as e:
            plain.close()
            raise handshake_error(e, self._place) from e
        except OSError as e:
            plain.close()
            raise BrokerNotAvailableError(f"no TLS connection to {self._place}: {reason(e)}") from e
        except BaseException:
            plain.close()
            raise

    def _authenticate(self, security: ClientSecurity, deadline: Deadline) -> None:
        if not security.mechanism:
            return
        token = None
        if security.mechanism == OAUTHBEARER:
            token = token_source(security.token_endpoint).token(deadline.left_s)
        begun = time.monotonic()
        client = sasl_client(security, token)
        chosen = self.request("SaslHandshake", {"mechanism": security.mechanism}, timeout_ms=deadline.left_ms())
        if chosen["error_code"]:
            raise UnsupportedSaslMechanismError(
                f"{self._place} does not have the mechanism {security.mechanism}; it has "
                f"{', '.join(repr(m)[:50] for m in chosen['mechanisms'][:20]) or 'none on this listener'}"
            )
        message: bytes | None = client.first()
        for _ in range(STEPS_MAX):
            if message is None:
                return
            answer = self.request("SaslAuthenticate", {"auth_bytes": message}, timeout_ms=deadline.left_ms())
            if answer["error_code"]:
                text = answer["error_message"] or Kafka.SASL_AUTHENTICATION_FAILED.name
                raise SaslAuthenticationFailedError(
                    f"{self._place} refuses the login: {text!r:.500}. Correct it in the file of the source's "
                    "settings (mirror.source.config), which the workers read again"
                )
            lifetime_ms = answer.get("session_lifetime_ms", 0)
            if lifetime_ms > 0:
                self._renew_at = begun + renewed_after_s(lifetime_ms)
            message = client.answer(answer["auth_bytes"])
        raise SaslAuthenticationFailedError(f"{self._place} does not complete the authentication")
