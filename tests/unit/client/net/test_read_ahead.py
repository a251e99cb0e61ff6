"""Taking the received part of an answer, without waiting for the rest."""

from __future__ import annotations

import socket
import threading
import time

from sparklog.client.net.connection import Connection
from sparklog.client.net.read_ahead import READ_AHEAD_BYTES, READ_AHEAD_BYTES_MAX, ReadAhead
from sparklog.client.net.reused_memory import ReusedMemory
from sparklog.protocol.apis import Api
from sparklog.protocol.exchange import Exchange, PendingRequest
from sparklog.protocol.frames import encode_response
from tests.support.waiting import until


def test_an_answer_is_complete_with_its_last_byte() -> None:
    ours, theirs = socket.socketpair()
    connection = Connection.__new__(Connection)
    connection._socket, connection._tls = ours, None
    connection._ahead, connection._memory = ReadAhead(), ReusedMemory()
    connection._timeouts_s, connection._liveness = {socket.SO_RCVTIMEO: 0.0}, None
    connection._exchange = Exchange("the broker")
    connection._exchange.pending.append(PendingRequest(1, Api.FETCH, None))  # type: ignore[arg-type]
    answer = encode_response(Api.FETCH, 0, 1, b"header", 7) + b"1234567"
    with ours, theirs:
        assert not connection.read_ahead()
        for cut in (len(answer), 2, len(answer) - 1):
            theirs.send(answer[:cut])
            assert connection.read_ahead() is (cut == len(answer))
            theirs.send(answer[cut:])
            assert connection.read_ahead() or cut == len(answer)
            header, payload = connection._receive_frame(time.monotonic() + 30)
            assert (header, payload.to_pybytes()) == (b"header", b"1234567")
        for size in (READ_AHEAD_BYTES, READ_AHEAD_BYTES_MAX - 22, READ_AHEAD_BYTES_MAX - 21):
            rest = bytes(range(256)) * 1024
            theirs.send(encode_response(Api.FETCH, 0, 1, b"header", size))
            assert not connection.read_ahead()
            sender = threading.Thread(target=theirs.sendall, args=(rest[:size],))  # more than the socket holds
            sender.start()
            is_large = size > READ_AHEAD_BYTES_MAX - 22
            until(lambda is_large=is_large: connection.read_ahead() or is_large)  # type: ignore[misc]
            assert connection.is_answer_large is is_large
            assert connection._receive_frame(time.monotonic() + 30)[1].to_pybytes() == rest[:size]
            sender.join()
        theirs.shutdown(socket.SHUT_RDWR)
        assert connection.read_ahead()  # `receive` says that it is broken
