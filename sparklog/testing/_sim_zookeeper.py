"""A ZooKeeper in memory that loses connections, sessions and replies: the `Coordination` of simulations.

With a `loop` the ensemble is a process of a `Simulation` and uses its clock. Without a loop, only `advance(now_ms)`
advances the time. Requests, replies and watches of a connection keep their order and take a random time. The same seed
and the same calls give the same run.

- `cut(client, notice_ms)` breaks the client's connection; the client notices it after `notice_ms`. Of the requests in
  transit, a random number of the first ones still takes effect, without a reply. When the client notices the break, all
  requests that it has sent fail with ConnectionLossError, and all its watches call back. Later requests wait for the
  next connection, which is possible after `heal(client)`.
- The server ends a session that has no connection for the session's timeout, and removes its ephemeral nodes. The
  client learns of it when it connects: LOST, then CONNECTED with a new session.
- `stop()` and `start()` act on the whole ensemble. It keeps its data, and sessions continue after the start.
- `copy()` copies data and sessions. `put_back(copy)` restores them while the ensemble is stopped.

A thread that waits for a future's result gets it at once, because in a simulation a job takes no time. The client's
earlier requests are executed before. Without a connection the thread gets ConnectionLossError.

The simulation has no servers that lag behind others. A real client can read from such a server, so code that depends on
the newest state writes first (`store_history.catch_up`, the controller's fence).
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from msgspec import Struct, field

from sparklog.metadata.coordination import (
    ANY_VERSION,
    NO_SESSION,
    ConnectionLossError,
    CoordinationError,
    Create,
    Delete,
    Node,
    Op,
    OpResult,
    SessionExpiredError,
    SessionState,
    SetData,
    Watch,
)
from sparklog.metadata.znode_tree import Change, Znodes
from sparklog.testing._sim_loop import SimLoop

LATENCY_MS = (1, 20)
RECONNECT_MS = (50, 500)


class _Answer(Future[Any]):
    """The future of a request. A thread that waits for it gets the result at once, after the client's earlier requests
    are executed."""

    ask_now: Callable[[], None] = staticmethod(lambda: None)

    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            self.ask_now()
        return super().result(0)


class _Session(Struct):
    session_id: int
    last_heard_ms: int
    client: SimClient | None = None


class _Request(Struct, eq=False):
    perform: Callable[[SimClient], Any]
    future: Future[Any]
    sent: bool = False
    answered: bool = False
    outcome: Callable[[], None] | None = None
    """Function that completes `future`; None until the server has executed the request."""


class StoreCopy(Struct, frozen=True):
    """The content of ZooKeeper's data directory at one time."""

    znodes: Znodes
    sessions: frozenset[int]


class _Watches(Struct):
    data: dict[str, dict[Watch, None]] = field(default_factory=dict)
    child: dict[str, dict[Watch, None]] = field(default_factory=dict)


class SimZooKeeper:
    """The ensemble: its nodes, its sessions, and the faults that tests cause."""

    def __init__(self, seed: int = 0, *, session_timeout_ms: int = 12_000, loop: SimLoop | None = None) -> None:
        self.random = random.Random(seed)
        self._loop = loop
        self._now_ms = 0
        self.session_timeout_ms = session_timeout_ms
        self.is_up = True
        self.znodes = Znodes()
        self.on_changes: Callable[[Sequence[Change]], None] = lambda changes: None
        """Function that is called with stored changes, before any client learns of them."""
        self._sessions: dict[int, _Session] = {}
        self._next_session = 1
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._scheduled = 0

    # --- time

    @property
    def now_ms(self) -> int:
        return self._now_ms if self._loop is None else round(self._loop.time() * 1_000)

    def advance(self, now_ms: int) -> None:
        """Run all events that are due until `now_ms`, in order, and set the time to `now_ms`. Only without a loop."""
        while self._events and self._events[0][0] <= now_ms:
            due_ms, _, action = heapq.heappop(self._events)
            self._now_ms = max(self._now_ms, due_ms)
            action()
        self._now_ms = max(self._now_ms, now_ms)

    def at(self, due_ms: int, action: Callable[[], None]) -> None:
        if self._loop is not None:
            self._loop.call_at(due_ms / 1_000, action)
            return
        self._scheduled += 1
        heapq.heappush(self._events, (due_ms, self._scheduled, action))

    def latency_ms(self) -> int:
        return self.random.randint(*LATENCY_MS)

    # --- faults

    def client(self) -> SimClient:
        """Create a client. It connects after a random time."""
        client = SimClient(self)
        client.connect_soon()
        return client

    def cut(self, client: SimClient, notice_ms: int = 0) -> None:
        """Break a client's connection, and refuse new ones until `heal`. The client notices the break after
        `notice_ms`, or when it connects again."""
        client.is_reachable = False
        client.break_connection(notice_ms)

    def heal(self, client: SimClient) -> None:
        client.is_reachable = True
        client.connect_soon()

    def stop(self) -> None:
        """Stop all servers, and break all connections."""
        self.is_up = False
        for session in list(self._sessions.values()):
            if session.client is not None:
                session.client.break_connection(0)

    def start(self) -> None:
        """Start the ensemble. The timeout of every session starts again."""
        self.is_up = True
        for session in self._sessions.values():
            session.last_heard_ms = self.now_ms
            self._expire_later(session)

    def copy(self) -> StoreCopy:
        """Return a copy of the data and sessions."""
        return StoreCopy(self.znodes.copy(), frozenset(self._sessions))

    def put_back(self, copy: StoreCopy, *, zxid: int = 0) -> None:
        """Replace data and sessions by those of `copy`, while the ensemble is stopped. Later zxids are above `zxid`, as
        in a new epoch."""
        assert not self.is_up
        self.znodes = copy.znodes.copy()
        self.znodes.skip_to(zxid)
        self._sessions = {i: _Session(i, self.now_ms) for i in copy.sessions}

    # --- the server

    def open_session(self, client: SimClient, session_id: int) -> int:
        """Return the client's session: the one with `session_id`, or a new one if that session has ended."""
        session = self._sessions.get(session_id)
        if session is None:
            session = _Session(self._next_session, self.now_ms)
            self._next_session += 1
            self._sessions[session.session_id] = session
            self.znodes.next_zxid()
        session.client = client
        return session.session_id

    def leave(self, session_id: int) -> None:
        """Note that a session has lost its connection. The session's timeout starts."""
        session = self._sessions.get(session_id)
        if session is not None:
            session.client = None
            session.last_heard_ms = self.now_ms
            self._expire_later(session)

    def has_session(self, session_id: int) -> bool:
        return session_id in self._sessions

    def end_session(self, session_id: int) -> None:
        if self._sessions.pop(session_id, None) is not None:
            self.changed(self.znodes.end_session(session_id))

    def _expire_later(self, session: _Session) -> None:
        self.at(session.last_heard_ms + self.session_timeout_ms, lambda: self._expire(session))

    def _expire(self, session: _Session) -> None:
        silent_ms = self.now_ms - session.last_heard_ms
        is_current = self._sessions.get(session.session_id) is session
        if self.is_up and is_current and session.client is None and silent_ms >= self.session_timeout_ms:
            self.end_session(session.session_id)

    def changed(self, changes: Sequence[Change]) -> None:
        """Send to all connected clients their watches on changed nodes."""
        self.on_changes(changes)
        for session in list(self._sessions.values()):
            if session.client is not None:
                session.client.notify(changes)


class SimClient:
    """A client of the ensemble; see `Coordination`."""

    def __init__(self, server: SimZooKeeper) -> None:
        self._server = server
        self.is_reachable = True
        self._session_id = NO_SESSION
        self._connection = 0
        self._is_connected = False
        self._is_closed = False
        self._is_connecting = False
        self._waiting: list[_Request] = []
        self._request_due_ms = 0
        self._answer_due_ms = 0
        self._watches = _Watches()
        self._watches_in_transit: list[Watch] = []
        self._lost_watches: list[Watch] | None = None
        self._listeners: list[Callable[[SessionState], None]] = []

    # --- the protocol

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def session_timeout_ms(self) -> int:
        return self._server.session_timeout_ms

    def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> Future[Node]:
        def perform(client: SimClient) -> Node:
            (result,) = client._commit([Create(path, data, ephemeral)])
            return client._server.znodes.read(result.path)

        return self._ask(perform)

    def set_data(self, path: str, data: bytes, version: int = ANY_VERSION) -> Future[Node]:
        def perform(client: SimClient) -> Node:
            client._commit([SetData(path, data, version)])
            return client._server.znodes.read(path)

        return self._ask(perform)

    def get(self, path: str, watch: Watch | None = None) -> Future[Node | None]:
        def perform(client: SimClient) -> Node | None:
            if watch is not None:
                client._watches.data.setdefault(path, {})[watch] = None
            return client._server.znodes.find(path)

        return self._ask(perform)

    def children(self, path: str, watch: Watch | None = None) -> Future[list[str]]:
        def perform(client: SimClient) -> list[str]:
            names = client._server.znodes.children(path)
            if watch is not None:
                client._watches.child.setdefault(path, {})[watch] = None
            return names

        return self._ask(perform)

    def delete(self, path: str, version: int = ANY_VERSION) -> Future[None]:
        def perform(client: SimClient) -> None:
            client._commit([Delete(path, version)])

        return self._ask(perform)

    def transaction(self, ops: Sequence[Op]) -> Future[list[OpResult]]:
        return self._ask(lambda client: client._commit(ops, in_transaction=True))

    def listen(self, listener: Callable[[SessionState], None]) -> None:
        self._listeners.append(listener)

    def close(self) -> None:
        """End the session: at once if the client is connected, otherwise by its timeout."""
        if self._is_connected:
            self._server.end_session(self._session_id)
        self.abandon()

    def abandon(self) -> None:
        """End the client's process. It gets no more replies, and its session ends by its timeout."""
        self.break_connection(None)
        self._is_closed = True
        self._waiting.clear()
        self._listeners.clear()

    # --- connections

    def connect_soon(self) -> None:
        if self._is_closed or self._is_connected or self._is_connecting:
            return
        self._is_connecting = True
        self._server.at(self._server.now_ms + self._server.random.randint(*RECONNECT_MS), self._connect)

    def _connect(self) -> None:
        self._is_connecting = False
        if self._is_closed or self._is_connected or not self.is_reachable:
            return
        if not self._server.is_up:
            self.connect_soon()
            return
        if self._lost_watches is not None:
            self._notice(self._lost_watches)
        if self._session_id != NO_SESSION and not self._server.has_session(self._session_id):
            self._session_id = NO_SESSION
            self._fail_waiting(SessionExpiredError)
            self._notify(SessionState.LOST)
        self._session_id = self._server.open_session(self, self._session_id)
        self._connection += 1
        self._is_connected = True
        self._request_due_ms = self._answer_due_ms = self._server.now_ms
        for request in list(self._waiting):
            self._send(request)
        self._notify(SessionState.CONNECTED)

    def break_connection(self, notice_ms: int | None) -> None:
        """Break the connection. The client notices it after `notice_ms`; None: it never does, because its process has
        ended."""
        if not self._is_connected:
            return
        on_their_way = [r for r in self._waiting if r.sent and not r.answered]
        arriving = self._server.random.randint(0, len(on_their_way))
        for request in on_their_way[:arriving]:
            self._perform(request)
        self._is_connected = False
        self._connection += 1
        by_path = *self._watches.data.values(), *self._watches.child.values()
        lost = list(dict.fromkeys([*self._watches_in_transit, *(watch for watches in by_path for watch in watches)]))
        self._watches, self._watches_in_transit = _Watches(), []
        self._server.leave(self._session_id)
        if notice_ms is not None:
            self._lost_watches = lost
            self._server.at(self._server.now_ms + notice_ms, lambda: self._notice(lost))

    def _notice(self, watches: list[Watch]) -> None:
        if self._is_closed or self._lost_watches is not watches:
            return
        self._lost_watches = None
        self._fail_waiting(ConnectionLossError, only_sent=True)
        self._notify(SessionState.SUSPENDED)
        for watch in watches:
            watch()
        if self.is_reachable:
            self.connect_soon()

    def _fail_waiting(self, error: type[CoordinationError], *, only_sent: bool = False) -> None:
        failed = [r for r in self._waiting if r.sent or not only_sent]
        self._waiting = [r for r in self._waiting if r not in failed]
        for request in failed:
            request.future.set_exception(error())

    def _notify(self, state: SessionState) -> None:
        for listener in list(self._listeners):
            listener(state)

    # --- requests

    def _ask(self, perform: Callable[[SimClient], Any]) -> Future[Any]:
        future = _Answer()
        request = _Request(perform, future)
        future.ask_now = lambda: self._finish_now(request)
        if self._is_closed:
            request.future.set_exception(SessionExpiredError("the client is closed"))
            return request.future
        self._waiting.append(request)
        if self._is_connected:
            self._send(request)
        return request.future

    def _send(self, request: _Request) -> None:
        """Send a request. It arrives after all earlier requests of the connection."""
        request.sent = True
        self._request_due_ms = max(self._request_due_ms, self._server.now_ms) + self._server.latency_ms()
        connection = self._connection
        self._server.at(self._request_due_ms, lambda: self._arrive(request, connection))

    def _arrive(self, request: _Request, connection: int) -> None:
        if connection == self._connection:
            self._perform(request)
            self._answer(lambda: self._finish(request))

    def _perform(self, request: _Request) -> None:
        """Execute a request; a second call does nothing. A request of an ended session fails without an effect."""
        if request.answered:
            return
        request.answered = True
        try:
            if not self._server.has_session(self._session_id):
                raise SessionExpiredError
            result = request.perform(self)
        except CoordinationError as e:
            request.outcome = partial(request.future.set_exception, e)
        else:
            request.outcome = partial(request.future.set_result, result)

    def _finish(self, request: _Request) -> None:
        if request in self._waiting:
            self._waiting.remove(request)
            assert request.outcome is not None
            request.outcome()

    def _finish_now(self, request: _Request) -> None:
        """Execute all earlier requests and this one, and complete only this one's future. So a waiting thread gets its
        result without virtual time. Without a connection, the future gets ConnectionLossError and the request is
        dropped."""
        if request not in self._waiting:
            return
        if not self._is_connected:
            self._waiting.remove(request)
            request.future.set_exception(ConnectionLossError())
            return
        for earlier in self._waiting[: self._waiting.index(request) + 1]:
            self._perform(earlier)
        self._finish(request)

    def _answer(self, action: Callable[[], None]) -> None:
        self._answer_due_ms = max(self._answer_due_ms, self._server.now_ms) + self._server.latency_ms()
        connection = self._connection
        self._server.at(self._answer_due_ms, lambda: action() if connection == self._connection else None)

    def _commit(self, ops: Sequence[Op], *, in_transaction: bool = False) -> list[OpResult]:
        results, changes = self._server.znodes.commit(ops, self._session_id, in_transaction=in_transaction)
        self._server.changed(changes)
        return results

    def notify(self, changes: Sequence[Change]) -> None:
        """Send the client's watches on these changes. A watch arrives before the reply to any later request."""
        for path, is_about_children in changes:
            watched = self._watches.child if is_about_children else self._watches.data
            for watch in watched.pop(path, {}):
                self._watches_in_transit.append(watch)
                self._answer(partial(self._call, watch))

    def _call(self, watch: Watch) -> None:
        self._watches_in_transit.remove(watch)
        watch()
