"""Choice of the connection to close when unread answers hold too much memory."""

from __future__ import annotations

import pytest

from sparklog.environment.memory_budget import MemoryBudget
from sparklog.environment.send_backlog import SendBacklog

KIB = 1024


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Peer:
    """A reader that, like a connection, gives back all when it is closed."""

    def __init__(self, name: str, unread: SendBacklog) -> None:
        self.peer_name = name
        self.closed = False
        self._unread = unread

    def holds(self, size_bytes: int, files: int = 0) -> None:
        self._unread.record(self, size_bytes, files)

    def close(self) -> None:
        self.closed = True
        self._unread.record(self, 0, 0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def budget() -> MemoryBudget:
    return MemoryBudget(200 * KIB)


@pytest.fixture
def unread(budget: MemoryBudget, clock: Clock) -> SendBacklog:
    return SendBacklog(budget, 10, clock)


def test_within_half_of_the_budget_no_connection_is_cut(unread: SendBacklog, budget: MemoryBudget) -> None:
    peers = [Peer(str(i), unread) for i in range(10)]
    for peer in peers:
        peer.holds(10 * KIB)
    assert not any(p.closed for p in peers)
    assert budget.used_bytes == unread.held_bytes == 100 * KIB
    for peer in peers:
        peer.holds(0)
    assert (budget.used_bytes, unread.held_bytes, len(unread)) == (0, 0, 0)


@pytest.mark.parametrize(
    ("first", "second", "cut"),
    [
        ((10, 40), (1, 45), "first"),
        ((10, 5), (1, 90), "second"),
        ((1, 40), (1, 45), "second"),
        ((0, 40), (0, 45), "third"),
    ],
    ids=["held longer", "so much more that the shorter time counts", "as long, more", "the same moment: most"],
)
def test_time_times_amount_decides(
    unread: SendBacklog, clock: Clock, first: tuple[int, int], second: tuple[int, int], cut: str
) -> None:
    """Seconds and KiB of two peers when a third comes with 50 KiB."""
    peers = []
    for name, (held_s, size_kib) in {"first": first, "second": second, "third": (0, 50)}.items():
        clock.now = 100.0 - held_s
        peers.append(Peer(name, unread))
        peers[-1].holds(size_kib * KIB)
    assert [p.peer_name for p in peers if p.closed] == [cut]


def test_a_peer_that_reads_stays(unread: SendBacklog, clock: Clock) -> None:
    silent, reading = Peer("silent", unread), Peer("reading", unread)
    silent.holds(50 * KIB)
    reading.holds(50 * KIB)
    clock.now = 5.0
    reading.holds(5 * KIB)
    late = Peer("late", unread)
    late.holds(60 * KIB)
    assert [p.closed for p in (silent, reading, late)] == [True, False, False]


def test_the_last_one_is_never_cut(unread: SendBacklog, clock: Clock) -> None:
    only = Peer("only", unread)
    only.holds(150 * KIB)
    clock.now = 60.0
    only.holds(160 * KIB)
    assert not only.closed


def test_files_are_bounded_by_number(unread: SendBacklog, clock: Clock) -> None:
    few, many = Peer("few", unread), Peer("many", unread)
    few.holds(90 * KIB, 1)
    many.holds(0, 8)
    clock.now = 1.0
    late = Peer("late", unread)
    late.holds(0, 2)
    assert [p.closed for p in (few, many, late)] == [False, True, False]
    assert unread.held_files == 3


def test_returned_memory_wakes_requests(unread: SendBacklog, budget: MemoryBudget) -> None:
    peer = Peer("a", unread)
    peer.holds(90 * KIB)
    woken: list[str] = []
    assert budget.reserve("first", 120 * KIB, lambda: None), "one may exceed the limit"
    assert not budget.reserve("second", 20 * KIB, lambda: woken.append("second"))
    peer.holds(0)
    assert woken == ["second"]
