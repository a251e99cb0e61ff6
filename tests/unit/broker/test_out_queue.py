"""The unsent bytes of a connection, over sockets that keep the limits of their buffers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sparklog_broker.network.out_queue import GATHERED_BYTES_MAX, OutQueue, ShortFileError
from sparklog_broker.network.transport import PlainTransport

from tests.support.connections import FileRange


def write(queue: OutQueue, sock: socket.socket) -> int:
    no_loop: Any = None  # for events, which are not watched here
    return PlainTransport(sock, no_loop).write(queue)


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Each send is received on its own."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        yield ours, theirs


def test_an_answer_with_little_data_is_sent_at_once(
    sockets: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")
    slices = [FileRange(tmp_path / "f", 2, 3), FileRange(tmp_path / "f", 8, 2)]
    queue = OutQueue()
    queue.extend([b"head", *slices])
    assert [s.released for s in slices] == [1, 1]
    assert write(queue, sockets[0]) == 9
    assert not queue
    assert sockets[1].recv(100) == b"head23489"
    with pytest.raises(BlockingIOError):
        sockets[1].recv(100)


def test_gathered_bytes_have_a_limit(sockets: tuple[socket.socket, socket.socket], tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(GATHERED_BYTES_MAX))
    fits, too_much = FileRange(tmp_path / "f", 0, GATHERED_BYTES_MAX - 4), FileRange(tmp_path / "f", 0, 1)
    queue = OutQueue()
    queue.extend([b"head", fits, too_much])
    assert write(queue, sockets[0]) == GATHERED_BYTES_MAX + 1
    assert len(sockets[1].recv(2 * GATHERED_BYTES_MAX)) == GATHERED_BYTES_MAX
    assert len(sockets[1].recv(2 * GATHERED_BYTES_MAX)) == 1


def test_a_large_slice_stays_in_its_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(2 * GATHERED_BYTES_MAX))
    large = FileRange(tmp_path / "f", 0, GATHERED_BYTES_MAX + 1)
    queue = OutQueue()
    queue.extend([b"head", large])
    assert large.released == 0
    queue.clear()
    assert large.released == 1


def test_a_short_file_is_noticed_at_its_turn(sockets: tuple[socket.socket, socket.socket], tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"12345")
    short = FileRange(tmp_path / "f", 5, 10)
    queue = OutQueue()
    queue.extend([b"head", short])
    with pytest.raises(ShortFileError):
        write(queue, sockets[0])
    assert short.released == 0
    queue.clear()
    assert short.released == 1
