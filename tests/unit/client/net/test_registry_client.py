"""Requests to a schema registry: servers that are slow, large, gone, or no registry at all."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from sparklog.client.net.registry_address import check_trusted, reachable_registries
from sparklog.client.net.registry_client import RegistryClient, parse_registry_url
from sparklog.client.net.registry_subjects import RegistrySubjects
from sparklog.errors import (
    BrokerNotAvailableError,
    InvalidConfigError,
    InvalidRequestError,
    SaslAuthenticationFailedError,
    SparklogError,
)
from sparklog.security.client_security import ClientSecurity
from sparklog.security.listeners import SecurityProtocol
from sparklog.security.secrets import Secret
from tests.support.cases import for_each

CONNECT = socket.create_connection
ALICE = ClientSecurity(SecurityProtocol.SASL_SSL, "SCRAM-SHA-512", "alice", Secret("secret"))


def response(body: object, status: int = 200, headers: str = "") -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\n{headers}\r\n".encode() + data


class Served:
    """A server on this host that answers each request with the next text, and keeps the requests."""

    def __init__(self, sock: socket.socket, answers: list[bytes]) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self._sock = sock
        self._answers = answers
        self.url = f"http://127.0.0.1:{sock.getsockname()[1]}"

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self._sock.accept()
            except OSError:
                return
            self.connections += 1
            with connection:
                while request := connection.recv(65_536):
                    self.requests.append(request)
                    answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
                    connection.sendall(answer)
                    if not answer or b"Connection: close" in answer:
                        break


@contextmanager
def served(*answers: bytes) -> Iterator[Served]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        server = Served(sock, list(answers))
        thread = threading.Thread(target=server.serve)
        thread.start()
        try:
            yield server
        finally:
            sock.shutdown(socket.SHUT_RDWR)
    thread.join()


CASES: list[tuple[bytes, type[SparklogError], str]] = [
    (response(b"<html>hello</html>"), BrokerNotAvailableError, "is no schema registry: its answer is no JSON"),
    (response({"some": "thing"}), BrokerNotAvailableError, "is no schema registry"),
    (response([1, 2]), BrokerNotAvailableError, "is no schema registry"),
    (response(b"[" * 100_000), BrokerNotAvailableError, "no JSON"),
    (response({"message": "busy"}, 503), BrokerNotAvailableError, r"busy \(HTTP 503\)"),
    (response({"message": "slow down"}, 429), BrokerNotAvailableError, "slow down"),
    (response({"message": "no"}, 401), SaslAuthenticationFailedError, "no"),
    (response(b"", 401), SaslAuthenticationFailedError, "refuses the request"),
    (response({"message": "Invalid"}, 422), InvalidRequestError, r"Invalid \(HTTP 422\)"),
    (response(b"", 302, "Location: http://127.0.0.1:1/\r\n"), InvalidConfigError, "redirects requests"),
    (b"SSH-2.0-OpenSSH\r\n", BrokerNotAvailableError, "its answer is no HTTP"),
    (b"", BrokerNotAvailableError, "no HTTP"),
    (
        b"HTTP/1.1 200 X\r\nContent-Length: 10\r\nConnection: close\r\n\r\n[1",
        BrokerNotAvailableError,
        "breaks off",
    ),
]


@for_each("answer, kind, text", CASES)
def test_a_wrong_answer_has_an_error_with_its_reason(answer: bytes, kind: type[SparklogError], text: str) -> None:
    with served(answer) as server, pytest.raises(kind, match=text):
        RegistrySubjects(RegistryClient(server.url)).names()


def test_an_answer_that_never_ends_takes_no_longer_than_the_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        is_over = threading.Event()

        def drip() -> None:
            connection, _ = sock.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 200 X\r\n")
                while not is_over.wait(0.02):
                    try:
                        connection.sendall(b"X: y\r\n")
                    except OSError:
                        return

        thread = threading.Thread(target=drip)
        thread.start()
        begun = time.monotonic()
        try:
            with pytest.raises(BrokerNotAvailableError, match=r"in time|timed out"):
                RegistryClient(f"http://127.0.0.1:{sock.getsockname()[1]}", timeout_s=0.3).ask("GET", ["subjects"])
        finally:
            is_over.set()
            thread.join()
        assert time.monotonic() - begun < 30


def test_a_long_answer_is_refused() -> None:
    with served(response(b"[" + b" " * 2_000 + b"]")) as server:
        client = RegistryClient(server.url, answer_bytes_max=1_000)
        with pytest.raises(BrokerNotAvailableError, match="more than 1,000 bytes"):
            client.ask("GET", ["subjects"])


def test_a_connection_is_kept_and_a_closed_one_is_replaced() -> None:
    with served(response([]), response([]), b"", response([])) as server:
        client = RegistryClient(server.url, idle_max=1)
        for _ in range(2):
            client.ask("GET", ["subjects"])
        assert server.connections == 1
        client.ask("GET", ["subjects"])  # the server has closed the idle connection
        assert (server.connections, len(server.requests)) == (2, 4)
        client.close()


def test_a_change_is_sent_once() -> None:
    with served(b"") as server:
        client = RegistryClient(f"{server.url},{server.url}")
        with pytest.raises(BrokerNotAvailableError):
            client.ask("DELETE", ["subjects", "a"])
        assert len(server.requests) == 1
        with pytest.raises(BrokerNotAvailableError):
            client.ask("GET", ["subjects"])
        assert len(server.requests) == 3, "a question is sent to the next address"


def test_the_next_address_answers_for_one_that_is_down() -> None:
    with served(response(["a"])) as server:
        client = RegistryClient(f"http://127.0.0.1:1, {server.url}/base/")
        assert client.ask("GET", ["subjects", "a/b%"]) == ["a"]
        assert server.requests[0].startswith(b"GET /base/subjects/a%2Fb%25 HTTP/1.1\r\n")
        assert b"uthorization" not in server.requests[0]


def authorization(url: str, security: ClientSecurity, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Return the request's bytes at a server that the client takes for `url`."""
    with served(response([])) as server:
        port = int(server.url.rpartition(":")[2])
        connect: Callable[..., socket.socket] = CONNECT
        monkeypatch.setattr(socket, "create_connection", lambda _, t: connect(("127.0.0.1", port), t))
        RegistryClient(url, security).ask("GET", ["subjects"])
        return server.requests[0]


def test_a_password_is_sent_within_this_host_or_encrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert b"Authorization: Basic YWxpY2U6c2VjcmV0" in authorization("http://127.0.0.1:81", ALICE, monkeypatch)
    assert b"uthorization" not in authorization("http://registry:81", ALICE, monkeypatch)
    plain = ClientSecurity(SecurityProtocol.SASL_PLAINTEXT, "PLAIN", "alice", Secret("secret"))
    assert b"Authorization" in authorization("http://registry:81", plain, monkeypatch), (
        "brokers get it in the clear, too"
    )


def test_an_announced_address_is_one_that_the_client_reaches_and_trusts() -> None:
    announced = ["https://:8081", "http://127.0.0.1:8082", "https://b2:8081"]
    assert reachable_registries(announced, "b1") == ["https://b1:8081", "https://b2:8081"]
    assert reachable_registries(announced, "localhost") == [
        "https://localhost:8081", "http://127.0.0.1:8082", "https://b2:8081"
    ]  # fmt: skip
    assert reachable_registries(["https://:8081"], "::2") == ["https://[::2]:8081"]
    check_trusted(["https://b2:8081"], ALICE)
    open_alice = ClientSecurity(SecurityProtocol.SASL_PLAINTEXT, "SCRAM-SHA-512", "alice", Secret("secret"))
    with pytest.raises(InvalidConfigError, match="not trusted with a password"):
        check_trusted(["https://b2:8081"], open_alice)


def test_addresses_have_parts() -> None:
    one, other = parse_registry_url("https://[::1]/x/,http://b:8081")
    assert (one.is_tls, one.host, one.port, one.path) == (True, "::1", 443, "/x")
    assert (other.is_tls, other.host, other.port, other.path) == (False, "b", 8081, "")
