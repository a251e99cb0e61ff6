"""Frames: shape, limits."""

from __future__ import annotations

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.errors import FrameTooLargeError, InvalidRequestError
from sparklog.protocol import frames as f
from sparklog.protocol.local_socket import enlarge_send_buffer
from tests.support.cases import for_each

LIMIT = 1 << 20
DECODERS = [f.decode_request_prefix, f.decode_response_prefix]


def test_request_round_trip() -> None:
    data = f.encode_request(4, 2, 2**32 - 1, b"head", 10)
    assert data[4:] == struct.pack("<HHII", 4, 2, 2**32 - 1, 4) + b"head"
    assert f.decode_request_prefix(data, LIMIT) == f.RequestPrefix(4, 2, 2**32 - 1, 4, 14)
    assert struct.unpack_from("<I", data)[0] == len(data) + 10 - 4


def test_response_round_trip() -> None:
    data = f.encode_response(4, -1, 0, b"", 0)
    assert f.decode_response_prefix(data, LIMIT) == f.ResponsePrefix(4, -1, 0, 0, 0)
    data = f.encode_response(5, 29, 7, b"head", 3)
    assert f.decode_response_prefix(memoryview(data), LIMIT) == f.ResponsePrefix(5, 29, 7, 4, 7)


@for_each("decode", DECODERS)
@for_each("size", range(f.PREFIX_BYTES))
def test_too_few_bytes(decode: object, size: int) -> None:
    with pytest.raises(InvalidRequestError, match="begins with 16 bytes"):
        decode(f.encode_request(1, 0, 0, b"")[:size], LIMIT)  # type: ignore[operator]


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize(
    ("length", "header_bytes", "error"),
    [
        (LIMIT + 1, 0, FrameTooLargeError),
        (2**32 - 1, 0, FrameTooLargeError),
        (11, 0, InvalidRequestError),
        (0, 0, InvalidRequestError),
        (12, 1, InvalidRequestError),
        (100, 89, InvalidRequestError),
        (100, 2**32 - 1, InvalidRequestError),
    ],
)
def test_impossible_lengths(decode: object, length: int, header_bytes: int, error: type[Exception]) -> None:
    with pytest.raises(error) as e:
        decode(f.PREFIX.pack(length, 1, 0, 0, header_bytes), LIMIT)  # type: ignore[operator]
    assert type(e.value) is error
    assert str(length) in str(e.value)


@pytest.mark.parametrize("decode", DECODERS)
def test_largest_lengths(decode: object) -> None:
    assert decode(f.PREFIX.pack(LIMIT, 1, 0, 0, LIMIT - 12), LIMIT)[4] == LIMIT - 12  # type: ignore[operator]
    huge = f.HEADER_BYTES_MAX
    assert decode(f.PREFIX.pack(huge + 12, 1, 0, 0, huge), 2**32)[3] == huge  # type: ignore[operator]
    with pytest.raises(InvalidRequestError, match="impossible frame"):
        decode(f.PREFIX.pack(huge + 13, 1, 0, 0, huge + 1), 2**32)  # type: ignore[operator]


@for_each("line", [b"GET / HTTP/1.1\r\nHost: x\r\n", b"SSH-2.0-OpenSSH_9.6\r\n", b"\0\0\0\x2a" * 4])
def test_bytes_of_another_protocol_are_no_frame(line: bytes) -> None:
    with pytest.raises((FrameTooLargeError, InvalidRequestError)):
        f.decode_request_prefix(line, 100 << 20)


KAFKA_FIRST = st.builds(
    lambda api, version, correlation, client: struct.pack(">ihhih", 10 + len(client), api, version, correlation, len(client))
    + client,
    st.sampled_from((3, 17, 18, 10, 22)), st.integers(0, 13), st.integers(0, 2**31 - 1), st.binary(min_size=2, max_size=300),
)  # fmt: skip


@given(KAFKA_FIRST)
def test_the_first_request_of_a_kafka_client_is_recognized(data: bytes) -> None:
    assert "Kafka" in f.foreign_protocol(data)


def test_an_answer_of_an_http_server_is_recognized() -> None:
    for answer in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\n"):
        with pytest.raises(InvalidRequestError, match="the server speaks HTTP"):
            f.decode_response_prefix(answer, LIMIT)
    as_frame = struct.unpack_from("<I", b"HTTP")[0]
    frame = f.RESPONSE_PREFIX.pack(as_frame, 0, 0, 0, 0)
    assert f.decode_response_prefix(frame, as_frame).body_bytes == as_frame - f.FRAME_LENGTH_MIN


def test_no_first_request_of_a_sparklog_client_is_taken_for_another_protocol() -> None:
    """HANDSHAKE and SASL come first; each length, as each byte of it could look like something else."""
    for api in (0, 1, 60, 61):
        for size in range(66_000):
            prefix = f.PREFIX.pack(f.FRAME_LENGTH_MIN + size, api, 0, size, size)
            assert f.foreign_protocol(prefix) == "", size


# Capacity of a Unix socket


def fits(sock: socket.socket) -> int:
    """Return the number of bytes that the kernel accepts without a reader."""
    sock.setblocking(False)
    taken = 0
    try:
        while True:
            taken += sock.send(b"x" * 16_384)
    except BlockingIOError:
        return taken


def test_more_fits_into_an_enlarged_socket() -> None:
    before = [*socket.socketpair()]
    after = [*socket.socketpair()]
    enlarge_send_buffer(after[0])
    assert fits(after[0]) > fits(before[0])
    for sock in before + after:
        sock.close()
