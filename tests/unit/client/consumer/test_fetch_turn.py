"""Whose turn it is at the socket: the poll's, or the background thread's."""

from __future__ import annotations

import socket
import threading
from typing import Any

from sparklog.client.consumer.fetch_turn import FetchTurn


def test_the_answer_is_waited_for_no_longer_than_it_may_take() -> None:
    class _Late:
        has_read_ahead = False
        due = 100.0

        def __init__(self, sock: socket.socket) -> None:
            self._sock = sock

        def fileno(self) -> int:
            return self._sock.fileno()

    now = 98.0
    lock = threading.RLock()
    turn = FetchTurn(lock, lambda: now)
    ours, theirs = socket.socketpair()
    connection: Any = _Late(ours)
    with ours, theirs, lock:
        turn.begin_poll()
        assert not turn.is_polls(connection)  # the last answer was not small
        turn.is_sparse = True
        assert turn.is_polls(connection)
        turn.go_to_socket()
        assert not turn.is_readable(connection, 0)
        turn.notify()
        assert not turn.is_readable(connection, 60)  # told: it comes back at once
        theirs.send(b"x")
        assert turn.is_readable(connection, 60)
        turn.leave_socket()
        turn.end_poll()
        assert turn.is_polls(connection)
        now = 98.9
        assert turn.is_polls(connection)
        now = 99.1  # poll is not called, and the background thread needs time before the answer is late
        assert not turn.is_polls(connection)
        turn.begin_poll()
        assert turn.is_polls(connection)
        now = 100.1
        assert not turn.is_polls(connection)
        turn.close()
