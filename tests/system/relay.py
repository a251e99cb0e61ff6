"""A relay before a server on this host: it loses answers, or everything, when it is told to."""

from __future__ import annotations

import contextlib
import socket
import threading

CHUNK_BYTES = 1 << 16


class Relay:
    """Carries bytes both ways, knowing nothing of them."""

    def __init__(self, host: str, port: int) -> None:
        self._upstream = (host, port)
        self._loses_answers = self._is_cut = False
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def lose_answers(self) -> None:
        """Requests of the client still arrive; it gets no answer any more."""
        self._loses_answers = True

    def cut(self) -> None:
        """All connections end, and no other one comes about, until `heal`."""
        self._is_cut = True
        for one in self._sockets:
            _shut(one)

    def heal(self) -> None:
        self._is_cut = self._loses_answers = False

    def close(self) -> None:
        self.cut()
        _shut(self._listener)
        self._listener.close()
        for thread in list(self._threads):
            thread.join(30)
        for one in self._sockets:
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._is_cut:
                    client.close()
                    continue
                try:
                    server = socket.create_connection(self._upstream, 10)
                except OSError:
                    client.close()
                    continue
                self._sockets += [client, server]
                for source, target, answers in ((client, server, False), (server, client, True)):
                    thread = threading.Thread(target=self._pump, args=(source, target, answers))
                    self._threads.append(thread)
                    thread.start()

    def _pump(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                if not (answers and self._loses_answers):
                    target.sendall(data)
        _shut(source)
        _shut(target)


def _shut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
