"""The calls of a cluster's metadata store, and the promises of its implementations: ZooKeeper (`zookeeper.py`), a
SQLite file for a cluster of one broker (`local_coordination.py`), a simulated ZooKeeper.

Paths are absolute. Every call returns a future at once and never blocks. The future's callbacks run on a thread of the
implementation, so a caller with an event loop must switch to that loop in the callback. Calls of one client take effect
in their order.

A call that fails with ConnectionLossError has an unknown outcome. A call that fails with SessionExpiredError has had no
effect, unless it was sent before the connection broke. Only a later read shows the outcome: a transaction took effect
if the version of a node that it sets is higher.

A watch calls back once, and then ends. The watch of `get` calls back when the node is set, deleted or created. The
watch of `children` calls back when a child is created or deleted, or the node is deleted. Every watch calls back when
the connection breaks. The caller then reads and watches again; the read shows the changes in between.

The end of a session deletes its ephemeral nodes. The client learns of the end only when it is connected again, so a
client that depends on its session keeps a timer (`session_timeout_ms`) from SUSPENDED on. After LOST the client has a
new session without ephemeral nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from enum import Enum
from typing import Any, NamedTuple, Protocol

from sparklog.errors import SparklogError

ANY_VERSION = -1
NO_SESSION = 0


class CoordinationError(Exception):
    """Base of the errors of calls. Brokers handle these errors; they are not sent to clients of the cluster.

    `index`: position of the failed operation in a transaction; -1 outside of a transaction.
    """

    def __init__(self, message: str = "", *, index: int = -1) -> None:
        super().__init__(message)
        self.index = index


class NoNodeError(CoordinationError):
    """The node does not exist, or the parent of a new node does not exist."""


class NodeExistsError(CoordinationError):
    """The node exists already."""


class BadVersionError(CoordinationError):
    """The node's version is not the expected one."""


class NotEmptyError(CoordinationError):
    """The node has children."""


class NoChildrenForEphemeralsError(CoordinationError):
    """The parent of a new node is ephemeral, and cannot have children."""


class ConnectionLossError(CoordinationError):
    """The connection broke before the reply. The call can have taken effect."""


class SessionExpiredError(CoordinationError):
    """The session has ended."""


class StoreWriteError(CoordinationError):
    """The store could not write to its disk; nothing has changed. `reason`: the error for clients of the cluster."""

    def __init__(self, reason: SparklogError) -> None:
        super().__init__(str(reason))
        self.reason = reason


class ZooKeeperTls(NamedTuple):
    """Settings of the TLS connection to ZooKeeper."""

    authorities: str = ""
    """PEM file of the authorities that sign ZooKeeper's certificate; "" for the authorities of the system."""
    identity: str = ""
    """PEM file of this client's key and certificate; "" for a client without a certificate."""
    check_hostname: bool = True


class SessionState(Enum):
    """The state of a session as its client knows it."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """There is no connection; the session can have ended."""
    LOST = "lost"
    """The session has ended. CONNECTED with a new session follows."""


class Node(NamedTuple):
    """A node. Transaction ids (zxids) are ordered in the whole ensemble."""

    path: str
    data: bytes
    version: int
    """Number of changes of the data since the creation."""
    czxid: int
    """Id of the transaction that created the node."""
    mzxid: int
    """Id of the transaction that last changed the data."""
    owner: int
    """The session of an ephemeral node; 0 for other nodes."""


class Create(NamedTuple):
    """Creates a node. Its parent must exist."""

    path: str
    data: bytes
    ephemeral: bool = False


class SetData(NamedTuple):
    path: str
    data: bytes
    version: int = ANY_VERSION


class Delete(NamedTuple):
    path: str
    version: int = ANY_VERSION


class Check(NamedTuple):
    """Changes nothing, but fails the transaction if the node has another version."""

    path: str
    version: int


Op = Create | SetData | Delete | Check
Watch = Callable[[], None]


class OpResult(NamedTuple):
    """The result of one operation. `version` and `mzxid` are those of a set node, -1 after other operations."""

    path: str
    version: int = -1
    mzxid: int = -1


class Coordination(Protocol):
    """The calls of the store; the module's docstring has their promises. A client has one session at a time."""

    @property
    def session_id(self) -> int:
        """The session's id; NO_SESSION before the first connection."""
        ...

    @property
    def session_timeout_ms(self) -> int:
        """Time in ms after the last sign of life from this client until the server ends the session."""
        ...

    def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> Future[Node]:
        """Create a node. Fails with NodeExistsError, NoNodeError (no parent), NoChildrenForEphemeralsError."""
        ...

    def set_data(self, path: str, data: bytes, version: int = ANY_VERSION) -> Future[Node]:
        """Set a node's data if the node has `version`. Fails with NoNodeError, BadVersionError."""
        ...

    def get(self, path: str, watch: Watch | None = None) -> Future[Node | None]:
        """Read a node; None if it does not exist. `watch`: called once, at the next change or creation of the node."""
        ...

    def children(self, path: str, watch: Watch | None = None) -> Future[list[str]]:
        """Return the names of a node's children, sorted. Fails with NoNodeError, without setting the watch."""
        ...

    def delete(self, path: str, version: int = ANY_VERSION) -> Future[None]:
        """Delete a node if it has `version`. Fails with NoNodeError, BadVersionError, NotEmptyError."""
        ...

    def transaction(self, ops: Sequence[Op]) -> Future[list[OpResult]]:
        """Do all operations or none. Fails with the error of the first operation that is impossible; the error's
        `index` is the position of this operation."""
        ...

    def listen(self, listener: Callable[[SessionState], None]) -> None:
        """Call `listener` with every later change of the session's state."""
        ...

    def close(self) -> None:
        """End the session, and delete its ephemeral nodes."""
        ...


Steps = Generator["Future[Any] | Sequence[Future[Any]]", Any, Any]
"""A sequence of calls, written as a generator. It yields a future, or a list of futures that run at once, and receives
their results. If a future fails, its error is raised at the `yield`.
"""


def drive(steps: Steps, call: Callable[[Callable[[], None]], None] = lambda step: step()) -> None:
    """Run `steps` as far as possible now, and continue each time that the futures are complete. `call` runs a step on
    the generator's thread, for example an event loop's `call_soon_threadsafe`.
    """

    def advance(send: Callable[[], Any]) -> None:
        try:
            waiting = send()
        except StopIteration:
            return
        if isinstance(waiting, Future):
            waiting.add_done_callback(lambda done: call(lambda: advance(lambda: _resume(steps, done))))
            return
        _when_all(list(waiting), lambda futures: call(lambda: advance(lambda: _resume_all(steps, futures))))

    advance(lambda: next(steps))


def _resume(steps: Steps, done: Future[Any]) -> Any:
    error = done.exception()
    return steps.throw(error) if error is not None else steps.send(done.result())


def _resume_all(steps: Steps, done: list[Future[Any]]) -> Any:
    error = next((e for f in done if (e := f.exception()) is not None), None)
    return steps.throw(error) if error is not None else steps.send([f.result() for f in done])


def _when_all(futures: list[Future[Any]], then: Callable[[list[Future[Any]]], None]) -> None:
    remaining = len(futures)
    if not remaining:
        then(futures)

    def one_done(_: Future[Any]) -> None:
        nonlocal remaining
        remaining -= 1
        if not remaining:
            then(futures)

    for future in futures:
        future.add_done_callback(one_done)
