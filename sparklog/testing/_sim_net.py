"""A simulated network between the processes of a `Simulation`: connections with messages that are delayed or lost.

As with TCP, an open connection keeps the order of its messages in each direction and loses none. Messages of different
connections can overtake one another. A connection ends when one end closes it, when a process dies, or when the network
resets it. Its messages in transit then either still arrive, like data that a kernel has accepted, or are lost, as after
a reset. The other end notices the end of the connection later.

`cut(a, b)` blocks the traffic from host a to host b until `heal`: messages wait, as with TCP's retransmissions, and new
connections between the hosts are refused. `delay_some` keeps the next messages of connections in transit for long;
`leave_behind` ends such connections. Their clients return on new connections, so the old messages arrive among or after
the new ones.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterable

from sparklog.testing._sim_loop import SimLoop, Simulation

DELAY_S = (0.0001, 0.003)
SLOW_SHARE, SLOW_S = 0.02, 0.3
"""Share of the messages that are slow, and their longest transit time in s."""
HELD_S = 0.05
"""Interval in s between two attempts to deliver a message that a cut blocks."""
GAP_S = 1e-6
"""Shortest time between two messages of a connection, in s."""
LINGERS_SHARE = 0.5
"""Share of the closed connections whose messages in transit still arrive."""
LATE_S = 0.3, 3.0
"""Two choices for the longest delay in s of a connection in `delay_some`."""


class SimConnection:
    """One end of a connection. `on_message` and `on_lost` are called on the loop of this end's process. `on_lost` is
    not called after this end's own `close`."""

    def __init__(self, net: SimNet, loop: SimLoop, host: str, peer_host: str) -> None:
        self.host = host
        self.peer_host = peer_host
        self.on_message: Callable[[bytes], None] = lambda _: None
        self.on_lost: Callable[[], None] = lambda: None
        self.is_open = True
        self._net = net
        self._loop = loop
        self._peer: SimConnection | None = None
        self._arrives_at = 0.0
        self._inbox: deque[bytes | None] = deque()

    @staticmethod
    def pair(net: SimNet, a: tuple[SimLoop, str], b: tuple[SimLoop, str]) -> tuple[SimConnection, SimConnection]:
        """Return both ends of a new connection between `a` and `b`. Each is given as (loop, host)."""
        one, other = SimConnection(net, *a, b[1]), SimConnection(net, *b, a[1])
        one._peer, other._peer = other, one
        net.connections |= {one: None, other: None}
        return one, other

    def send(self, message: bytes) -> None:
        """Send a message to the peer. Does nothing on a closed or lost connection."""
        if self.is_open:
            assert self._peer is not None
            self._peer._loop.call_at(self._next_arrival_s(), self._peer._on_arrival, message)

    def _next_arrival_s(self) -> float:
        """Return a time of the peer's loop for the arrival of the next message, after those of all earlier ones,
        because an event loop does not keep the order of events with equal times."""
        self._arrives_at = max(self._arrives_at + GAP_S, self.peer.loop.time() + self._net.delay_s())
        return self._arrives_at

    def _on_arrival(self, message: bytes | None) -> None:
        """Queue a message and deliver the queue. None: the peer has closed the connection after its last message."""
        self._inbox.append(message)
        if len(self._inbox) == 1:
            self._take()

    def _take(self) -> None:
        """Deliver the queued messages in their order. While the direction is cut, they stay in the queue, and delivery
        is tried again."""
        while self._inbox and self.is_open:
            if self._net.is_cut(self.peer_host, self.host):
                self._loop.call_later(HELD_S, self._take)
                return
            message = self._inbox.popleft()
            if message is None:
                self._lost()
                return
            self._net.simulation.note("message", self.peer_host, self.host, zlib.crc32(message))
            self.on_message(message)

    def close(self, *, lingers: bool | None = None) -> None:
        """End the connection. `lingers` True: the messages in transit arrive before the peer notices the end; False:
        they are lost; None: chosen at random."""
        if not self.is_open:
            return
        self.is_open = False
        self._net.connections.pop(self, None)
        peer = self._peer
        assert peer is not None
        if not peer.is_open or peer._loop.is_dead:
            return
        if lingers is None:
            lingers = self._net.simulation.rng.random() < LINGERS_SHARE
        if lingers:
            peer._loop.call_at(self._next_arrival_s(), peer._on_arrival, None)
        else:
            peer._loop.call_later(self._net.delay_s(), peer._lost)

    def reset(self) -> None:
        """End the connection for both ends, as the network does. Messages in transit are lost, except those that arrive
        before an end notices the reset."""
        assert self._peer is not None
        for end in (self, self._peer):
            if end.is_open and not end._loop.is_dead:
                end._loop.call_later(self._net.delay_s(), end._lost)

    def delay(self, seconds: float) -> None:
        """Delay all later messages of this end by `seconds`."""
        self._arrives_at = max(self._arrives_at, self.peer.loop.time()) + seconds

    def _lost(self) -> None:
        if self.is_open:
            self.is_open = False
            self._net.connections.pop(self, None)
            self.on_lost()

    @property
    def loop(self) -> SimLoop:
        return self._loop

    @property
    def peer(self) -> SimConnection:
        """The other end."""
        assert self._peer is not None
        return self._peer


class SimNet:
    """The network between all hosts of a simulation."""

    def __init__(self, simulation: Simulation, *, slow_share: float = SLOW_SHARE) -> None:
        self.simulation = simulation
        self._slow_share = slow_share
        self.connections: dict[SimConnection, None] = {}
        self._listeners: dict[str, tuple[SimLoop, Callable[[SimConnection], None]]] = {}
        self._cut: set[tuple[str, str]] = set()

    def delay_s(self) -> float:
        rng = self.simulation.rng
        return rng.random() * SLOW_S if rng.random() < self._slow_share else rng.uniform(*DELAY_S)

    def listen(self, host: str, loop: SimLoop, accept: Callable[[SimConnection], None]) -> None:
        """Call `accept` for each new connection to `host`, until the process of `loop` dies or another process listens
        there."""
        self._listeners[host] = loop, accept

    def connect(self, loop: SimLoop, from_host: str, to_host: str) -> SimConnection:
        """Open a connection. Returns the end of the process of `loop`. Raises ConnectionRefusedError."""
        listener = self._listeners.get(to_host)
        if (
            listener is None
            or listener[0].is_dead
            or self.is_cut(from_host, to_host)
            or self.is_cut(to_host, from_host)
        ):
            raise ConnectionRefusedError(f"no process listens at {to_host}")
        near, far = SimConnection.pair(self, (loop, from_host), (listener[0], to_host))
        listener[1](far)
        return near

    def process_died(self, loop: SimLoop) -> None:
        """Close the connections of a dead process."""
        for connection in sorted((c for c in self.connections if c.loop is loop), key=lambda c: c.peer_host):
            connection.close()

    def reset_between(self, one: str, other: str) -> None:
        """Reset all connections between two hosts. Each end notices it after a delay of its own."""
        for connection in sorted(self.connections, key=lambda c: (c.host, c.peer_host)):
            if {connection.host, connection.peer_host} == {one, other}:
                connection.reset()

    def reset_some(self, share: float) -> None:
        """Reset a random share of all connections. Each end notices it after a delay of its own."""
        for connection in sorted(self.connections, key=lambda c: (c.host, c.peer_host)):
            if self.simulation.rng.random() < share:
                connection.reset()

    def delay_some(self, host: str, share: float, *, answers: bool = False) -> list[SimConnection]:
        """Delay the later messages to `host` on a random share of the connections to it; with `answers`, the messages
        from `host` instead. Returns the other hosts' ends of these connections."""
        rng = self.simulation.rng
        near = sorted((c for c in self.connections if c.peer_host == host), key=lambda c: c.host)
        chosen = [c for c in near if rng.random() < share]
        for connection in chosen:
            (connection.peer if answers else connection).delay(rng.random() * rng.choice(LATE_S))
        return chosen

    @staticmethod
    def leave_behind(connections: Iterable[SimConnection]) -> None:
        """Close these connections, and tell both ends of the loss. Messages that the given ends have sent still
        arrive."""
        for connection in connections:
            connection.close(lingers=True)
            connection.on_lost()

    def cut(self, from_host: str, to_host: str) -> None:
        """Block all traffic in this direction until `heal`, and new connections in both directions."""
        self._cut.add((from_host, to_host))

    def heal(self) -> None:
        self._cut.clear()

    def heal_links(self, links: Iterable[tuple[str, str]]) -> None:
        """End the cuts of these (from host, to host) directions only."""
        self._cut.difference_update(links)

    def is_cut(self, from_host: str, to_host: str) -> bool:
        return (from_host, to_host) in self._cut
