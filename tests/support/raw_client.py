"""A connection that speaks the protocol and nothing else, and ready batches for it: for tests and measurements of the
broker alone.
"""

from __future__ import annotations

import os
import socket
import time
from typing import TypeVar

import pyarrow as pa

from sparklog.errors import error_from_code
from sparklog.format.batch import encode_batch
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.protocol.apis import APIS, Api
from sparklog.protocol.base import Message
from sparklog.protocol.codec import decode_error, decode_response, encode
from sparklog.protocol.frames import PREFIX_BYTES, decode_response_prefix, encode_request

MIB = 1024 * 1024
FRAME_BYTES_MAX = 1 << 30
M = TypeVar("M", bound=Message)


class RawClient:
    """One blocking connection, without retries, limits or checks."""

    def __init__(self, host: str, port: int, timeout_s: float = 30.0, buffer_bytes: int = MIB) -> None:
        self.sock = socket.create_connection((host, port), timeout_s)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0
        self._buffer = bytearray(buffer_bytes)  # grows to the largest response

    def send(self, api: Api, message: Message, payload: bytes | memoryview = b"") -> None:
        self._correlation_id += 1
        head = encode_request(api, APIS[api].version_max, self._correlation_id, encode(message), len(payload))
        sent = self.sock.sendmsg([head, payload])
        for part in (head, payload):  # the rest of large ones
            if sent < len(part):
                self.sock.sendall(memoryview(part)[sent:])
            sent = max(sent - len(part), 0)

    def receive(self, api: Api, response_type: type[M]) -> tuple[M, memoryview]:
        """The response and its payload, which is overwritten by the next one. Raises the broker's error."""
        prefix = decode_response_prefix(self._read(PREFIX_BYTES), FRAME_BYTES_MAX)
        body = self._read(prefix.body_bytes)
        header = bytes(body[: prefix.header_bytes])
        if prefix.error_code:
            raise error_from_code(prefix.error_code, decode_error(header))
        return decode_response(api, header, response_type), body[prefix.header_bytes :]

    def _read(self, count: int) -> memoryview:
        if len(self._buffer) < count:
            self._buffer = bytearray(count)
        view = memoryview(self._buffer)[:count]
        received = 0
        while received < count:
            n = self.sock.recv_into(view[received:])
            if n == 0:
                raise EOFError(f"{received} of {count} bytes")
            received += n
        return view

    def request(self, api: Api, message: Message, response_type: type[M], payload: bytes = b"") -> M:
        self.send(api, message, payload)
        return self.receive(api, response_type)[0]

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def envelope_batch(rows: int, value_bytes: int) -> bytes:
    """One encoded batch of an envelope topic."""
    now = time.time_ns() // 1_000_000  # retention would delete older records during a run
    columns = [
        pa.nulls(rows, pa.binary()),
        pa.array([os.urandom(value_bytes)] * rows, pa.binary()),
        pa.nulls(rows, ENVELOPE_SCHEMA.field("headers").type),
        pa.array([now * 1000] * rows, ENVELOPE_SCHEMA.field("timestamp").type),
    ]
    batch = pa.record_batch(columns, schema=ENVELOPE_SCHEMA)
    return bytes(encode_batch(batch, schema_id=1, min_timestamp_ms=now, max_timestamp_ms=now))
