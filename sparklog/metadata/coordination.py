"""The store of a cluster's metadata, as a protocol of few calls, and the promises of every implementation: ZooKeeper
(`zookeeper.py`), a SQLite file for a cluster of one broker (`local_coordination.py`), a simulated ZooKeeper.

Paths are absolute. Every call returns a future at once and never blocks; its callbacks run wherever the implementation
likes (kazoo: on a thread of its own), so a caller that has an event loop goes over to it first. Calls of one client
take effect in their order.

A call that fails with ConnectionLossError may or may not have taken effect. One that fails with SessionExpiredError has
not, unless it was sent before the connection broke. Only reading again tells: of a transaction, whether the version of
a node that it sets has moved.

A watch calls back once: when what it was set on changes (for `get`: the node is set, deleted, or created if it was not
there; for `children`: a child comes or goes, or the node is deleted), or when the connection breaks, after which it is
gone. Whoever is called back reads again and watches again; what has changed in between is seen then.

A session that ends takes its ephemeral nodes along. The client does not learn of it before it is connected again: from
SUSPENDED on whoever depends on his session has to keep a timer of his own (`session_timeout_ms`). After LOST it has a
new session without anything.
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
    """Base of what calls fail with. None of them is ever sent to a client of the cluster. `index`: of the operation of
    a transaction that has failed, -1 outside of one."""

    def __init__(self, message: str = "", *, index: int = -1) -> None:
        super().__init__(message)
        self.index = index


class NoNodeError(CoordinationError):
    """There is no such node, or no parent for a new one."""


class NodeExistsError(CoordinationError):
    """There is such a node already."""


class BadVersionError(CoordinationError):
    """The node's version is another one."""


class NotEmptyError(CoordinationError):
    """The node has children."""


class NoChildrenForEphemeralsError(CoordinationError):
    """Ephemeral nodes have no children."""


class ConnectionLossError(CoordinationError):
    """No answer: it may have taken effect."""


class SessionExpiredError(CoordinationError):
    """The session has ended."""


class StoreWriteError(CoordinationError):
    """The store cannot write to its disk, and has not. `reason`: the error for clients of the cluster."""

    def __init__(self, reason: SparklogError) -> None:
        super().__init__(str(reason))
        self.reason = reason


class ZooKeeperTls(NamedTuple):
    """How ZooKeeper is talked to. `authorities`: PEM file of whom its certificate has to be signed by, "": those of the
    system; `identity`: PEM file of the own key and certificate, "": none."""

    authorities: str = ""
    identity: str = ""
    check_hostname: bool = True


class SessionState(Enum):
    """What a client knows of its session."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """No connection; the session may have ended."""
    LOST = "lost"
    """It has ended. CONNECTED with a new one follows."""


class Node(NamedTuple):
    """A node. `czxid`, `mzxid`: of the transactions that made and last changed it, ordered in the whole ensemble.
    `owner`: the session of an ephemeral node, 0 of another."""

    path: str
    data: bytes
    version: int
    czxid: int
    mzxid: int
    owner: int


class Create(NamedTuple):
    """A new node; its parent is there."""

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
    """Nothing changes, but the node has this version, or the transaction fails."""

    path: str
    version: int


Op = Create | SetData | Delete | Check
Watch = Callable[[], None]


class OpResult(NamedTuple):
    """Of one operation. `path`: of a created node; `version`, `mzxid`: of a set one, -1 otherwise."""

    path: str
    version: int = -1
    mzxid: int = -1


class Coordination(Protocol):
    """See the module. One session at a time."""

    @property
    def session_id(self) -> int:
        """NO_SESSION before the first connection."""
        ...

    @property
    def session_timeout_ms(self) -> int:
        """How long the session outlives the last sign of life, as agreed with the server."""
        ...

    def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> Future[Node]:
        """Fails with NodeExistsError, NoNodeError (no parent), NoChildrenForEphemeralsError."""
        ...

    def set_data(self, path: str, data: bytes, version: int = ANY_VERSION) -> Future[Node]:
        """Fails with NoNodeError, BadVersionError."""
        ...

    def get(self, path: str, watch: Watch | None = None) -> Future[Node | None]:
        """None: there is no such node."""
        ...

    def children(self, path: str, watch: Watch | None = None) -> Future[list[str]]:
        """Names, sorted. Fails with NoNodeError; then nothing is watched."""
        ...

    def delete(self, path: str, version: int = ANY_VERSION) -> Future[None]:
        """Fails with NoNodeError, BadVersionError, NotEmptyError."""
        ...

    def transaction(self, ops: Sequence[Op]) -> Future[list[OpResult]]:
        """All operations or none. Fails with the error of the first one that cannot be done, with its `index`."""
        ...

    def listen(self, listener: Callable[[SessionState], None]) -> None:
        """`listener` is told every change from now on."""
        ...

    def close(self) -> None:
        """Ends the session; its ephemeral nodes go."""
        ...


Steps = Generator["Future[Any] | Sequence[Future[Any]]", Any, Any]
"""A sequence of calls, written as a generator: it yields a future, or several that run at once, and is sent the result
or results; what a future fails with is raised in it."""


def drive(steps: Steps, call: Callable[[Callable[[], None]], None] = lambda step: step()) -> None:
    """Runs `steps` to their end as their futures are done. `call` brings a step to where the generator may run (an
    event loop's `call_soon_threadsafe`)."""

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
    left = len(futures)
    if not left:
        then(futures)

    def one_done(_: Future[Any]) -> None:
        nonlocal left
        left -= 1
        if not left:
            then(futures)

    for future in futures:
        future.add_done_callback(one_done)
