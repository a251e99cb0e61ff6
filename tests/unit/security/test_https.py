"""Endpoints of OAUTHBEARER that do not answer as they should."""

from __future__ import annotations

import datetime
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path

import pytest

from sparklog.security.authority import Authority
from sparklog.security.https import fetch


@contextmanager
def endpoint(directory: Path, serve: Callable[[ssl.SSLSocket], None]) -> Iterator[str]:
    """An https address at which one connection is served by `serve`, which may send until the peer has gone."""
    authority = Authority("a CA", datetime.datetime.now(datetime.UTC))
    own = authority.issue("issuer", ["localhost"], datetime.datetime.now(datetime.UTC), broker=True)
    (directory / "ca.pem").write_text(authority.identity.certificate)
    (directory / "own.pem").write_text(own.key.reveal() + own.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "own.pem")
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        with suppress(OSError), context.wrap_socket(listener.accept()[0], server_side=True) as sock:
            sock.recv(65_536)
            serve(sock)

    thread = threading.Thread(target=run)
    thread.start()
    yield f"https://localhost:{listener.getsockname()[1]}/jwks"
    thread.join()
    listener.close()


def trickle(before: bytes, piece: bytes) -> Callable[[ssl.SSLSocket], None]:
    def serve(sock: ssl.SSLSocket) -> None:
        sock.sendall(before)
        while True:
            sock.sendall(piece)
            threading.Event().wait(0.01)

    return serve


def flood(sock: ssl.SSLSocket) -> None:
    sock.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        sock.sendall(bytes(65_536))


@pytest.mark.parametrize(
    "serve",
    [
        trickle(b"", b"H"),
        trickle(b"HTTP/1.1 200 OK\r\nX: ", b"x"),
        trickle(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b"x"),
        trickle(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    ],
    ids=["status", "header", "body", "chunks"],
)
def test_an_answer_that_never_ends_ends(tmp_path: Path, serve: Callable[[ssl.SSLSocket], None]) -> None:
    """Each byte comes in time; the whole does not. The thread that reads keys renews the broker's certificates, too."""
    with endpoint(tmp_path, serve) as url, pytest.raises((OSError, HTTPException)):
        fetch(url, ca_location=str(tmp_path / "ca.pem"), timeout_s=0.5, bytes_max=1 << 20)


def test_an_answer_that_ends_in_the_middle_is_none(tmp_path: Path) -> None:
    """A part of a set of keys, or of a token, must not be taken for the whole."""

    def cut(sock: ssl.SSLSocket) -> None:
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}")

    with endpoint(tmp_path, cut) as url, pytest.raises(ConnectionError, match="ends after 2 bytes, 98 before its end"):
        fetch(url, ca_location=str(tmp_path / "ca.pem"), timeout_s=30, bytes_max=1 << 20)


def test_an_endless_answer_is_read_up_to_its_limit(tmp_path: Path) -> None:
    with endpoint(tmp_path, flood) as url:
        assert len(fetch(url, ca_location=str(tmp_path / "ca.pem"), timeout_s=30, bytes_max=1 << 20)) == 1 << 20
