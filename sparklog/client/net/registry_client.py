"""Requests to a schema registry with Confluent's REST interface, with the user and the authorities of a client.

The user of the brokers logs in to the registry, too: with name and password (Basic), or with a token (Bearer). Over
http:// they are sent to this host only, because SCRAM never sends a password, and HTTP does. Redirects are not
followed: they could lead to a server that must not get the password.
"""

from __future__ import annotations

import base64
import socket
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from sparklog import errors
from sparklog.errors import BrokerNotAvailableError, InvalidConfigError, SparklogError
from sparklog.security.client_security import PLAINTEXT, ClientSecurity
from sparklog.security.listeners import SecurityProtocol, is_local
from sparklog.security.sasl import OAUTHBEARER, PLAIN
from sparklog.security.timed_sockets import TimedSocket, TimedTlsSocket
from sparklog.security.tls import client_context, handshake_error
from sparklog.security.token_source import token_source

ANSWER_BYTES_MAX = 64 * 1024 * 1024
REQUEST_S = 30.0
REASON_CHARS_MAX = 4_000
CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
"""OpenSSL's reasons for an answer that is not TLS."""
_DENIALS: dict[int, type[SparklogError]] = {
    HTTPStatus.UNAUTHORIZED: errors.SaslAuthenticationFailedError,
    HTTPStatus.FORBIDDEN: errors.TopicAuthorizationFailedError,
    HTTPStatus.TOO_MANY_REQUESTS: errors.BrokerNotAvailableError,
}


class RegistryAddress(NamedTuple):
    """The address of a registry."""

    url: str
    """The address without a slash at its end."""
    is_tls: bool
    host: str
    port: int
    path: str
    """Path before the paths of the interface; "" or with a slash at its beginning."""


class Answer(NamedTuple):
    """The answer to a request."""

    status: int
    body: bytes


class _Connection(NamedTuple):
    """An open connection."""

    address: RegistryAddress
    http: HTTPConnection
    sock: TimedSocket | TimedTlsSocket


def parse_registry_url(text: str) -> list[RegistryAddress]:
    """Return the addresses in a text, separated by commas: several gateways of a cluster serve one registry. Raises
    InvalidConfigError."""
    addresses = [_address(part.strip()) for part in text.split(",") if part.strip()]
    if not addresses:
        raise InvalidConfigError("the address of the schema registry is empty: write http://HOST:PORT")
    return addresses


def _address(url: str) -> RegistryAddress:
    form = "write the address of a schema registry as http://HOST:PORT or https://HOST:PORT"
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname or ""
        host.encode("idna")
    except ValueError as e:
        raise InvalidConfigError(f"{url!r}: {e}; {form}") from None
    if parts.username is not None or parts.password is not None:
        shown = url.replace(f"{parts.netloc.rpartition('@')[0]}@", "…@")
        raise InvalidConfigError(
            f"{shown}: the user and the password belong in the client's settings, not in the address"
        )
    is_plain = url.isprintable() and " " not in url and not parts.query and not parts.fragment
    if parts.scheme not in ("http", "https") or not host or port == 0 or not is_plain:
        raise InvalidConfigError(f"{url!r}: {form}")
    is_tls = parts.scheme == "https"
    return RegistryAddress(url.rstrip("/"), is_tls, host, port or (443 if is_tls else 80), parts.path.rstrip("/"))


class RegistryClient:
    """A client of a registry, for any thread."""

    def __init__(
        self,
        url: str,
        security: ClientSecurity | None = None,
        *,
        timeout_s: float = REQUEST_S,
        answer_bytes_max: int = ANSWER_BYTES_MAX,
        idle_max: int = 0,
    ) -> None:
        """`security`: the user, and the authorities of https; None: no login, and the authorities of the system.
        `timeout_s`: longest time for one request. `idle_max`: largest number of connections that are kept until
        `close`. Raises InvalidConfigError."""
        self._addresses = parse_registry_url(url)
        self._security = security or PLAINTEXT
        self._timeout_s = timeout_s
        self._answer_bytes_max = answer_bytes_max
        self._context: ssl.SSLContext | None = None
        if any(address.is_tls for address in self._addresses):
            self._context = client_context(dict(self._security.tls))
            self._context.sslsocket_class = TimedTlsSocket
        self._idle_max = idle_max
        self._idle: list[_Connection] = []
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """The addresses of the registry, separated by commas."""
        return ",".join(address.url for address in self._addresses)

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.http.close()

    # -- requests

    def ask(self, method: str, path: Sequence[str], query: Mapping[str, str] | None = None, body: object = None) -> Any:
        """Send a request and return the answer's value. `path`: parts that are not quoted. Raises SparklogError, for a
        refusal with the registry's reason."""
        answer = self.exchange(method, path, query, body)
        if answer.status >= HTTPStatus.MULTIPLE_CHOICES:
            raise self.refusal(answer)
        return self._value(answer)

    def find(self, path: Sequence[str], query: Mapping[str, str] | None = None) -> Any:
        """Return the value of a path; None if the registry does not have what the path names. Raises SparklogError."""
        answer = self.exchange("GET", path, query)
        if answer.status == HTTPStatus.NOT_FOUND:
            self._check_missing(answer)
            return None
        if answer.status >= HTTPStatus.MULTIPLE_CHOICES:
            raise self.refusal(answer)
        return self._value(answer)

    def _check_missing(self, answer: Answer) -> None:
        """Raise BrokerNotAvailableError for an answer that is not the registry's own: a proxy before it can have a page
        of its own for paths without a server."""
        value = self._value(answer)
        if not isinstance(value, dict) or not isinstance(value.get("error_code"), int):
            raise BrokerNotAvailableError(
                f"the server at {self.url} is no schema registry: its answer (HTTP {answer.status}) has no error_code"
            )

    def exchange(
        self, method: str, path: Sequence[str], query: Mapping[str, str] | None = None, body: object = None
    ) -> Answer:
        """Send a request and return the answer. Raises BrokerNotAvailableError without an answer; InvalidConfigError
        for certificates and tokens; SaslAuthenticationFailedError from the endpoint of tokens."""
        end_s = time.monotonic() + self._timeout_s
        target = "/" + "/".join(quote(part, safe="") for part in path) + (f"?{urlencode(query)}" if query else "")
        data = None if body is None else msgspec.json.encode(body)
        if method == "GET":
            while (idle := self._take()) is not None:
                try:
                    return self._send(idle, method, target, data, end_s)
                except (OSError, HTTPException):  # the registry has closed the idle connection
                    if time.monotonic() >= end_s:
                        raise self._unavailable(idle.address, TimeoutError("timed out")) from None
        return self._send_over_new_connection(method, target, data, end_s)

    def _send_over_new_connection(self, method: str, target: str, data: bytes | None, end_s: float) -> Answer:
        """Send a request over a new connection to the first address that answers. A change is sent only once."""
        failure: SparklogError | None = None
        for number, address in enumerate(self._addresses):
            now_s = time.monotonic()
            part_end_s = now_s + (end_s - now_s) / (len(self._addresses) - number)
            connection = None
            try:
                connection = self._connect(address, part_end_s)
                return self._send(connection, method, target, data, part_end_s)
            except ssl.SSLError as e:
                failure = self._tls_error(address, e)
            except (OSError, HTTPException, ValueError) as e:
                failure = self._unavailable(address, e)
            if connection is not None and method != "GET":
                break
        assert failure is not None
        raise failure

    def _connect(self, address: RegistryAddress, end_s: float) -> _Connection:
        plain = socket.create_connection((address.host, address.port), max(end_s - time.monotonic(), 0.001))
        sock: TimedSocket | TimedTlsSocket = TimedSocket(plain.family, plain.type, plain.proto, fileno=plain.detach())
        try:
            sock.settimeout(max(end_s - time.monotonic(), 0.001))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.is_tls:
                assert self._context is not None
                secured = self._context.wrap_socket(sock, server_hostname=address.host)
                assert isinstance(secured, TimedTlsSocket)
                sock = secured
        except BaseException:
            sock.close()
            raise
        http = HTTPConnection(address.host, address.port)
        http.sock = sock
        return _Connection(address, http, sock)

    def _send(self, connection: _Connection, method: str, target: str, data: bytes | None, end_s: float) -> Answer:
        """Send a request over a connection, and keep the connection if it can have another one. Raises OSError,
        HTTPException."""
        http, sock, address = connection.http, connection.sock, connection.address
        is_kept = False
        try:
            sock.end_s = end_s
            sock.settimeout(max(end_s - time.monotonic(), 0.001))
            headers = {"Content-Type": CONTENT_TYPE, "Accept": f"{CONTENT_TYPE}, application/json"}
            headers |= self._login(address, end_s)
            http.request(method, address.path + target, data, headers)
            response = http.getresponse()
            body = _read(response, address.url, self._answer_bytes_max)
            is_kept = response.isclosed() and http.sock is not None
            return Answer(response.status, body)
        finally:
            if not is_kept or not self._keep(connection):
                http.close()

    def _login(self, address: RegistryAddress, end_s: float) -> dict[str, str]:
        """Return the header with the user's password or token; no header without a user, and where the password would
        be sent without encryption."""
        security = self._security
        if not security.mechanism or not self._may_log_in(address):
            return {}
        if security.mechanism == OAUTHBEARER:
            token = token_source(security.token_endpoint).token(max(end_s - time.monotonic(), 0.001)).reveal()
            if not (token.isascii() and token.isprintable()) or " " in token:
                raise InvalidConfigError("the token for the schema registry has characters that no token has")
            return {"Authorization": f"Bearer {token}"}
        if ":" in security.username:
            raise InvalidConfigError(
                f"user {security.username!r} cannot log in to a schema registry: its name has a ':'"
            )
        pair = f"{security.username}:{security.password.reveal()}"
        return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}

    def _may_log_in(self, address: RegistryAddress) -> bool:
        """Return True if the password may be sent: encrypted, within this host, or as it is sent to the brokers."""
        is_open = self._security.protocol is SecurityProtocol.SASL_PLAINTEXT
        is_open = is_open and self._security.mechanism in (PLAIN, OAUTHBEARER)
        return address.is_tls or is_local(address.host) or is_open

    # -- idle connections

    def _take(self) -> _Connection | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _keep(self, connection: _Connection) -> bool:
        with self._lock:
            if len(self._idle) >= self._idle_max:
                return False
            self._idle.append(connection)
            return True

    # -- errors

    def refusal(self, answer: Answer) -> SparklogError:
        """Return the error for an answer that is a refusal."""
        status = answer.status
        if status < HTTPStatus.BAD_REQUEST:
            return InvalidConfigError(f"{self.url} redirects requests (HTTP {status}): use the address of the registry")
        try:
            message = str(msgspec.json.decode(answer.body)["message"])
        except (msgspec.DecodeError, UnicodeError, RecursionError, KeyError, TypeError):
            message = answer.body[:200].decode(errors="replace").strip() or "the registry refuses the request"
        if status == HTTPStatus.UNAUTHORIZED:
            if self._security.mechanism == OAUTHBEARER:
                token_source(self._security.token_endpoint).forget()
            if self._security.mechanism and not all(map(self._may_log_in, self._addresses)):
                message += "; the password is not sent over http:// to another host: use https://"
        is_fault = status >= HTTPStatus.INTERNAL_SERVER_ERROR
        kind = BrokerNotAvailableError if is_fault else _DENIALS.get(status, errors.InvalidRequestError)
        return kind(f"{message[:REASON_CHARS_MAX]} (HTTP {status})")

    def _value(self, answer: Answer) -> Any:
        try:
            return msgspec.json.decode(answer.body)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            raise BrokerNotAvailableError(
                f"the server at {self.url} is no schema registry: its answer is no JSON"
            ) from None

    def _unavailable(self, address: RegistryAddress, error: Exception) -> BrokerNotAvailableError:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if isinstance(error, HTTPException | ConnectionResetError) and not address.is_tls:
            reason = f"its answer is no HTTP ({type(error).__name__}); is it https://?"
        return BrokerNotAvailableError(f"the schema registry at {address.url} does not answer: {reason}")

    def _tls_error(self, address: RegistryAddress, error: ssl.SSLError) -> SparklogError:
        if error.reason in _NO_TLS:
            return InvalidConfigError(f"the server at {address.url} does not speak TLS: is it http://?")
        return handshake_error(error, f"the schema registry at {address.url}")


def _read(response: HTTPResponse, url: str, bytes_max: int) -> bytes:
    """Return the body of an answer. Raises BrokerNotAvailableError if it is too long, OSError if it breaks off."""
    body = bytearray()
    while piece := response.read(1024 * 1024):
        body += piece
        if len(body) > bytes_max:
            raise BrokerNotAvailableError(f"the answer of {url} has more than {bytes_max:,} bytes")
    if response.length:
        raise ConnectionError(f"the answer breaks off after {len(body)} bytes")
    return bytes(body)
