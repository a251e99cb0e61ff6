"""A proxy before a broker that carries requests to it and then loses the answers, as a network may at the worst moment.

It names itself in METADATA answers, so that clients send everything through it.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

from sparklog.protocol import frames
from sparklog.protocol.apis import Api
from sparklog.protocol.codec import decode_response, encode
from sparklog.protocol.topic_messages import BrokerEndpoint, MetadataResponse

FRAME_MAX = 1 << 30
Cut = Callable[[Api], bool]


class CuttingProxy:
    """`cut(api)` is asked when the broker's answer to a request is there; True: the answer is dropped with the
    connection."""

    def __init__(self, host: str, port: int, cut: Cut) -> None:
        self.upstream = (host, port)
        self.cut = cut
        self.cuts = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        for s in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in list(self._threads):
            thread.join(30)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                thread = threading.Thread(target=self._serve, args=(client,))
                self._threads.append(thread)
                thread.start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError, EOFError), socket.create_connection(self.upstream, 10) as broker:
            self._sockets.append(broker)
            while True:
                start = _read(client, frames.PREFIX_BYTES)
                asked = frames.decode_request_prefix(start, FRAME_MAX)
                broker.sendall(start + _read(client, asked.body_bytes))
                start = _read(broker, frames.PREFIX_BYTES)
                answer = frames.decode_response_prefix(start, FRAME_MAX)
                body = _read(broker, answer.body_bytes)
                if self.cut(Api(asked.api)):
                    self.cuts += 1
                    return
                if asked.api == Api.METADATA and not answer.error_code:
                    start, body = self._renamed(answer, body)
                client.sendall(start + body)

    def _renamed(self, answer: frames.ResponsePrefix, body: bytes) -> tuple[bytes, bytes]:
        metadata = decode_response(Api.METADATA, body[: answer.header_bytes], MetadataResponse)
        metadata.brokers = [BrokerEndpoint(b.broker_id, "127.0.0.1", self.port) for b in metadata.brokers]
        return frames.encode_response(answer.api, 0, answer.correlation_id, encode(metadata)), b""


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = connection.recv(min(1 << 20, size - len(data)))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)
